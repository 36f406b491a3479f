"""Which donor is asked for which stripe of a state: a pure core.

A stripe is a run of chunks that is asked for in one request. Each donor is given the next stripe that nobody was asked for. When
there is none left, a donor that waits is given one that another is slow with, so that the slowest does not decide when a download
ends. A donor that lies is asked nothing more; one that fails is asked a few times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId

MAX_FAILURES: Final = 3
"""A donor may restart or lose its link for a moment; more than that costs the others' time."""

ASKERS_AT_MOST: Final = 2
"""Donors of one stripe at a time: a third copy would only take from the joiner's own link."""

LAST_ARE: Final = 4
"""The last stripes are so many times shorter: donors end together when what is left to bring is short."""

SMOOTHING: Final = 0.5
"""Of the last stripe's time in the learned one: links change within seconds."""


def lay_out(num_chunks: int, chunks_each: int, num_at_once: int) -> tuple[range, ...]:
    """The stripes of a state, in the order in which they are asked for: as long as they should be, and short ones for the last that
    `num_at_once` requests bring, at most half of the state.
    """
    num_long = max(num_chunks - num_at_once * chunks_each, -(-num_chunks // 2)) // chunks_each
    short = max(1, chunks_each // LAST_ARE)
    begins = [*range(0, num_long * chunks_each, chunks_each), *range(num_long * chunks_each, num_chunks, short)]
    return tuple(range(begin, stop) for begin, stop in zip(begins, (*begins[1:], num_chunks), strict=True))


@dataclass(frozen=True, slots=True)
class StripeRequest:
    """A request on its way: whom, for which stripe, since when (monotonic)."""

    donor: PeerId
    stripe: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Striping:
    """A download as it stands.

    Attributes:
        done: stripes that are here and verified.
        pace_s: how long a donor takes for a stripe, learned.
        dropped: donors that are asked nothing more, and why.
    """

    num_stripes: int
    done: frozenset[int] = frozenset()
    asked: tuple[StripeRequest, ...] = ()
    pace_s: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    failures: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    dropped: Mapping[PeerId, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_done(self) -> bool:
        """Whether all stripes are here."""
        return len(self.done) == self.num_stripes


def next_stripe(state: Striping, donor: PeerId, now_s: float) -> int | None:
    """What to ask this donor for, None when there is nothing for it now; ask again when something has changed, or a moment later."""
    if donor in state.dropped:
        return None
    taken = state.done | {asked.stripe for asked in state.asked}
    if len(taken) < state.num_stripes:
        return next(stripe for stripe in range(state.num_stripes) if stripe not in taken)
    return _slow_one(state, donor, now_s)


def _slow_one(state: Striping, donor: PeerId, now_s: float) -> int | None:
    """A stripe that this donor would likely bring before whoever was asked for it: the latest of these, None where there is none."""
    own_s = state.pace_s.get(donor)
    if own_s is None:
        return None
    askers: dict[int, list[StripeRequest]] = {}
    for asked in state.asked:
        askers.setdefault(asked.stripe, []).append(asked)
    late: list[tuple[float, int]] = []
    for stripe, waiting in askers.items():
        if len(waiting) >= ASKERS_AT_MOST or any(asked.donor == donor for asked in waiting):
            continue
        left_s = min(_left_s(state, asked, now_s) for asked in waiting)
        if left_s > own_s:
            late.append((-left_s, stripe))
    return min(late)[1] if late else None


def _left_s(state: Striping, asked: StripeRequest, now_s: float) -> float:
    """How much longer a request will take. One that is over its time is taken to be in the middle: who is late comes later still."""
    waited_s = now_s - asked.since_s
    pace_s = state.pace_s.get(asked.donor, 0.0)
    return max(pace_s - waited_s, waited_s)


def ask(state: Striping, donor: PeerId, stripe: int, now_s: float) -> Striping:
    """A donor was asked."""
    return replace(state, asked=(*state.asked, StripeRequest(donor, stripe, now_s)))


def arrived(state: Striping, donor: PeerId, stripe: int, now_s: float) -> Striping:
    """A stripe is here and verified; what others were asked for the same is no longer wanted."""
    since_s = next((a.since_s for a in state.asked if (a.donor, a.stripe) == (donor, stripe)), now_s)
    took_s = now_s - since_s
    before_s = state.pace_s.get(donor, took_s)
    pace_s = {**state.pace_s, donor: before_s + SMOOTHING * (took_s - before_s)}
    return replace(
        state,
        done=state.done | {stripe},
        asked=tuple(asked for asked in state.asked if asked.stripe != stripe),
        pace_s=MappingProxyType(pace_s),
        failures=MappingProxyType({peer: number for peer, number in state.failures.items() if peer != donor}),
    )


def found(state: Striping, stripe: int) -> Striping:
    """A stripe was here already."""
    return replace(state, done=state.done | {stripe})


def failed(state: Striping, donor: PeerId, stripe: int, reason: str, *, is_lie: bool) -> Striping:
    """A donor did not bring a stripe, or (`is_lie`) brought other bytes than the root names."""
    number = state.failures.get(donor, 0) + 1
    dropped = dict(state.dropped)
    if is_lie or number >= MAX_FAILURES:
        dropped[donor] = reason
    return replace(
        state,
        asked=tuple(asked for asked in state.asked if (asked.donor, asked.stripe) != (donor, stripe)),
        failures=MappingProxyType({**state.failures, donor: number}),
        dropped=MappingProxyType(dropped),
    )
