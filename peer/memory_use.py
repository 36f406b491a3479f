"""What processes hold of the machine's memory. The training process reads it as well, so nothing of the daemon is imported here."""

from __future__ import annotations

import math
import os
import resource
import sys
from pathlib import Path
from typing import Final

import psutil

from peer.memory_core import MemoryUse

FIND_EVERY_S: Final = 10.0
"""Finding who was started by whom reads a file of every process of the machine: 25 ms where there are 200, each time."""


class Family:
    """A process, this one for None, and all that it started. Who was found is asked by itself, new ones are looked for in turn."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._members: list[psutil.Process] = []
        self._found_at_s = -math.inf

    def resident_bytes(self, now_s: float) -> int:
        """What they hold together at `now_s`, a monotonic time; who dies while we look counts nothing, who was started in the last
        FIND_EVERY_S may not count yet.
        """
        if now_s - self._found_at_s >= FIND_EVERY_S:
            self._found_at_s, self._members = now_s, self._find()
        total_bytes = 0
        for process in self._members:
            try:
                total_bytes += process.memory_info().rss
            except psutil.Error:
                continue
        return total_bytes

    def _find(self) -> list[psutil.Process]:
        try:
            first = psutil.Process(self._pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []


def memory_of_family(pid: int | None = None) -> int:
    """Resident bytes of that process, of this one for None, and of all that it started until now."""
    return Family(pid).resident_bytes(0.0)


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
