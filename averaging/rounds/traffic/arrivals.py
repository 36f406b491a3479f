"""What streams bring to a running exchange: when, how much, from whom, and which results are on their way.

It stands apart from the exchange, which has it, as those have who take what comes. If they had the exchange for it, each would keep
the other, and with them all that a round moved, until the garbage collector comes by, after some twenty rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import trio

from averaging.rounds.traffic.transfer import ANSWER_WITHIN_S, LEAST_BYTES_PER_S
from protocol.ids import PeerId, Root


class Coming:
    """A result that a stream brings: when it last did, and how much it brought."""

    def __init__(self, began_s: float) -> None:
        self.moved_s = began_s
        self._num_bytes = 0
        self._began_s = began_s

    def came(self, num_bytes: int) -> None:
        """So much more of it."""
        self.moved_s = trio.current_time()
        self._num_bytes += num_bytes

    def is_slow(self, now_s: float) -> bool:
        """Slower than who is asked for it may be (`transfer.ask`): a frame now and then keeps nobody from asking others."""
        return now_s > self._began_s + ANSWER_WITHIN_S + self._num_bytes / LEAST_BYTES_PER_S


class Arrivals:
    """Of one exchange. `moved_s`: when a stream last brought something, in trio's time, or -inf; `moved_bytes`: how much so far."""

    def __init__(self) -> None:
        self.moved_s = -inf
        self.moved_bytes = 0
        self._bringing = set[PeerId]()
        self._coming: dict[Root, Coming] = {}

    def came(self, peer: PeerId, frame: memoryview) -> None:
        """A frame on a stream of this peer."""
        self.moved_s = trio.current_time()
        self.moved_bytes += len(frame)
        self._bringing.add(peer)

    def bringing(self) -> tuple[PeerId, ...]:
        """Whose streams have brought something since this was asked last."""
        found = tuple(sorted(self._bringing))
        self._bringing.clear()
        return found

    @contextmanager
    def coming(self, result_hash: Root) -> Iterator[Coming]:
        """A stream brings this result, for as long as the block lasts."""
        coming = self._coming[result_hash] = Coming(trio.current_time())
        try:
            yield coming
        finally:
            if self._coming.get(result_hash) is coming:
                del self._coming[result_hash]

    def coming_s(self, result_hash: Root) -> float:
        """When a stream last brought something of these bytes, in trio's time; -inf where none brings them now, or too slowly."""
        coming = self._coming.get(result_hash)
        return -inf if coming is None or coming.is_slow(trio.current_time()) else coming.moved_s
