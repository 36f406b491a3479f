"""How a replica's sum comes to all others of its stage: to whom it is brought, and when the owner is told that it is with all.

The owner asks for a sum again until it hears that all have it. To who has it already, or is being brought it, it is not brought once
more. A fellow that is not at this point yet, or has not heard yet who its fellows are, refuses it for now: that says nothing against
the sum, and it is brought again at the owner's next word, for a while. Who is behind for longer takes this step from the others when
it is there, as a joiner does, and the rest go on. A sum that is refused again and again for what is in it is no good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.pipeline.lane_messages import Refusal

SUM_TRIES: Final = 3
"""A sum that is refused so often for what is in it is no good: a way that changes bytes is not that persistent."""

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
        num_bad: refusals for what is in it.
    """

    since_s: float
    under_way: frozenset[PeerId] = frozenset()
    taken: frozenset[PeerId] = frozenset()
    behind: frozenset[PeerId] = frozenset()
    num_bad: int = 0

    @property
    def is_no_good(self) -> bool:
        """Whether who made it has to go."""
        return self.num_bad >= SUM_TRIES


def asked(state: SumDelivery, fellows: Iterable[PeerId], now_s: float) -> tuple[SumDelivery, tuple[PeerId, ...]]:
    """The owner wants it with these; to whom it is to be brought now."""
    left = frozenset(fellows) - state.taken - state.under_way
    if _is_overdue(state, now_s):
        left -= state.behind
    return replace(state, under_way=state.under_way | left, behind=state.behind - left), tuple(sorted(left))


def answered(state: SumDelivery, peer: PeerId, refusal: Refusal | None) -> SumDelivery:
    """A fellow has taken it, or refused it."""
    state = replace(state, under_way=state.under_way - {peer})
    if refusal is None:
        return replace(state, taken=state.taken | {peer}, behind=state.behind - {peer})
    if refusal is Refusal.CONTENT:
        return replace(state, num_bad=state.num_bad + 1)
    return replace(state, behind=state.behind | {peer})


def unanswered(state: SumDelivery, peer: PeerId) -> SumDelivery:
    """The way to a fellow broke for good; whether it was taken is not known."""
    return replace(state, under_way=state.under_way - {peer})


def served_by(state: SumDelivery, fellows: Iterable[PeerId]) -> SumDelivery:
    """The stage is served by these now: who has left and comes again has nothing."""
    stay = frozenset(fellows)
    return replace(state, taken=state.taken & stay, behind=state.behind & stay)


def is_with_all(state: SumDelivery, fellows: Iterable[PeerId], now_s: float) -> bool:
    """Whether all have it, but for who was behind for too long."""
    left = frozenset(fellows) - state.taken
    return not left or (left <= state.behind and _is_overdue(state, now_s))


def _is_overdue(state: SumDelivery, now_s: float) -> bool:
    return now_s - state.since_s >= LAGGARD_WITHIN_S
