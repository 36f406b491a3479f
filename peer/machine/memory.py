"""How much memory this process and its children take.

What processes hold of the machine's memory. The training process reads it as well, so nothing of the daemon is imported here.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from peer.machine.memory_core import MemoryUse

LOOKS_A_WALK: Final = 5
"""A daemon looks once a second of its life, and what it starts it does not start often."""


class Family:
    """A process, this one for None, and all that it started, looked at again and again: who belongs to it is found once in
    LOOKS_A_WALK looks, and at the next one after somebody has ended. To find that takes ten times as long as to ask them.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._members: list[psutil.Process] = []
        self._looks_left = 0

    def memory_bytes(self) -> int:
        """Resident bytes of all; who dies while we look counts nothing."""
        if not self._looks_left:
            self._members, self._looks_left = _family_of(self._pid), LOOKS_A_WALK
        self._looks_left -= 1
        total_bytes = 0
        for process in self._members:
            try:
                total_bytes += process.memory_info().rss
            except psutil.Error:
                self._looks_left = 0
        return total_bytes


def memory_of_family(pid: int | None = None) -> int:
    """Resident bytes of that process, of this one for None, and of all that it started."""
    return Family(pid).memory_bytes()


def _family_of(pid: int | None) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *_started_by(first)]
    except psutil.Error:
        return []


def _started_by(process: psutil.Process) -> list[psutil.Process]:
    """All that it started, and what those started. Where the system lists nobody's children every process of the machine is asked
    whose it is: 3 ms with 90 processes and more with more, where this takes 0.4.
    """
    try:
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        listed = [(task / "children").read_text(encoding="ascii") for task in tasks]
    except OSError:
        return process.children(recursive=True)
    family: list[psutil.Process] = []
    for pid in (int(word) for text in listed for word in text.split()):
        with suppress(psutil.Error):
            child = psutil.Process(pid)
            family += [child, *_started_by(child)]
    return family


def memory_use() -> MemoryUse:
    """Of this process, and of the one that started it with all that it started."""
    return MemoryUse(memory_of_family(os.getppid()), psutil.Process().memory_info().rss, own_peak_bytes())


def own_peak_bytes() -> int:
    """The most that was ever resident of this process."""
    try:
        # getrusage counts on Linux what the process that started this one held before, too
        lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def forget_own_peak() -> None:
    """Count the peak from now on, where the system can do that; elsewhere an older, higher one stands."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf8")
    except OSError:
        return
