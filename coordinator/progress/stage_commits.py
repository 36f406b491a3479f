"""Credit and lanes of a pipeline run, read from the stages' verified commits: which peer is counted in which stage, and which stage
lacks its part of a lane's round. Pure.

The ledger has only the first stage's commits, and their members hold that stage. A lane counts once at every stage. If a member
died with its part, the other stages count one more round of that lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.round_row import Counted, sum_of_counted

LATE_ROUNDS: Final = 2
"""A late part is counted at most this many commits later."""

LOOKED_AT: Final = 64
"""Number of newest commits of a stage that are examined. Lanes of older commits are not reported."""


@dataclass(frozen=True, slots=True)
class StageCommits:
    """The content of one stage's commits.

    Attributes:
        counted: what each peer is credited with.
        lanes: the commit that counts a lane's round, keyed by lane and round.
        index: index of the newest commit.
    """

    counted: Mapping[PeerId, Counted]
    lanes: Mapping[tuple[int, int], int]
    index: int


@dataclass(frozen=True, slots=True)
class PartialLane:
    """A lane's round that some stages count and the `lacking` ones do not. `round` is the lane's own count, from 0."""

    lane: int
    round: int
    lacking: tuple[UnitName, ...]


def stage_commits(links: Sequence[ChainLink]) -> StageCommits:
    """Read the commits of one stage: oldest first, without gaps."""
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
    """The credit of each peer over all stages: from the ledger for the first stage, from their commits for the others."""
    sums = dict(of_spine)
    for unit, commits in stages.items():
        sums = sum_of_counted(sums, commits.counted) if unit != spine else sums
    return sums


def partial_lanes(stages: Mapping[UnitName, StageCommits]) -> tuple[PartialLane, ...]:
    """Recent lane rounds that a stage lacks and, judging by its later commits, will not get. Sorted by lane and round."""
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
