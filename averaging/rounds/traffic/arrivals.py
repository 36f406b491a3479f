"""Records what streams deliver to a running exchange: when, how much, from which peers, and which results.

It is separate from the exchange, and both the exchange and its users refer to it. If the users referred to the exchange, each
would keep the other, and all memory of a round, alive until the garbage collector runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio

from averaging.rounds.traffic.transfer import ANSWER_WITHIN_S, LEAST_BYTES_PER_S
from protocol.ids import PeerId, Root


class Coming:
    """A result that a stream is delivering: when its last bytes came, and how many."""

    def __init__(self, began_s: float) -> None:
        self.moved_s = began_s
        self._num_bytes = 0
        self._began_s = began_s

    def came(self, num_bytes: int) -> None:
        """More bytes of it arrived."""
        self.moved_s = trio.current_time()
        self._num_bytes += num_bytes

    def is_slow(self, now_s: float) -> bool:
        """Whether it is slower than an answer may be (`transfer.ask`): a rare frame must not keep us from asking others."""
        return now_s > self._began_s + ANSWER_WITHIN_S + self._num_bytes / LEAST_BYTES_PER_S


class Arrivals:
    """Deliveries to one exchange. `moved_s`: when a stream last delivered, in trio's time, or -inf; `moved_bytes`: how much so
    far.
    """

    def __init__(self) -> None:
        self.moved_s = -inf
        self.moved_bytes = 0
        self._delivering = set[PeerId]()
        self._coming: dict[Root, Coming] = {}

    def came(self, peer: PeerId, frame: memoryview) -> None:
        """A frame arrived on a stream of this peer."""
        self.moved_s = trio.current_time()
        self.moved_bytes += len(frame)
        self._delivering.add(peer)

    def bringing(self) -> tuple[PeerId, ...]:
        """The peers whose streams have delivered since the last call."""
        found = tuple(sorted(self._delivering))
        self._delivering.clear()
        return found

    @contextmanager
    def coming(self, result_hash: Root) -> Iterator[Coming]:
        """A stream delivers this result, for as long as the block lasts."""
        coming = self._coming[result_hash] = Coming(trio.current_time())
        try:
            yield coming
        finally:
            if self._coming.get(result_hash) is coming:
                del self._coming[result_hash]

    def coming_s(self, result_hash: Root) -> float:
        """When a stream last delivered bytes of this result, in trio's time; -inf if no stream delivers it, or one is too slow."""
        coming = self._coming.get(result_hash)
        return -inf if coming is None or coming.is_slow(trio.current_time()) else coming.moved_s
