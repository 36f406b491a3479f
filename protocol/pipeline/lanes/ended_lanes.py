"""What a keeper remembers of lanes that ended: whose it is to bring each stage's part into the round, and who was given it. Pure.

Who lost its seat by its death had a second copy of its stage with a neighbour, and that one gives it to somebody who holds the stage.
Whoever is given such a part was not in that lane: it asks the keeper, which decided how the lane ended, and which tells one only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.pipeline.lanes.lane_machine import Dissolve
from protocol.pipeline.messages.lane_messages import LaneClaim

REMEMBERED: Final = 64
"""Lanes: what they left is given within seconds of their end, and is of one round."""


@dataclass(frozen=True, slots=True)
class EndedLane:
    """Its last members, by stage, those that were lost with them, and how it ended."""

    members: tuple[PeerId, ...]
    end: Dissolve


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the keeper remembers after a claim, and why it is refused; empty where it is not."""

    state: EndedLanes
    reason: str


@dataclass(frozen=True)
class EndedLanes:
    """Attributes:
    ended: how each lane ended, by its number, the oldest first.
    given: who was given a stage's part of a lane, by both numbers.
    """

    ended: Mapping[int, EndedLane] = field(default_factory=lambda: MappingProxyType({}))
    given: Mapping[tuple[int, int], PeerId] = field(default_factory=lambda: MappingProxyType({}))


def has_ended(state: EndedLanes, number: int, lane: EndedLane) -> EndedLanes:
    """A lane that was kept here is no more."""
    ended = {other: order for other, order in state.ended.items() if other != number} | {number: lane}
    kept = dict(list(ended.items())[-REMEMBERED:])
    given = {place: peer for place, peer in state.given.items() if place[0] in kept}
    return replace(state, ended=MappingProxyType(kept), given=MappingProxyType(given))


def claimed(state: EndedLanes, asker: PeerId, claim: LaneClaim) -> Claimed:
    """Somebody was given a stage's part of a lane, and asks whether that was the giver's to give."""
    reason = _why_not(state, asker, claim)
    if reason:
        return Claimed(state, reason)
    given = MappingProxyType({**state.given, (claim.lane, claim.stage): asker})
    return Claimed(replace(state, given=given), "")


def _why_not(state: EndedLanes, asker: PeerId, claim: LaneClaim) -> str:
    lane = state.ended.get(claim.lane)
    if lane is None:
        return f"a part of lane {claim.lane}, which did not end here"
    end = lane.end
    told = f"{claim.tokens} tokens of round {claim.at.round + 1}"
    counted = f"{end.tokens} tokens of round {end.at.round + 1}"
    if claim.at.round != end.at.round or claim.tokens != end.tokens:
        return f"{told} of lane {claim.lane}, which ended with {counted}"
    holder = end.holders[claim.stage] if claim.stage < len(end.holders) else None
    if holder != claim.giver:
        whose = f"{short(holder)}'s to bring" if holder is not None else "nobody's"
        return f"stage {claim.stage} of lane {claim.lane} from {short(claim.giver)}: it is {whose}"
    if lane.members[claim.stage] == claim.giver:
        return (
            f"stage {claim.stage} of lane {claim.lane} from {short(claim.giver)}, which served it and brings it itself"
        )
    before = state.given.get((claim.lane, claim.stage), asker)
    if before != asker:
        return f"stage {claim.stage} of lane {claim.lane} once more: {short(before)} was given it"
    return ""
