"""Readings of a process's memory and disk writes, as the kernel tells them, and the most of it while somebody watches.

Anonymous pages are a process's own and can only be swapped. Shared memory is the mapping between a daemon and its training process.
File pages are page cache that the kernel may take at any time: mapped states, and libraries.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

LOOK_EVERY_S: Final = 0.025
_FIELDS: Final = {"VmRSS:": "resident", "RssAnon:": "anonymous", "RssShmem:": "shared", "RssFile:": "files"}


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes of one process.

    Attributes:
        resident: all of the following.
        anonymous: private memory.
        shared: of shared memory, mapped here and present.
        files: of files, mapped here and present.
        unshared: anonymous and file pages together.
        mapping: allocated to the memory that it shares with another process, whether or not it is mapped here.
    """

    resident: int = 0
    anonymous: int = 0
    shared: int = 0
    files: int = 0
    unshared: int = 0
    mapping: int = 0

    def most(self, other: Reading) -> Reading:
        """The larger one of each field."""
        return Reading(*map(max, astuple(self), astuple(other)))


def reading(pid: int) -> Reading:
    """Of a process now; zeros when it is gone."""
    found = dict.fromkeys(_FIELDS.values(), 0)
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf8").splitlines():
            name, *rest = line.split()
            if name in _FIELDS:
                found[_FIELDS[name]] = int(rest[0]) * 1024
    return Reading(**found, unshared=found["anonymous"] + found["files"], mapping=_mapping_bytes(pid))


def _mapping_bytes(pid: int) -> int:
    """Blocks of the memory files that the process has open."""
    found: dict[int, int] = {}
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(entry.path).startswith("/memfd:potluck"):
                    file = os.stat(entry.path)  # a process may have it open more than once
                    found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def peak_bytes(pid: int) -> int:
    """The kernel's own peak of resident memory, since the start or the last `forget_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def forget_peak(pid: int) -> None:
    """Begin `peak_bytes` anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf8")


def lazily_free_bytes(pid: int) -> int:
    """Anonymous pages that the process has given up, and the kernel has not taken yet. They still count as its memory."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf8").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("LazyFree:")), 0)
    return 0


def written_bytes(pid: int) -> int:
    """Bytes that the process has made the disk write, past the page cache or through it; truncated ones still count."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="utf8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def bytes_on_disk(folder: Path) -> int:
    """Blocks of all files below a folder."""
    total_bytes = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total_bytes += os.lstat(os.path.join(directory, name)).st_blocks * 512
    return total_bytes


class Watch:
    """The most of each watched process by name, and of all together with shared memory counted once."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self.most = dict.fromkeys(pids, Reading())
        self.most_together = 0
        self.looks = 0

    def look(self) -> None:
        """One reading of each."""
        found = {name: reading(pid) for name, pid in self._pids.items()}
        for name, each in found.items():
            self.most[name] = self.most[name].most(each)
        own = sum(each.anonymous + each.files for each in found.values())
        self.most_together = max(self.most_together, own + max(each.mapping for each in found.values()))
        self.looks += 1


@contextmanager
def watching(*watches: Watch) -> Iterator[None]:
    """Look at all of them again and again while the block runs, and once at its end."""
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(LOOK_EVERY_S):
            for watch in watches:
                watch.look()

    thread = threading.Thread(target=run, name="memory")
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        for watch in watches:
            watch.look()
