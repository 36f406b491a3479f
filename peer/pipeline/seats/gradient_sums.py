"""The sums of one synced step at one replica: those that fellows brought, and how ours comes to them.

What decides to whom ours is brought is protocol/pipeline/synced/sum_delivery.py; this holds bytes and waits for answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
import trio

from peer.pipeline.transport.lane_outbox import Outbox, Posted
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline.messages.synced_messages import SyncedPart, SyncedSum
from protocol.pipeline.synced import sum_delivery
from protocol.pipeline.synced.sum_delivery import SumDelivery

log = structlog.get_logger()

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SumRole:
    """What a replica does for its sums.

    Attributes:
        me: whose sums are ours.
        outbox_of: the way to a fellow.
        is_with_all: told the micro-batches of our sum once all others of the stage have it.
    """

    me: PeerId
    outbox_of: Callable[[PeerId], Outbox]
    is_with_all: Callable[[Numbers], None]


class StepSums:
    """Emptied when the step is taken."""

    def __init__(self, role: SumRole) -> None:
        self._role = role
        self._beside: tuple[PeerId, ...] = ()
        self._sums: dict[tuple[PeerId, Numbers], bytes] = {}
        self._deliveries: dict[Numbers, SumDelivery] = {}

    @property
    def held_bytes(self) -> int:
        """Of all sums that are here."""
        return sum(map(len, self._sums.values()))

    @property
    def _fellows(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer in self._beside if peer != self._role.me)

    def is_fellow(self, peer: PeerId) -> bool:
        """Whether it serves the stage as far as the owner has said."""
        return peer in self._fellows

    def served_by(self, peers: tuple[PeerId, ...]) -> None:
        """The owner says who serves the stage, ourselves among them."""
        self._beside = peers
        for numbers, delivery in self._deliveries.items():
            self._deliveries[numbers] = sum_delivery.served_by(delivery, peers)

    def clear(self) -> None:
        """Nothing of the step counts any more, or it is taken."""
        self._sums.clear()
        self._deliveries.clear()

    def forget_own(self) -> None:
        """Ours is begun again; what fellows have brought still counts."""
        self._sums = {key: data for key, data in self._sums.items() if key[0] != self._role.me}
        self._deliveries.clear()

    def take(self, sender: PeerId, numbers: Numbers, data: bytes) -> None:
        """A fellow's sum, which was checked, instead of one that it brought before."""
        self._sums = {key: kept for key, kept in self._sums.items() if key[0] != sender}
        self._sums[sender, numbers] = data

    def of(self, parts: Sequence[SyncedPart]) -> list[bytes]:
        """These sums, in this order.

        Raises:
            LocalProtocolError: one of them is not here.
        """
        keys = [(part.peer, part.numbers) for part in parts]
        lacking = [short(peer) for peer, numbers in keys if (peer, numbers) not in self._sums]
        if lacking:
            raise LocalProtocolError(f"the sums of {', '.join(lacking)} are not here", "all sums of the stage")
        return [self._sums[key] for key in keys]

    def has_own(self, numbers: Numbers) -> bool:
        """Whether ours over these is here."""
        return (self._role.me, numbers) in self._sums

    def put_own(self, numbers: Numbers, data: bytes) -> None:
        """Ours over these, which was judged as fellows judge it."""
        self._sums[self._role.me, numbers] = data

    def deliver(self, parcel: SyncedSum, nursery: trio.Nursery) -> None:
        """Bring ours, which is here, to all who lack it: at each word of the owner that it is wanted."""
        numbers, now_s = parcel.numbers, trio.current_time()
        before = self._deliveries.get(numbers) or SumDelivery(now_s)
        self._deliveries[numbers], to = sum_delivery.asked(before, self._fellows, now_s)
        for peer in to:
            posted = self._role.outbox_of(peer).put(parcel, self._sums[self._role.me, numbers])
            nursery.start_soon(self._brought, peer, numbers, posted)
        self._say_if_with_all(numbers)

    async def _brought(self, peer: PeerId, numbers: Numbers, posted: Posted) -> None:
        """Until a fellow has it, or refuses it; where it does the owner's next word brings it there again."""
        answer = await posted.wait()
        delivery = self._deliveries.get(numbers)
        if delivery is None or self._sums.get((self._role.me, numbers)) is not posted.data:
            return
        if answer is None:
            self._deliveries[numbers] = sum_delivery.unanswered(delivery, peer)
            return
        refusal = answer.refusal if answer.reason else None
        delivery = self._deliveries[numbers] = sum_delivery.answered(delivery, peer, refusal)
        if peer in delivery.given_up:
            log.warning("synced_sum_disputed", by=short(peer), tries=sum_delivery.SUM_TRIES, reason=answer.reason)
        self._say_if_with_all(numbers)

    def _say_if_with_all(self, numbers: Numbers) -> None:
        if sum_delivery.is_with_all(self._deliveries[numbers], self._fellows, trio.current_time()):
            self._role.is_with_all(numbers)
