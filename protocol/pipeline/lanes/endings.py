"""How lanes end: what counted, what was lost, and the last round.

How much of a lane's part of a round the commits of a stage count, whoever brought it. Pure.

What a keeper remembers of lanes that ended: whose it is to bring each stage's part into the round, and who was given it. Pure.

Who lost its seat by its death had a second copy of its stage with a neighbour, and that one gives it to somebody who holds the stage.
Whoever is given such a part was not in that lane: it asks the keeper, which decided how the lane ended, and which tells one only.

A stage that nobody holds any more: the run pauses, and says so, until somebody takes it. Pure.

A model without one of its stages computes nothing. What the others trained since the last commit goes into its round, as far as their
lanes had snapshots of it, and then they wait.

When a stage is done: the run's tokens are committed, and it has its last round, or will not have it any more. Pure.

All stages have the first one's rounds. One that lost its work of a round is behind, and its last round may never come: those who would
contribute to it are done, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from protocol.frozen import replace
from protocol.ids import PeerId, short
from protocol.pipeline.lanes.lane_machine import Dissolve
from protocol.pipeline.messages.lane_messages import LaneClaim
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.proposal import consumed_tokens


def counted_tokens(links: Iterable[ChainLink], lane: int, round_: int) -> int:
    """Of this lane's part of its round, in these commits of a stage: all of its tokens, or floor(tokens x covered chunks / all chunks)
    of each who brought it where slices are missing.
    """
    total = 0
    for record in (link.record for link in links):
        for entry in record.contributors if record is not None else ():
            for part in entry.lanes:
                if part.place == (lane, round_) and record is not None:
                    total += part.tokens * consumed_tokens(record, entry.peer) // max(1, entry.tokens)
    return total


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


PAUSED_AFTER_S: Final = 10.0
"""Without a holder: who restarts is away for some seconds, and at a run's start not everybody has been heard."""


def empty_since(before: Mapping[int, float], num_holders: Sequence[int], now_s: float) -> dict[int, float]:
    """Since when each stage without a live holder has none, monotonic seconds.

    Args:
        num_holders: live ones of each stage, as far as is known here.
    """
    return {stage: before.get(stage, now_s) for stage, count in enumerate(num_holders) if not count}


def paused_because(empty: Mapping[int, float], now_s: float) -> str:
    """Why the run stands still, in one sentence; empty while each stage has a holder, or has been without one for a moment only."""
    lost = [stage for stage, since_s in sorted(empty.items()) if now_s - since_s >= PAUSED_AFTER_S]
    if not lost:
        return ""
    which = f"stage {lost[0]}" if len(lost) == 1 else f"stages {', '.join(map(str, lost))}"
    state = (
        "its newest state that a peer or the host has"
        if len(lost) == 1
        else "their newest states that peers or the host have"
    )
    return f"the run pauses: nobody who is there holds {which}; it goes on from {state} as soon as somebody takes what is missing"


LAST_ROUND_WITHIN_S: Final = 20.0
"""For so long a stage that is a round behind the first one waits for its last round, once the run's tokens are committed."""


SPINE_TOLD_WITHIN_S: Final = 5.0
"""Of a commit that members of our lane go on from already."""


def is_after_the_end(
    *, own_tokens: int, total_tokens: int, spine: tuple[int, int] | None, round_: int, waited_s: float
) -> bool | None:
    """Whether the run had all its tokens before this round of lanes; None while that is to be heard.

    The last parameters are measured in a step that belongs to no round, and a stage with one replica would commit what it was given
    with it before it hears that the run is over. The first stage's commit that the lane goes on from is there; we hear of it soon.

    Args:
        own_tokens: of this stage's newest commit.
        total_tokens: of the run.
        spine: index and tokens of the first stage's newest commit that is known here, None where none is.
    """
    if own_tokens < total_tokens:
        return False
    if (spine is None or spine[0] < round_) and waited_s < SPINE_TOLD_WITHIN_S:
        return None
    return spine is not None and spine[1] >= total_tokens


@dataclass(frozen=True, slots=True)
class Ending:
    """Since when the run's tokens are committed, as far as is known here, monotonic seconds; None while they are not."""

    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class StageEnding:
    """What came of a look: whether the stage is done, and what of it is missing, in words; empty where nothing is."""

    state: Ending
    is_done: bool
    missing: str = ""


def decide(state: Ending, *, is_run_over: bool, has_last_round: bool, now_s: float) -> StageEnding:
    """Whether there is anything left to wait for.

    Args:
        is_run_over: the first stage's commits have all tokens of the run.
        has_last_round: no round of the first stage's is missing here.
    """
    if not is_run_over:
        return StageEnding(Ending(), is_done=False)
    if has_last_round:
        return StageEnding(state, is_done=True)
    since_s = now_s if state.since_s is None else state.since_s
    if now_s - since_s <= LAST_ROUND_WITHIN_S:
        return StageEnding(Ending(since_s), is_done=False)
    missing = f"the last round of this stage did not come within {LAST_ROUND_WITHIN_S:g} s of the run's end: it stays a round behind"
    return StageEnding(Ending(since_s), is_done=True, missing=missing)
