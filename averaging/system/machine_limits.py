"""The memory and the processor cores that this process may use: of the machine, or of its control groups if they allow less.

Containers, service managers and batch systems limit a process by groups, in two versions of the kernel's interface. A group can also
be limited by any group above it. Every reading of memory and cores comes from here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path("/")

_V2: Final = ""
"""The name of the one hierarchy of the newer interface, where the older one has a hierarchy for each controller."""

_NO_LIMIT: Final = 1 << 60
"""The older interface shows a memory limit that is not set as a number about as large as addresses go."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory that this process may use, and those that are still free."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor cores.

    Attributes:
        usable: those whose time this process may use, which may be a fraction.
        allowed: those that it may run on, as its scheduler knows them.
        of_machine: all.
    """

    usable: float
    allowed: int
    of_machine: int

    @property
    def num_threads(self) -> int:
        """How many threads can work at the same time, at least 1."""
        return max(1, math.ceil(self.usable))


def read_memory(root: Path = ROOT) -> Memory:
    """The memory of the machine, or of the group that has least. Blocks for a moment."""
    import psutil

    found = psutil.virtual_memory()
    total_bytes, available_bytes = int(found.total), int(found.available)
    for group in _groups(root, "memory"):
        limit_bytes = min(
            map(_number, _files(group, "memory.max", "memory.high", "memory.limit_in_bytes")), default=None
        )
        if limit_bytes is None or limit_bytes >= min(_NO_LIMIT, found.total):
            continue
        total_bytes = min(total_bytes, int(limit_bytes))
        available_bytes = min(available_bytes, max(0, int(limit_bytes) - _used_bytes(group)))
    return Memory(total_bytes, available_bytes)


def read_cores(root: Path = ROOT) -> Cores:
    """The cores of this process: those it may run on, and no more than the share of time that its groups have."""
    of_machine = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else of_machine
    usable = float(allowed)
    for group in _groups(root, "cpu"):
        usable = min(usable, _quota(group))
    for group in _groups(root, "cpuset"):
        for text in map(_text, _files(group, "cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")):
            usable = min(usable, _num_listed(text))
    return Cores(usable, allowed, of_machine)


def _used_bytes(group: Path) -> int:
    """Bytes that a group holds and cannot give back at once: cached files that nobody used lately do not count."""
    used = min(map(_number, _files(group, "memory.current", "memory.usage_in_bytes")), default=0.0)
    cached = 0.0
    for text in map(_text, _files(group, "memory.stat")):
        fields = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        cached = _whole(fields.get("total_inactive_file", fields.get("inactive_file", "0")))
    return int(max(0.0, used - cached)) if used < math.inf else 0


def _quota(group: Path) -> float:
    """Cores' worth of time for a group; infinite without a limit."""
    for words in (_text(path).split() for path in _files(group, "cpu.max")):
        quota, period = (_whole(word) for word in (*words, "100000")[:2])
        return quota / period if 0 < period < math.inf else math.inf
    shares = [_whole(_text(path)) for path in _files(group, "cpu.cfs_quota_us", "cpu.cfs_period_us")]
    if len(shares) == 2 and shares[0] > 0 and 0 < shares[1] < math.inf:  # -1 is no limit
        return shares[0] / shares[1]
    return math.inf


def _num_listed(text: str) -> float:
    """How many numbers a list as "0-3,8" has; infinite for anything else."""
    ends = [part.partition("-")[::2] for part in text.split(",")]
    spans = [_whole(last or first) - _whole(first) + 1 for first, last in ends]
    total = sum(spans)
    return total if total > 0 else math.inf  # also for no number


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those above it, as far as they are visible, in each hierarchy that may limit this."""
    for name, path in _memberships(root):
        if name == _V2 or controller in name.split(","):
            for mount, mounted in _mounts(root, name, controller):
                top = root / mount.lstrip("/")
                is_below = f"{path}/".startswith(f"{mounted.rstrip('/')}/") and ".." not in path.split("/")
                folder = top / os.path.relpath(path, mounted) if is_below else top
                yield from (each for each in (folder, *folder.parents) if each == top or top in each.parents)


def _memberships(root: Path) -> list[tuple[str, str]]:
    """(controllers, path of the group) of this process in each hierarchy."""
    lines = _text(root / "proc/self/cgroup").splitlines()
    return [(parts[1], parts[2]) for parts in (line.split(":", 2) for line in lines) if len(parts) == 3]


def _mounts(root: Path, hierarchy: str, controller: str) -> Iterator[tuple[str, str]]:
    """(mount point, the group that is mounted there) of a hierarchy, from the process's list of mounts."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        is_it = kind[0] == "cgroup2" if hierarchy == _V2 else kind[0] == "cgroup" and controller in kind[2].split(",")
        if is_it:
            yield fields[4], fields[3]


def _files(group: Path, *names: str) -> list[Path]:
    return [group / name for name in names if (group / name).is_file()]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float:
    return _whole(_text(path))


def _whole(text: str) -> float:
    """The whole number in a kernel's file; infinite for "max" and for anything else."""
    try:
        return int(text)
    except ValueError:
        return math.inf


def keep_threads_to_cores(root: Path = ROOT) -> None:
    """Have the libraries that compute start no more threads than a group lets work at the same time, in this process and in those
    that it starts. They know the cores that a process may run on, but no share of time. Call it before they are imported; a number
    that the owner has set stays.
    """
    cores = read_cores(root)
    if cores.num_threads < cores.allowed:
        os.environ.setdefault("OMP_NUM_THREADS", str(cores.num_threads))
