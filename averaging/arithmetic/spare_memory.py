"""A pool of memory for whole vectors. Reused memory costs nothing, but the system clears new memory first.

Each round needs memory for contributions and results, some also for a second state, and frees as much. Clearing it is slow under
hypervisors that take free pages back (free page reporting, as with Firecracker and WSL2); measured, see tests/benchmarks/LOG.md. So
a few vectors are kept.

A peer that starts its next round soon finds them unchanged. Vectors that are unused for a while are marked as free (MADV_FREE,
`cool`): the system takes them only when memory is short. They are not marked at once, because a system that looks for idle memory
(DAMON) takes marked pages before the next round. Marked memory still counts as ours, also against the owner's limit, so a little
later it is released.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import trio

MOST_SPARE: Final = 3
"""Pieces kept for bytes: our contribution, those of others, and the results of a round. Pieces of all lengths, as those of several
fragments, take together no more than so many of the longest.
"""

MOST_SPARE_VECTORS: Final = 1
"""Vectors of values kept, likewise. They take four times as much, and a round needs one: a residual, or a second anchor."""

CAN_BE_KEPT: Final = all(hasattr(mmap, name) for name in ("MADV_FREE", "MADV_HUGEPAGE", "MAP_ANONYMOUS"))
"""True on Linux. Elsewhere the allocator is used."""

_NO_RESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0)
"""Python defines it from 3.13 on. Without it Linux refuses a mapping larger than its whole memory, even if little of it is ever
touched. A reducer reserves memory for all members' contributions at once.
"""

COOL_AFTER_S: Final = 30.0
"""Age at which spare memory is marked as free. With longer rounds the cost of clearing does not matter."""

LET_GO_AFTER_S: Final = 60.0
"""Age at which spare memory is released. Slices of this length are not in use any more, or rounds are so long that the cost of
clearing does not matter and other programs need the memory more.
"""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Spare memory, since when it is spare, and whether it is marked as free."""

    memory: mmap.mmap
    since_s: float
    is_cool: bool = False


Spare = deque[_Piece]
"""Spare memory of one length."""


class SpareMemory:
    """Gives out vectors, and takes them back when nothing refers to them any more.

    Thread-safe without a lock: a deque's ends move in one step. A finalizer may run at any point, so a lock could deadlock.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._spare: dict[int, dict[int, Spare]] = {MOST_SPARE: {}, MOST_SPARE_VECTORS: {}}
        """By the most pieces that are kept of a kind, and by their length."""
        self._clock_s = clock_s

    @property
    def num_bytes(self) -> int:
        """Bytes that are spare now."""
        return sum(map(_bytes_of, self._spare.values()))

    def take(self, num_bytes: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """An uninitialised vector of `num_bytes`. Raises MemoryError."""
        most = MOST_SPARE if kind.itemsize == 1 else MOST_SPARE_VECTORS
        try:
            memory = self._spare[most].setdefault(num_bytes, deque()).pop().memory
        except IndexError:
            memory = _mapped(num_bytes)
            memory.madvise(mmap.MADV_HUGEPAGE)
        lent = (ctypes.c_char * num_bytes).from_buffer(memory)
        weakref.finalize(lent, self._give_back, most, memory).atexit = False
        values: npt.NDArray[Any] = np.ndarray(num_bytes // kind.itemsize, dtype=kind, buffer=memoryview(lent).cast("B"))
        return values

    def _give_back(self, most: int, memory: mmap.mmap) -> None:
        """Keep a piece. Beyond the most the oldest are dropped."""
        of_lengths = self._spare[most]
        of_lengths[len(memory)].append(_Piece(memory, self._clock_s()))
        while _bytes_of(of_lengths) > most * max(list(of_lengths)):
            with suppress(IndexError, ValueError):  # taken meanwhile
                min(
                    (spare for spare in list(of_lengths.values()) if spare), key=lambda spare: spare[0].since_s
                ).popleft()

    def cool(self, spare_for_s: float) -> int:
        """Mark memory that has been spare this long as free. Returns the number of bytes."""

        def cooled(piece: _Piece) -> _Piece:
            if not piece.is_cool:
                piece.memory.madvise(mmap.MADV_FREE)
            return replace(piece, is_cool=True)

        return self._for_those_spare(spare_for_s, cooled)

    def let_go(self, spare_for_s: float) -> int:
        """Release memory that has been spare this long. Returns the number of bytes."""
        return self._for_those_spare(spare_for_s, lambda piece: None)

    def _for_those_spare(self, spare_for_s: float, done: Callable[[_Piece], _Piece | None]) -> int:
        """Replace each piece by `done` of it, or drop it for None. Returns the number of bytes changed."""
        before_s, num_bytes = self._clock_s() - spare_for_s, 0
        for spare in [spare for of_lengths in self._spare.values() for spare in list(of_lengths.values())]:
            for _ in range(len(spare)):
                try:
                    piece = spare.popleft()
                except IndexError:  # taken meanwhile
                    break
                after = done(piece) if piece.since_s <= before_s else piece
                num_bytes += len(piece.memory) if after != piece else 0
                if after is not None:
                    spare.append(after)
        return num_bytes


def _bytes_of(of_lengths: Mapping[int, Spare]) -> int:
    return sum(num_bytes * len(spare) for num_bytes, spare in list(of_lengths.items()))


def _mapped(num_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes: {error.strerror}") from error


SPARE: Final = SpareMemory()
"""The pool of this process."""


async def keep_cool() -> None:
    """Until cancelled: mark this process's spare memory as free for other processes, and later release it."""
    while True:
        await trio.sleep(COOL_AFTER_S)
        SPARE.let_go(LET_GO_AFTER_S)
        SPARE.cool(COOL_AFTER_S)
