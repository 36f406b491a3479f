"""Memory of whole vectors, used again: what was touched before costs nothing, what the system gives anew is cleared first.

Each round needs room for the next state and for what it moves theta by, and gives as much back. Clearing 100 MB takes 0.012 to
0.02 s on a machine of one's own; under a hypervisor that takes free pages back (free page reporting, as with Firecracker and WSL2)
0.42 s, a third of a round's processor time. So a few vectors stay. Who meets again soon finds them as they were; those that nobody has
wanted for a while are marked as free to be taken (MADV_FREE, `cool`): where the machine is short of memory it takes them, and
nobody notices but for the clearing. Marked at once they were gone by the next round, three seconds later, where the machine looks for
memory that is not used (DAMON): a fifth of the processor time of two members that exchange 100 MB went into clearing. What is marked
counts as ours until the machine is short of memory, also against what the owner allows us: so it is given up after some minutes more.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import trio

MOST_SPARE: Final = 3
"""Vectors of one length that are kept: the next anchor and momentum and the shift of a round."""

CAN_BE_KEPT: Final = all(hasattr(mmap, name) for name in ("MADV_FREE", "MADV_HUGEPAGE", "MAP_ANONYMOUS"))
"""Linux. Elsewhere the allocator has to do."""

_NO_RESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000 if platform.machine() in ("x86_64", "aarch64") else 0)
"""Python names it from 3.13 on. Without it Linux refuses what is longer than all of its memory, however little of it is ever touched:
a reducer asks at once for what all members may bring.
"""

COOL_AFTER_S: Final = 30.0
"""Those who meet less often can well spend 0.4 s on clearing, where that takes so long."""

LET_GO_AFTER_S: Final = 300.0
"""A length that was not asked for in so long belongs to slices that are cut otherwise now."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Memory that is spare, and since when; whether it is marked."""

    memory: mmap.mmap
    since_s: float
    is_cool: bool = False


Spare = deque[_Piece]
"""Of one length."""


class SpareMemory:
    """Gives out vectors, and takes them back when nothing refers to them any more.

    Threads may ask and drop at the same time: a deque's ends move in one step, and a finalizer may run in the middle of
    anything, so there is no lock.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._spare: dict[int, Spare] = {}
        self._clock_s = clock_s

    @property
    def num_bytes(self) -> int:
        """What is kept for nobody at this moment."""
        return sum(num_bytes * len(spare) for num_bytes, spare in list(self._spare.items()))

    def take(self, num_bytes: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """A vector of so many bytes, with whatever is in it. Raises MemoryError."""
        spare = self._spare.setdefault(num_bytes, deque(maxlen=MOST_SPARE))
        try:
            memory = spare.pop().memory
        except IndexError:
            memory = _mapped(num_bytes)
            memory.madvise(mmap.MADV_HUGEPAGE)
        lent = (ctypes.c_char * num_bytes).from_buffer(memory)
        weakref.finalize(lent, self._give_back, spare, memory).atexit = False
        values: npt.NDArray[Any] = np.ndarray(num_bytes // kind.itemsize, dtype=kind, buffer=memoryview(lent).cast("B"))
        return values

    def _give_back(self, spare: Spare, memory: mmap.mmap) -> None:
        spare.append(_Piece(memory, self._clock_s()))  # beyond MOST_SPARE the oldest goes

    def cool(self, spare_for_s: float) -> int:
        """Mark what has been spare for so long as free to be taken; how many bytes."""

        def cooled(piece: _Piece) -> _Piece:
            if not piece.is_cool:
                piece.memory.madvise(mmap.MADV_FREE)
            return replace(piece, is_cool=True)

        return self._for_those_spare(spare_for_s, cooled)

    def let_go(self, spare_for_s: float) -> int:
        """Keep what has been spare for so long no more; how many bytes."""
        return self._for_those_spare(spare_for_s, lambda piece: None)

    def _for_those_spare(self, spare_for_s: float, done: Callable[[_Piece], _Piece | None]) -> int:
        """What `done` makes of each stays, unless it is None; how many bytes were changed."""
        before_s, num_bytes = self._clock_s() - spare_for_s, 0
        for spare in list(self._spare.values()):
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


def _mapped(num_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except OSError as error:
        raise MemoryError(f"{num_bytes} bytes: {error.strerror}") from error


SPARE: Final = SpareMemory()
"""Of this process."""


async def keep_cool() -> None:
    """Until cancelled: what this process has to spare for a while may be taken by whoever else needs memory on this machine, and is no
    longer kept at all when it is not asked for.
    """
    while True:
        await trio.sleep(COOL_AFTER_S)
        SPARE.let_go(LET_GO_AFTER_S)
        SPARE.cool(COOL_AFTER_S)
