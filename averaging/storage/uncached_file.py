"""A long new file, written past the page cache (O_DIRECT): the disk begins with it at once, and no memory is taken for it.

What a round brings to the disk, results and states, is hardly ever read again. Through the page cache each of its pages is memory
that the system gives anew, which costs ten times the copying under a hypervisor that takes free pages back: 25 MB took 65 to 110 ms of
processor time so, and 6 to 8 ms past the cache; where memory was at hand 10 and 6. And it pushes out what the machine's owner had
there.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

CAN_BE_UNCACHED: Final = hasattr(os, "O_DIRECT")

_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_BLOCK_BYTES: Final = 4096
"""What disks and file systems want places, lengths and memory to be multiples of: 512 or this (open(2), "O_DIRECT")."""

_AT_ONCE_BYTES: Final = 1 << 21
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""A process that is forked off has its own."""

_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP)
"""Of file systems that open a file so and want larger blocks, or write none so."""

_MOST_ROOMS: Final = 4
"""As many as threads that write at the same time (`ThreadOffload`); further ones give theirs back."""


class _Rooms:
    """Memory at whole blocks, used again: what is written is copied there first, at a tenth of a millisecond a megabyte."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []

    @contextmanager
    def one(self) -> Iterator[memoryview]:
        """_AT_ONCE_BYTES, with whatever is in them."""
        with self._lock:
            room = self._spare.pop() if self._spare else mmap.mmap(-1, _AT_ONCE_BYTES, flags=_PRIVATE)
        try:
            with memoryview(room) as view:
                yield view
        finally:
            with self._lock:
                if len(self._spare) < _MOST_ROOMS:
                    self._spare.append(room)


_ROOMS: Final = _Rooms()


def _copy(data: memoryview, room: memoryview) -> None:
    """As `room[:] = data`, but other threads may use Python meanwhile: two megabytes take 0.2 ms, on a busy core 2."""
    np.copyto(np.frombuffer(room, dtype=np.uint8), np.frombuffer(data, dtype=np.uint8))


class UncachedFile:
    """A file from its beginning on. Its methods block, and raise OSError: it is to be closed then."""

    def __init__(self, path: Path) -> None:
        """Make it, or empty the one that is there.

        Raises:
            OSError: its file system has only cached files, or takes none.
        """
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | _DIRECT, 0o666)
        self._num_written = 0
        self._rest = b""
        """Of what was to be written, less than a block: it goes with what follows."""

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write what comes next, but for the last part of a block."""
        with _ROOMS.one() as room:
            num_bytes = len(self._rest)
            room[:num_bytes] = self._rest
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    taken = view[: len(room) - num_bytes]
                    _copy(taken, room[num_bytes : num_bytes + len(taken)])
                    num_bytes, view = num_bytes + len(taken), view[len(taken) :]
                    if num_bytes == len(room):
                        self._put(room)
                        num_bytes = 0
            whole_bytes = num_bytes // _BLOCK_BYTES * _BLOCK_BYTES
            self._put(room[:whole_bytes])
            self._rest = bytes(room[whole_bytes:num_bytes])

    def finish(self) -> None:
        """All of it is on the disk, and the file is closed, when this returns."""
        if self._rest:
            length = self._num_written + len(self._rest)
            with _ROOMS.one() as room:
                room[:_BLOCK_BYTES] = self._rest.ljust(_BLOCK_BYTES, b"\0")
                self._put(room[:_BLOCK_BYTES])
            os.ftruncate(self._descriptor, length)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """As it is."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _put(self, blocks: memoryview) -> None:
        while blocks:
            try:
                num_bytes = os.pwrite(self._descriptor, blocks, self._num_written)
            except OSError as error:
                if error.errno not in _REFUSALS or not self._is_direct:
                    raise
                self._go_through_cache()
                continue
            if not num_bytes:
                raise OSError(errno.EIO, "nothing was written")
            self._num_written += num_bytes
            blocks = blocks[num_bytes:]
            if num_bytes % _BLOCK_BYTES:  # the disk is full, as the next call says; or was so for a moment
                self._go_through_cache()

    def _go_through_cache(self) -> None:
        """From here on, whatever its length and place."""
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags & ~_DIRECT)

    @property
    def _flags(self) -> int:
        return fcntl.fcntl(self._descriptor, fcntl.F_GETFL)

    @property
    def _is_direct(self) -> bool:
        return bool(self._flags & _DIRECT)
