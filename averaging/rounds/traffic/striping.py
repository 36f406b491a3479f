"""Which donor is asked for which stripe of a state: a pure core.

A stripe is a run of chunks that is asked for in one request. Each donor gets the next stripe that is not asked for. When none is
left, an idle donor gets one that another donor is slow with, so that the slowest does not decide when a download ends. A donor
that lies is not asked again; one that fails is asked a few times.

Some donors are newcomers that fetch the same state, and have only some stripes so far. The others are asked first for what no
newcomer has, and each newcomer takes the stripes in an order of its own. So many newcomers soon have different stripes, and give
them to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId

MAX_FAILURES: Final = 3
"""Failures after which a donor is dropped. It may restart or lose its link for a moment; more would cost too much time."""

ASKERS_AT_MOST: Final = 2
"""The most donors of one stripe at a time: a third copy would only load the joiner's own link."""

LAST_ARE: Final = 4
"""The last stripes are shorter by this factor, so that donors end together."""

NUM_ARRIVALS: Final = 16
AHEAD_S: Final = 3.0
LEAST_ASKED: Final = 4
"""Requests in flight: for as many seconds as AHEAD_S, by the newest NUM_ARRIVALS stripes, and never fewer than LEAST_ASKED."""

REFUSED_S: Final = 0.5
MOST_REFUSED_S: Final = 2.0
"""How long a donor that had no time is left alone: each refusal costs it a connection."""

SMOOTHING: Final = 0.5
"""Weight of the latest stripe in the learned time: links change within seconds."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a state is cut.

    Attributes:
        stripes: the chunks of each stripe, in the order in which they are asked for.
        group: chunks of a group, which is the least that a newcomer tells that it has. Each stripe is a number of whole groups, but
            for the end of the state.
    """

    stripes: tuple[range, ...]
    group: int

    def held(self, here: Sequence[int]) -> int:
        """The stripes, a bit each, that a peer has whole. `here`: for each group, not 0 if the peer has it; missing ones are not
        there.
        """
        held = 0
        for number, chunks in enumerate(self.stripes):
            groups = range(chunks.start // self.group, -(-chunks.stop // self.group))
            if groups.stop <= len(here) and all(here[group] for group in groups):
                held |= 1 << number
        return held


def lay_out(num_chunks: int, chunks_each: int, num_at_once: int, order: Callable[[int], bytes] | None = None) -> Layout:
    """Cut a state into stripes. They have full length, except short ones for the last `num_at_once` requests, at most half of the
    state.

    Args:
        order: sort key of a stripe by its first chunk, so that each newcomer begins elsewhere; None for ascending order.
    """
    short = max(1, chunks_each // LAST_ARE)
    each = chunks_each // short * short
    num_long = max(num_chunks - num_at_once * each, -(-num_chunks // 2)) // each
    cuts = [*range(0, num_long * each, each), *range(num_long * each, num_chunks, short)]
    stripes = [range(begin, stop) for begin, stop in zip(cuts, (*cuts[1:], num_chunks), strict=True)]
    if order is not None:
        long, last = stripes[:num_long], stripes[num_long:]
        stripes = [stripe for part in (long, last) for stripe in sorted(part, key=lambda each: order(each.start))]
    return Layout(tuple(stripes), short)


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
        done: stripes that are here and verified, a bit each.
        stripe_s: learned time of each donor for a stripe.
        dropped: donors that are not asked again, with the reason.
        holds: stripes of donors that have only some of them, a bit each. All others have the whole state.
        refused: how often in a row a donor had no time, and until when it is left alone.
        arrived_s: when the newest stripes came.
    """

    num_stripes: int
    done: int = 0
    asked: tuple[StripeRequest, ...] = ()
    stripe_s: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    failures: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    dropped: Mapping[PeerId, str] = field(default_factory=lambda: MappingProxyType({}))
    holds: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    refused: Mapping[PeerId, tuple[int, float]] = field(default_factory=lambda: MappingProxyType({}))
    arrived_s: tuple[float, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether all stripes are here."""
        return self.done == self.everything

    @property
    def everything(self) -> int:
        """All stripes, a bit each."""
        return (1 << self.num_stripes) - 1

    def held_by(self, donor: PeerId) -> int:
        """The stripes of a donor, a bit each."""
        return self.holds.get(donor, self.everything)


def next_stripe(state: Striping, donor: PeerId, now_s: float) -> int | None:
    """The stripe to ask this donor for; None if there is none now. Call again when something has changed, or a moment later."""
    is_resting = now_s < state.refused.get(donor, (0, 0.0))[1]
    if donor in state.dropped or is_resting or len(state.asked) >= _most_asked(state, now_s):
        return None
    taken = state.done
    for asked in state.asked:
        taken |= 1 << asked.stripe
    free = state.held_by(donor) & ~taken
    if not free:
        is_end = not state.everything & ~taken
        return _slow_one(state, donor, now_s) if is_end else None
    if donor not in state.holds:
        for held in state.holds.values():
            scarce = free & ~held
            if not scarce:
                break
            free = scarce
    return (free & -free).bit_length() - 1


def _most_asked(state: Striping, now_s: float) -> float:
    """The most requests in flight. More than our line brings in AHEAD_S would only make each of them late."""
    if len(state.arrived_s) < NUM_ARRIVALS:
        return inf
    per_s = NUM_ARRIVALS / max(now_s - state.arrived_s[0], 1e-3)
    return max(LEAST_ASKED, AHEAD_S * per_s)


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
        if not state.held_by(donor) >> stripe & 1:
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
        done=state.done | 1 << stripe,
        asked=tuple(asked for asked in state.asked if asked.stripe != stripe),
        stripe_s=MappingProxyType(stripe_s),
        failures=MappingProxyType({peer: number for peer, number in state.failures.items() if peer != donor}),
        refused=MappingProxyType({peer: until for peer, until in state.refused.items() if peer != donor}),
        arrived_s=(*state.arrived_s, now_s)[-NUM_ARRIVALS:],
    )


def found(state: Striping, stripe: int) -> Striping:
    """A stripe was here already."""
    return replace(state, done=state.done | 1 << stripe)


def learned(state: Striping, donor: PeerId, held: int) -> Striping:
    """A newcomer that fetches the same state has these stripes, a bit each."""
    return replace(state, holds=MappingProxyType({**state.holds, donor: held}))


def refused(state: Striping, donor: PeerId, stripe: int, now_s: float) -> Striping:
    """A donor serves too many others. It is left alone for a while, twice as long each time."""
    times = state.refused.get(donor, (0, 0.0))[0]
    until_s = now_s + min(REFUSED_S * 2.0**times, MOST_REFUSED_S)
    return replace(
        state,
        asked=tuple(asked for asked in state.asked if (asked.donor, asked.stripe) != (donor, stripe)),
        refused=MappingProxyType({**state.refused, donor: (times + 1, until_s)}),
    )


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
