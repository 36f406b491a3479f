"""How a replica's sum comes to all others of its stage: to whom it is brought, and when the owner is told that it is with all.

The owner asks for a sum again until it hears that all have it. To who has it already, or is being brought it, it is not brought once
more. A fellow that is not at this point yet, or has not heard yet who its fellows are, refuses it for now: that says nothing against
the sum, and it is brought again at the owner's next word, for a while. Who is behind for longer takes this step from the others when
it is there, as a joiner does, and the rest go on. Ours was judged here as fellows judge it before it is brought to anybody. So whoever
refuses it for what is in it is wrong, or the way to it changes bytes: it is brought again, and that fellow is gone without as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.pipeline.messages.lane_messages import Refusal

SUM_TRIES: Final = 3
"""Who refuses a good sum so often for what is in it goes on doing so: a way that changes bytes is not that persistent."""

LAGGARD_WITHIN_S: Final = 20.0
"""From the owner's first word on a fellow that is behind is waited for so long."""


@dataclass(frozen=True)
class SumDelivery:
    """One sum of ours.

    Attributes:
        since_s: when it was asked for first, monotonic.
        under_way: fellows that it is being brought to.
        taken: those that have it.
        behind: those that refused it for where they are.
        disputed: those that refused it for what is in it, once for each time.
    """

    since_s: float
    under_way: frozenset[PeerId] = frozenset()
    taken: frozenset[PeerId] = frozenset()
    behind: frozenset[PeerId] = frozenset()
    disputed: tuple[PeerId, ...] = ()

    @property
    def given_up(self) -> frozenset[PeerId]:
        """Those that will not take it, however often it is brought."""
        return frozenset(peer for peer in self.disputed if self.disputed.count(peer) >= SUM_TRIES)


def asked(state: SumDelivery, fellows: Iterable[PeerId], now_s: float) -> tuple[SumDelivery, tuple[PeerId, ...]]:
    """The owner wants it with these; to whom it is to be brought now."""
    left = frozenset(fellows) - state.taken - state.under_way - state.given_up
    if _is_overdue(state, now_s):
        left -= state.behind
    return replace(state, under_way=state.under_way | left, behind=state.behind - left), tuple(sorted(left))


def answered(state: SumDelivery, peer: PeerId, refusal: Refusal | None) -> SumDelivery:
    """A fellow has taken it, or refused it."""
    state = replace(state, under_way=state.under_way - {peer})
    if refusal is None:
        return replace(state, taken=state.taken | {peer}, behind=state.behind - {peer})
    if refusal is Refusal.CONTENT:
        return replace(state, disputed=(*state.disputed, peer))
    return replace(state, behind=state.behind | {peer})


def unanswered(state: SumDelivery, peer: PeerId) -> SumDelivery:
    """The way to a fellow broke for good; whether it was taken is not known."""
    return replace(state, under_way=state.under_way - {peer})


def served_by(state: SumDelivery, fellows: Iterable[PeerId]) -> SumDelivery:
    """The stage is served by these now: who has left and comes again has nothing."""
    stay = frozenset(fellows)
    disputed = tuple(peer for peer in state.disputed if peer in stay)
    return replace(state, taken=state.taken & stay, behind=state.behind & stay, disputed=disputed)


def is_with_all(state: SumDelivery, fellows: Iterable[PeerId], now_s: float) -> bool:
    """Whether all have it, but for who was behind for too long or will not take it."""
    left = frozenset(fellows) - state.taken - state.given_up
    return not left or (left <= state.behind and _is_overdue(state, now_s))


def _is_overdue(state: SumDelivery, now_s: float) -> bool:
    return now_s - state.since_s >= LAGGARD_WITHIN_S
