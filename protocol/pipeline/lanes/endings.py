"""How lanes and stages end: what counts, what is lost, and the last round. Pure.

Counting: how much of a lane's share of a round a stage's commits count, whichever peer contributed it.

Ended lanes: a keeper remembers which peer is to contribute each stage's share, and which peer received it. When a member dies,
the neighbour with the second copy of its stage gives it to a holder of that stage. The holder was not in that lane, so it asks
the keeper. The keeper decided how the lane ended, and confirms the share to one peer only.

Lost stages: a model without one of its stages computes nothing. So when a stage loses its last holder, the run pauses and says so
until a peer takes that stage. The other stages' work since the last commit goes into its round as far as their lanes have
snapshots of it.

Ending a stage: a stage is done when the run's tokens are committed and it has its last round, or will not get it. All stages
follow the first one's rounds. A stage that lost its work of a round is behind, and its last round may never come, because its
contributors are done, too.
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
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.schedule.proposal import consumed_tokens


def counted_tokens(links: Iterable[ChainLink], lane: int, round_: int) -> int:
    """Tokens of this lane's share that these commits of a stage count. That is all of its tokens or, for each contributor with
    missing slices, floor(tokens x covered chunks / all chunks).
    """
    total = 0
    for record in (link.record for link in links):
        for entry in record.contributors if record is not None else ():
            for part in entry.lanes:
                if part.place == (lane, round_) and record is not None:
                    total += part.tokens * consumed_tokens(record, entry.peer) // max(1, entry.tokens)
    return total


REMEMBERED: Final = 64
"""Number of ended lanes remembered. Their shares are given within seconds of their end, and belong to one round."""


@dataclass(frozen=True, slots=True)
class EndedLane:
    """The last members of a lane by stage, including the lost ones, and how it ended."""

    members: tuple[PeerId, ...]
    end: Dissolve


@dataclass(frozen=True, slots=True)
class Claimed:
    """The state after a claim, and why the claim is refused; empty if it is not."""

    state: EndedLanes
    reason: str


@dataclass(frozen=True)
class EndedLanes:
    """The lanes that ended here.

    Attributes:
        ended: how each lane ended, by lane number, oldest first.
        given: the peer that received a stage's share of a lane, by (lane, stage).
    """

    ended: Mapping[int, EndedLane] = field(default_factory=lambda: MappingProxyType({}))
    given: Mapping[tuple[int, int], PeerId] = field(default_factory=lambda: MappingProxyType({}))


def has_ended(state: EndedLanes, number: int, lane: EndedLane) -> EndedLanes:
    """Add a lane that ended here."""
    ended = {other: order for other, order in state.ended.items() if other != number} | {number: lane}
    kept = dict(list(ended.items())[-REMEMBERED:])
    given = {place: peer for place, peer in state.given.items() if place[0] in kept}
    return replace(state, ended=MappingProxyType(kept), given=MappingProxyType(given))


def claimed(state: EndedLanes, asker: PeerId, claim: LaneClaim) -> Claimed:
    """Decide a claim: a peer received a stage's share of a lane, and asks whether it was the giver's to give."""
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
    claimed_tokens = f"{claim.tokens} tokens of round {claim.at.round + 1}"
    counted = f"{end.tokens} tokens of round {end.at.round + 1}"
    if claim.at.round != end.at.round or claim.tokens != end.tokens:
        return f"{claimed_tokens} of lane {claim.lane}, which ended with {counted}"
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
"""How long a stage may be without a holder. A restarting peer is away for some seconds, and at a run's start not every peer has
been heard.
"""


def empty_since(before: Mapping[int, float], num_holders: Sequence[int], now_s: float) -> dict[int, float]:
    """Time since which each stage without a live holder has had none, monotonic seconds.

    Args:
        num_holders: number of live holders of each stage, as far as is known here.
    """
    return {stage: before.get(stage, now_s) for stage, count in enumerate(num_holders) if not count}


def paused_because(empty: Mapping[int, float], now_s: float) -> str:
    """Why the run is paused, in one sentence; empty while each stage has a holder or lost its last one only just now."""
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
"""How long a stage that is one round behind the first one waits for its last round, once the run's tokens are committed."""


SPINE_REPORTED_WITHIN_S: Final = 5.0
"""How long it takes to hear of a commit from which members of our lane already continue."""


def is_after_the_end(
    *, own_tokens: int, total_tokens: int, spine: tuple[int, int] | None, round_: int, waited_s: float
) -> bool | None:
    """Whether the run had all its tokens before this round of lanes; None while that is still unknown.

    The last parameters are measured in a step that belongs to no round. A stage with one replica would commit its share of that
    step before it hears that the run is over. The first stage's commit that the lane continues from exists, and this peer hears
    of it soon.

    Args:
        own_tokens: of this stage's newest commit.
        total_tokens: of the run.
        spine: index and tokens of the newest known commit of the first stage, None if none is known.
    """
    if own_tokens < total_tokens:
        return False
    if (spine is None or spine[0] < round_) and waited_s < SPINE_REPORTED_WITHIN_S:
        return None
    return spine is not None and spine[1] >= total_tokens


@dataclass(frozen=True, slots=True)
class Ending:
    """Time since which the run's tokens are known to be committed, monotonic seconds; None while they are not."""

    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class StageEnding:
    """The decision: whether the stage is done, and what of it is missing; empty if nothing is."""

    state: Ending
    is_done: bool
    missing: str = ""


def decide(state: Ending, *, is_run_over: bool, has_last_round: bool, now_s: float) -> StageEnding:
    """Decide whether there is anything left to wait for.

    Args:
        is_run_over: the first stage's commits have all tokens of the run.
        has_last_round: this stage has every round of the first stage.
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
