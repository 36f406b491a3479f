"""Decides which peer keeps the lanes of a run, and which peers form a lane. Pure; peers with the same view decide alike.

One holder of the first stage keeps the lanes. A peer without a lane asks these holders, in an order that depends on the run only,
until one accepts its announcement. So a keeper stays the keeper while it lives, even if a peer that joins comes first in the
order. If no peer keeps lanes, the first holder that answers becomes the keeper. When a keeper is gone its lanes end, their
members ask again, and the next keeper forms lanes of them.

A lane begins with a round, or soon after it: in the middle of a round it would delay the others at its end. Peers that are left
over are spares.
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
"""A spare announces itself every second. After this much silence it serves a lane or is gone."""

LATE_SHARE: Final = 0.25
"""Share of a round's inner steps that other lanes may have done when a lane begins."""

ENDS_WITHIN_S: Final = 600.0
"""After all lanes have done their part of a round, how long no new lane begins with that round: its commit is expected without
one. The exchange of a large stage takes minutes. If it takes longer than this, the lanes and their keeper count rounds
differently.
"""

UNEVEN_AFTER_S: Final = 15.0
"""Stages at different rounds may still be catching up. After this time they are not: some lost the work of a round, and the lane
begins where each stage is.
"""

_KEEPER_BITS: Final = 18
_COUNTER_BITS: Final = 14
_DOMAIN: Final = b"potluck lane keeper 1"


def keeper_order(genesis: CommitId, holders: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The holders of the first stage, in their order as keepers of lanes.

    Args:
        genesis: of the run's spine.
    """
    return tuple(sorted(set(holders), key=lambda peer: sha256(_DOMAIN + genesis + peer.encode()).digest()))


def may_begin_keeping(me: PeerId, order: Iterable[PeerId], gone: Collection[PeerId]) -> bool:
    """Whether to become the keeper, after all others replied that they keep no lanes or did not answer (`gone`)."""
    return next((peer for peer in order if peer not in gone), None) == me


def lane_number(keeper: PeerId, session: int, counter: int) -> int:
    """The number of a lane, 32 bits, from the keeper's process and the number of lanes that it has begun.

    Raises:
        LocalProtocolError: more lanes than one process can count.
    """
    if not 0 <= counter < 1 << _COUNTER_BITS:
        raise LocalProtocolError(f"lane {counter} of one keeper", f"at most {(1 << _COUNTER_BITS) - 1}")
    drawn = sha256(_DOMAIN + b" number " + keeper.encode() + session.to_bytes(8, "little")).digest()
    return int.from_bytes(drawn[:4], "little") % (1 << _KEEPER_BITS) << _COUNTER_BITS | counter


@dataclass(frozen=True, slots=True)
class Spare:
    """A peer that serves no lane, and could serve one stage. `index` is of its stage's newest commit."""

    stage: int
    index: int
    heard_s: float


@dataclass(frozen=True)
class FormingState:
    """A keeper's view of the free peers.

    Attributes:
        wanting_since_s: time since which every stage has a free peer but no lane was formed; None if that is not so.
    """

    config: LaneConfig
    spares: Mapping[PeerId, Spare] = field(default_factory=lambda: MappingProxyType({}))
    wanting_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Formed:
    """The decision: lanes to begin, each with one member per stage, and why there are none."""

    state: FormingState
    lanes: tuple[tuple[PeerId, ...], ...] = ()
    reason: str = ""


def heard(state: FormingState, peer: PeerId, spare: Spare) -> FormingState:
    """A peer announces that it serves no lane."""
    return replace(state, spares=MappingProxyType({**state.spares, peer: spare}))


def without(state: FormingState, peers: Collection[PeerId]) -> FormingState:
    """Remove peers that serve a lane or are gone."""
    return replace(state, spares=MappingProxyType({p: s for p, s in state.spares.items() if p not in peers}))


def spares_listed(state: FormingState, now_s: float) -> tuple[tuple[PeerId, frozenset[int]], ...]:
    """Candidates for seats in the running lanes, with their stage (`lane.SparesListed`)."""
    return tuple((peer, frozenset([spare.stage])) for peer, spare in sorted(_fresh(state, now_s).items()))


def decide(state: FormingState, round_: int, running: Collection[Point], now_s: float) -> Formed:
    """Form as many lanes as there are peers for.

    Args:
        round_: the next round of the keeper's own stage.
        running: the current points of the running lanes.
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
