"""Memory use of this process and its children.

The training process uses this module as well, so it imports nothing of the daemon.
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
"""A daemon reads once a second and rarely starts processes."""


class Family:
    """A process (None for this one) and its descendants, read repeatedly. The descendants are listed again at every LOOKS_A_WALK-th
    reading and after one has ended, because listing them costs far more than reading their memory.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._members: list[psutil.Process] = []
        self._looks_left = 0

    def memory_bytes(self) -> int:
        """Resident bytes of all. A process that ends during the reading counts 0."""
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
    """Resident bytes of that process (None for this one) and its descendants."""
    return Family(pid).memory_bytes()


def _family_of(pid: int | None) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *_started_by(first)]
    except psutil.Error:
        return []


def _started_by(process: psutil.Process) -> list[psutil.Process]:
    """All descendants. On a system that does not list children, the parent of every process must be asked, which is far slower."""
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
    """Memory of this process, and of its parent with all descendants."""
    return MemoryUse(memory_of_family(os.getppid()), psutil.Process().memory_info().rss, own_peak_bytes())


def own_peak_bytes() -> int:
    """The highest resident memory of this process so far."""
    try:
        # On Linux, getrusage includes memory of the process that started this one.
        lines = Path("/proc/self/status").read_text(encoding="utf8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def forget_own_peak() -> None:
    """Restart the peak measurement if the system can; otherwise an older, higher peak stays."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf8")
    except OSError:
        return
