"""Readings of a training process: whether the system has stopped it, and how long it ran or waited for a processor."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_NS_PER_S: Final = 1e9


def is_stopped(pid: int) -> bool:
    """Whether the system has stopped a process, as a frozen one. False for a process that is gone."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    return False


def runnable_s(pid: int) -> float:
    """Seconds that a process ran, or could have run while others had the processor, summed over its threads.

    On an overloaded machine a process that works may hardly run at all, but it waits for its turn. One that hangs does neither.
    It is the processor time alone if the system does not count the waiting, and 0 for a process that is gone.
    """
    with suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system) + _queued_s(pid)
    return 0.0


def _queued_s(pid: int) -> float:
    """Seconds that the living threads of a process waited in a processor's queue: the second number of Linux's `schedstat`
    (Documentation/scheduler/sched-stats.rst).
    """
    queued_ns = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):  # a thread that ended meanwhile
                queued_ns += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return queued_ns / _NS_PER_S
