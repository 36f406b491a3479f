"""A buffer for bytes that arrive or are made piece by piece and are then used together: contributions, slices, results.

One buffer avoids a new allocation for each piece, which the system would clear first, and a copy when the whole is wanted.
"""

from __future__ import annotations

import threading
from bisect import bisect_right

from averaging.arithmetic.vectors import new_bytes


class SlotBuffer:
    """`num_bytes` of memory, each byte given out at most once. Requests beyond them, or for the same place again, get separate
    memory.

    Memory is allocated at the first request, and pages that nobody writes to are never touched. The pieces keep the buffer alive.
    Thread-safe.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._memory: memoryview | None = None
        self._begins: list[int] = []
        self._stops: list[int] = []
        self._end = 0
        self._lock = threading.Lock()

    @classmethod
    def over(cls, memory: memoryview) -> SlotBuffer:
        """A buffer over this writable memory."""
        room = cls(len(memory))
        room._memory = memory
        return room

    @property
    def taken(self) -> memoryview:
        """The bytes up to the end of the last piece, read-only."""
        with self._lock:
            return self._memory[: self._end].toreadonly() if self._memory is not None else memoryview(b"")

    def take(self, num_bytes: int) -> memoryview:
        """The next piece, writable."""
        with self._lock:
            begin = self._end
            if begin + num_bytes > self._num_bytes:
                return new_bytes(num_bytes)
            return self._given(len(self._begins), begin, begin + num_bytes)

    def take_at(self, begin: int, stop: int) -> memoryview:
        """The piece at this place, writable. If part of it was given out already, separate memory."""
        with self._lock:
            place = bisect_right(self._begins, begin)
            is_free = (
                0 <= begin <= stop <= self._num_bytes
                and (place == 0 or self._stops[place - 1] <= begin)
                and (place == len(self._begins) or stop <= self._begins[place])
            )
            return self._given(place, begin, stop) if is_free else new_bytes(stop - begin)

    def _given(self, place: int, begin: int, stop: int) -> memoryview:
        if self._memory is None:
            self._memory = new_bytes(self._num_bytes)
        self._begins.insert(place, begin)
        self._stops.insert(place, stop)
        self._end = max(self._end, stop)
        return self._memory[begin:stop]
