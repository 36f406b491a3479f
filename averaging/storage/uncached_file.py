"""A long new file, written past the page cache (O_DIRECT): the disk begins to write at once, and no cache memory is needed.

The results and states of a round are hardly ever read again. In the page cache they would cost new memory pages and push out pages
of the machine's owner. Both costs were measured; see tests/benchmarks/LOG.md.
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
"""Alignment of offsets, lengths and memory: disks and file systems want multiples of 512 or of this (open(2), "O_DIRECT")."""

_AT_ONCE_BYTES: Final = 1 << 21
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
"""Private, so that a forked process has its own copy."""

_HOLE_BYTES: Final = 1 << 15
"""So many zeros are not written: the file has a hole there, which takes no room on most disks. A momentum that no outer step moves is
zero.
"""

_GLANCE_BYTES: Final = 64
"""Bytes that mostly tell that a piece is no hole."""

_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of file systems that open a direct file but need larger blocks, or refuse direct writes."""

_MOST_ROOMS: Final = 4
"""Spare buffers: one for each thread that may write at the same time (`ThreadOffload`)."""


class _Rooms:
    """Aligned buffers, reused. Bytes are copied there before they are written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[mmap.mmap] = []

    @contextmanager
    def one(self) -> Iterator[memoryview]:
        """A buffer of _AT_ONCE_BYTES with undefined contents."""
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
    """As `room[:] = data`, but without the interpreter's lock, so that other threads can run."""
    np.copyto(np.frombuffer(room, dtype=np.uint8), np.frombuffer(data, dtype=np.uint8))


def _are_zeros(piece: memoryview) -> bool:
    """Whether a long piece holds nothing else."""
    if len(piece) < _HOLE_BYTES or any(piece[:_GLANCE_BYTES]):
        return False
    return not np.frombuffer(piece, dtype=np.uint64).any()


class UncachedFile:
    """A new file, written from its start. Its methods block. Close it if one raises OSError."""

    def __init__(self, path: Path) -> None:
        """Create the file, or empty an existing one.

        Raises:
            OSError: the file system has no direct files, or cannot create one.
        """
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | _DIRECT, 0o666)
        self._num_written = 0
        self._rest = b""
        """The last bytes of a write, less than a block: they are written with the next ones."""

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write the next bytes, except for the last incomplete block."""
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
                        self._put_all(room)
                        num_bytes = 0
            whole_bytes = num_bytes // _BLOCK_BYTES * _BLOCK_BYTES
            self._put_all(room[:whole_bytes])
            self._rest = bytes(room[whole_bytes:num_bytes])

    def finish(self) -> None:
        """Write the rest, sync and close the file."""
        length = self._num_written + len(self._rest)
        if self._rest:
            with _ROOMS.one() as room:
                room[:_BLOCK_BYTES] = self._rest.ljust(_BLOCK_BYTES, b"\0")
                self._put(room[:_BLOCK_BYTES])
        os.ftruncate(self._descriptor, length)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _put_all(self, blocks: memoryview) -> None:
        """Write these blocks, but leave holes for zeros."""
        begin = 0
        for start in range(0, len(blocks), _HOLE_BYTES):
            piece = blocks[start : start + _HOLE_BYTES]
            if _are_zeros(piece):
                self._put(blocks[begin:start])
                self._num_written += len(piece)
                begin = start + len(piece)
        self._put(blocks[begin:])

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
            if num_bytes % _BLOCK_BYTES:  # the disk is full, as the next call will say, or was full for a moment
                self._go_through_cache()

    def _go_through_cache(self) -> None:
        """Write through the page cache from here on, which needs no alignment."""
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags & ~_DIRECT)

    @property
    def _flags(self) -> int:
        return fcntl.fcntl(self._descriptor, fcntl.F_GETFL)

    @property
    def _is_direct(self) -> bool:
        return bool(self._flags & _DIRECT)
