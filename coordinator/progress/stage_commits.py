"""What the commits of a pipeline run's stages say of peers and of lanes, as the host has them, verified: who is counted where, and of
which lane's round a stage has no part. Pure.

The ledger has the first stage's commits alone, whose members hold that stage. A lane counts once at every stage; where a member died
with its part, the others have one round of that lane more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.lineage.round_row import Counted

LATE_ROUNDS: Final = 2
"""What a commit does not count is brought into the next one: later than this it does not come."""

LOOKED_AT: Final = 64
"""The newest commits of a stage; lanes of older ones are not told of any more."""


@dataclass(frozen=True, slots=True)
class StageCommits:
    """Of one stage.

    Attributes:
        counted: what each peer is credited with.
        lanes: which commit counts a lane's round, by both numbers.
        index: of the newest commit.
    """

    counted: Mapping[PeerId, Counted]
    lanes: Mapping[tuple[int, int], int]
    index: int


@dataclass(frozen=True, slots=True)
class PartialLane:
    """A lane's round that some stages count, and these not. `round`: as the lane counts, the first is 0."""

    lane: int
    round: int
    lacking: tuple[UnitName, ...]


def stage_commits(links: Sequence[ChainLink]) -> StageCommits:
    """What these commits of one stage say, the oldest first, none left out."""
    counted: dict[PeerId, Counted] = {}
    lanes: dict[tuple[int, int], int] = {}
    for link in links:
        for entry in link.record.contributors if link.record is not None else ():
            before = counted.get(entry.peer, Counted())
            counted[entry.peer] = Counted(before.tokens + entry.credited_tokens, before.rounds + 1)
            lanes.update((part.place, link.index) for part in entry.lanes)
    return StageCommits(counted, lanes, links[-1].index if links else 0)


def counted_everywhere(
    of_spine: Mapping[PeerId, Counted], spine: UnitName, stages: Mapping[UnitName, StageCommits]
) -> dict[PeerId, Counted]:
    """What each peer is credited with at whichever stage: of the first one by the ledger, of the others by their commits."""
    sums = dict(of_spine)
    for unit, commits in stages.items():
        for peer, more in commits.counted.items() if unit != spine else ():
            before = sums.get(peer, Counted())
            sums[peer] = Counted(before.tokens + more.tokens, before.rounds + more.rounds)
    return sums


def partial_lanes(stages: Mapping[UnitName, StageCommits]) -> tuple[PartialLane, ...]:
    """Of the newest rounds those that a stage has no part of and, by its commits since, will not have; by lane and round."""
    newest = {
        place: index
        for commits in stages.values()
        for place, index in commits.lanes.items()
        if index > commits.index - LOOKED_AT
    }
    found = []
    for (lane, round_), index in sorted(newest.items()):
        lacking = [unit for unit, of in stages.items() if (lane, round_) not in of.lanes]
        if all(stages[unit].index >= index + LATE_ROUNDS for unit in lacking) and lacking:
            found.append(PartialLane(lane, round_, tuple(sorted(lacking))))
    return tuple(found)
