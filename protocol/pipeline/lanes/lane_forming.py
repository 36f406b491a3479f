"""Who keeps the lanes of a run, and which peers make one. Pure: the same everywhere for who knows the same peers.

Lanes are kept by one holder of the first stage. Whoever serves no lane asks these holders, in an order that hangs on the run alone,
until one takes its word; so a keeper stays one for as long as it lives, also where who joins stands before it. Where nobody keeps
lanes the first of those who answer begins to. Its lanes end when it is gone: their members ask anew, and the next one forms lanes of
them.

A lane begins with a round, or soon after: in the middle of one it would hold up the others to its end. Who is left over is a spare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from protocol.errors import LocalProtocolError
from protocol.frozen import replace
from protocol.ids import CommitId, PeerId
from protocol.pipeline.stage_machine import LaneConfig, Point

SPARE_FRESH_S: Final = 4.0
"""A spare says so each second; who was not heard for so long serves a lane, or is gone."""

LATE_SHARE: Final = 0.25
"""Of a round's inner steps, that others may have done when a lane begins."""

ENDS_WITHIN_S: Final = 600.0
"""A round whose lanes have all done their part is not begun anew by another lane: its commit comes without that. The exchange of a
large stage takes minutes; where it takes longer than this, the lanes and their keeper do not count alike.
"""

UNEVEN_AFTER_S: Final = 15.0
"""Stages that stand before different rounds: some are catching up. After so long they are not, and the lane begins where each stands:
the work of a round was lost at some.
"""

_KEEPER_BITS: Final = 18
_COUNTER_BITS: Final = 14
_DOMAIN: Final = b"potluck lane keeper 1"


def keeper_order(genesis: CommitId, holders: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The holders of the first stage, each where it stands as a keeper of lanes.

    Args:
        genesis: of the run's spine.
    """
    return tuple(sorted(set(holders), key=lambda peer: sha256(_DOMAIN + genesis + peer.encode()).digest()))


def may_begin_keeping(me: PeerId, order: Iterable[PeerId], gone: Collection[PeerId]) -> bool:
    """Whether we begin to keep lanes, after all others said that they keep none, or did not answer (`gone`)."""
    return next((peer for peer in order if peer not in gone), None) == me


def lane_number(keeper: PeerId, session: int, counter: int) -> int:
    """Of a lane: 32 bits, of the keeper's process and of how many lanes it has begun before this one.

    Raises:
        LocalProtocolError: more lanes than one process can count.
    """
    if not 0 <= counter < 1 << _COUNTER_BITS:
        raise LocalProtocolError(f"lane {counter} of one keeper", f"at most {(1 << _COUNTER_BITS) - 1}")
    drawn = sha256(_DOMAIN + b" number " + keeper.encode() + session.to_bytes(8, "little")).digest()
    return int.from_bytes(drawn[:4], "little") % (1 << _KEEPER_BITS) << _COUNTER_BITS | counter


@dataclass(frozen=True, slots=True)
class Spare:
    """Who serves no lane, and could serve one stage; `index` is the round that it stands before."""

    stage: int
    index: int
    heard_s: float


@dataclass(frozen=True)
class FormingState:
    """What a keeper knows of who is free.

    Attributes:
        wanting_since_s: since when there is somebody for every stage and no lane of them; None where that is not so.
    """

    config: LaneConfig
    spares: Mapping[PeerId, Spare] = field(default_factory=lambda: MappingProxyType({}))
    wanting_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Formed:
    """What came of a look: lanes to begin, each with a member a stage, and why there are none."""

    state: FormingState
    lanes: tuple[tuple[PeerId, ...], ...] = ()
    reason: str = ""


def heard(state: FormingState, peer: PeerId, spare: Spare) -> FormingState:
    """A peer says that it serves no lane."""
    return replace(state, spares=MappingProxyType({**state.spares, peer: spare}))


def without(state: FormingState, peers: Collection[PeerId]) -> FormingState:
    """These serve one, or are gone."""
    return replace(state, spares=MappingProxyType({p: s for p, s in state.spares.items() if p not in peers}))


def spares_listed(state: FormingState, now_s: float) -> tuple[tuple[PeerId, frozenset[int]], ...]:
    """For the lanes that are kept: who could take a place in one, and at which stage (`lane.SparesListed`)."""
    return tuple((peer, frozenset([spare.stage])) for peer, spare in sorted(_fresh(state, now_s).items()))


def decide(state: FormingState, round_: int, running: Collection[Point], now_s: float) -> Formed:
    """Form as many lanes as there are peers for.

    Args:
        round_: that the keeper's own stage stands before.
        running: where the lanes stand that are kept.
    """
    fresh, config = _fresh(state, now_s), state.config
    free = [sorted(p for p, s in fresh.items() if s.stage == stage) for stage in range(config.num_stages)]
    lacking = [stage for stage, peers in enumerate(free) if not peers]
    if lacking:
        reason = f"nobody is free for stage {', '.join(map(str, lacking))}"
        return Formed(replace(state, wanting_since_s=None), reason=reason)
    since_s = now_s if state.wanting_since_s is None else state.wanting_since_s
    state = replace(state, wanting_since_s=since_s)
    if any(at.round == round_ and at.step > LATE_SHARE * config.inner_steps for at in running):
        return Formed(state, reason=f"round {round_ + 1} is under way: a lane begins with the next one")
    if any(at.round > round_ for at in running) and now_s - since_s < ENDS_WITHIN_S:
        return Formed(state, reason=f"round {round_ + 1} is about to end: a lane begins with the next one")
    even = [[peer for peer in peers if fresh[peer].index == round_] for peers in free]
    if not all(even):
        if now_s - since_s < UNEVEN_AFTER_S:
            behind = [stage for stage, peers in enumerate(even) if not peers]
            return Formed(state, reason=f"stages {behind} are not at round {round_ + 1} yet")
        even = free
    lanes = tuple(zip(*even, strict=False))
    taken = {peer for members in lanes for peer in members}
    return Formed(without(replace(state, wanting_since_s=None), taken), lanes)


def _fresh(state: FormingState, now_s: float) -> dict[PeerId, Spare]:
    return {peer: spare for peer, spare in state.spares.items() if now_s - spare.heard_s <= SPARE_FRESH_S}
