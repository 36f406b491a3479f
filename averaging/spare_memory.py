"""Memory of whole vectors, used again: what was touched before costs nothing, what the system gives anew is cleared first.

Each round needs room for the next state and for what it moves theta by, and gives as much back. Clearing 100 MB takes 0.012 to
0.02 s on a machine of one's own; under a hypervisor that takes free pages back (free page reporting, as with Firecracker and WSL2)
0.42 s, a third of a round's processor time. So a few vectors stay. Who meets again soon finds them as they were; those that nobody has
wanted for a while are marked as free to be taken (MADV_FREE, `cool`): where the machine is short of memory it takes them, and
nobody notices but for the clearing. Marked at once they were gone by the next round, three seconds later, where the machine looks for
memory that is not used (DAMON): a fifth of the processor time of two members that exchange 100 MB went into clearing.
"""

from __future__ import annotations

import ctypes
import mmap
import time
import weakref
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import trio

MOST_SPARE: Final = 3
"""Vectors of one length that are kept: the next anchor and momentum and the shift of a round."""

CAN_BE_KEPT: Final = all(hasattr(mmap, name) for name in ("MADV_FREE", "MADV_HUGEPAGE", "MAP_ANONYMOUS"))
"""Linux. Elsewhere the allocator has to do."""

COOL_AFTER_S: Final = 30.0
"""Those who meet less often can well spend 0.4 s on clearing, where that takes so long."""


Spare = deque[tuple[mmap.mmap, float]]
"""Memory of one length, and since when it is spare; infinity once it is marked."""


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
        """A vector of so many bytes, with whatever is in it."""
        spare = self._spare.setdefault(num_bytes, deque(maxlen=MOST_SPARE))
        try:
            memory, _ = spare.pop()
        except IndexError:
            memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
        lent = (ctypes.c_char * num_bytes).from_buffer(memory)
        weakref.finalize(lent, self._give_back, spare, memory).atexit = False
        values: npt.NDArray[Any] = np.ndarray(num_bytes // kind.itemsize, dtype=kind, buffer=memoryview(lent).cast("B"))
        return values

    def _give_back(self, spare: Spare, memory: mmap.mmap) -> None:
        spare.append((memory, self._clock_s()))  # beyond MOST_SPARE the oldest goes

    def cool(self, spare_for_s: float) -> int:
        """Mark what has been spare for so long as free to be taken; how many bytes."""
        before_s, num_bytes = self._clock_s() - spare_for_s, 0
        for spare in list(self._spare.values()):
            for _ in range(len(spare)):
                try:
                    memory, since_s = spare.popleft()
                except IndexError:  # taken meanwhile
                    break
                if since_s <= before_s:
                    memory.madvise(mmap.MADV_FREE)
                    since_s, num_bytes = inf, num_bytes + len(memory)
                spare.append((memory, since_s))
        return num_bytes


SPARE: Final = SpareMemory()
"""Of this process."""


async def keep_cool() -> None:
    """Until cancelled: what this process has to spare for a while may be taken by whoever else needs memory on this machine."""
    while True:
        await trio.sleep(COOL_AFTER_S)
        SPARE.cool(COOL_AFTER_S)
