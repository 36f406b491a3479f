"""Which donor is asked for which stripe of a state: a pure core.

A stripe is a run of chunks that is asked for in one request. Each donor gets the next stripe that is not asked for. When none is
left, an idle donor gets one that another donor is slow with, so that the slowest does not decide when a download ends. A donor
that lies is not asked again; one that fails is asked a few times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId

MAX_FAILURES: Final = 3
"""Failures after which a donor is dropped. It may restart or lose its link for a moment; more would cost too much time."""

ASKERS_AT_MOST: Final = 2
"""The most donors of one stripe at a time: a third copy would only load the joiner's own link."""

LAST_ARE: Final = 4
"""The last stripes are shorter by this factor, so that donors end together."""

SMOOTHING: Final = 0.5
"""Weight of the latest stripe in the learned time: links change within seconds."""


def lay_out(num_chunks: int, chunks_each: int, num_at_once: int) -> tuple[range, ...]:
    """The stripes of a state, in the order in which they are asked for. They have full length, except short ones for the last
    `num_at_once` requests, at most half of the state.
    """
    num_long = max(num_chunks - num_at_once * chunks_each, -(-num_chunks // 2)) // chunks_each
    short = max(1, chunks_each // LAST_ARE)
    begins = [*range(0, num_long * chunks_each, chunks_each), *range(num_long * chunks_each, num_chunks, short)]
    return tuple(range(begin, stop) for begin, stop in zip(begins, (*begins[1:], num_chunks), strict=True))


@dataclass(frozen=True, slots=True)
class StripeRequest:
    """A request in flight: its donor, its stripe, and its start (monotonic)."""

    donor: PeerId
    stripe: int
    since_s: float


@dataclass(frozen=True, slots=True)
class Striping:
    """The state of a download.

    Attributes:
        done: stripes that are here and verified.
        stripe_s: learned time of each donor for a stripe.
        dropped: donors that are not asked again, with the reason.
    """

    num_stripes: int
    done: frozenset[int] = frozenset()
    asked: tuple[StripeRequest, ...] = ()
    stripe_s: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    failures: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    dropped: Mapping[PeerId, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_done(self) -> bool:
        """Whether all stripes are here."""
        return len(self.done) == self.num_stripes


def next_stripe(state: Striping, donor: PeerId, now_s: float) -> int | None:
    """The stripe to ask this donor for; None if there is none now. Call again when something has changed, or a moment later."""
    if donor in state.dropped:
        return None
    taken = state.done | {asked.stripe for asked in state.asked}
    if len(taken) < state.num_stripes:
        return next(stripe for stripe in range(state.num_stripes) if stripe not in taken)
    return _slow_one(state, donor, now_s)


def _slow_one(state: Striping, donor: PeerId, now_s: float) -> int | None:
    """The stripe that this donor would likely deliver before those asked for it, the latest one if there are several; None if
    none.
    """
    own_s = state.stripe_s.get(donor)
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
    """How much longer a request will take. A late one is assumed to be half done."""
    waited_s = now_s - asked.since_s
    stripe_s = state.stripe_s.get(asked.donor, 0.0)
    return max(stripe_s - waited_s, waited_s)


def ask(state: Striping, donor: PeerId, stripe: int, now_s: float) -> Striping:
    """A donor was asked."""
    return replace(state, asked=(*state.asked, StripeRequest(donor, stripe, now_s)))


def arrived(state: Striping, donor: PeerId, stripe: int, now_s: float) -> Striping:
    """A stripe is here and verified; other requests for it are not needed any more."""
    since_s = next((a.since_s for a in state.asked if (a.donor, a.stripe) == (donor, stripe)), now_s)
    took_s = now_s - since_s
    before_s = state.stripe_s.get(donor, took_s)
    stripe_s = {**state.stripe_s, donor: before_s + SMOOTHING * (took_s - before_s)}
    return replace(
        state,
        done=state.done | {stripe},
        asked=tuple(asked for asked in state.asked if asked.stripe != stripe),
        stripe_s=MappingProxyType(stripe_s),
        failures=MappingProxyType({peer: number for peer, number in state.failures.items() if peer != donor}),
    )


def found(state: Striping, stripe: int) -> Striping:
    """A stripe was here already."""
    return replace(state, done=state.done | {stripe})


def failed(state: Striping, donor: PeerId, stripe: int, reason: str, *, is_lie: bool) -> Striping:
    """A donor did not deliver a stripe, or (`is_lie`) sent other bytes than the root names."""
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
