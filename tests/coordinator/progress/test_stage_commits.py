"""The content of stages' commits: the peers that each stage counts, and the lanes' rounds of which a stage has no part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coordinator.progress.stage_commits import PartialLane, counted_everywhere, partial_lanes, stage_commits
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.round_row import Counted
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.record import Ballot, CommitRecord, Contributor, OuterStep, SliceRecord

A, B = PeerId("a"), PeerId("b")
FIRST, SECOND, THIRD = (UnitName(f"stage-{stage}") for stage in range(3))
ROOT = Root(bytes(32))
TOKENS = 100


def stage_links(unit: UnitName, lanes: Mapping[int, Sequence[tuple[int, int]]], by: PeerId = A) -> list[ChainLink]:
    """A stage's chain: by the commit's number, which lanes' rounds it counts; one without any counts something else."""
    links = [ChainLink(unit, CommitId(bytes(32)), 0, (by,), 0, 1)]
    for index, places in sorted(lanes.items()):
        parts = tuple(LanePart(lane, round_, TOKENS) for lane, round_ in places)
        tokens, parent = TOKENS * max(1, len(parts)), links[-1].commit
        record = CommitRecord(
            unit, parent, index, Ballot(0, by), (SliceRecord(0, 1, by, ROOT, ()),),
            (Contributor(by, 1, ROOT, tokens, tokens, parts),), "fp32", tokens, tokens, OuterStep("mean", 1.0, 0.0),
            1, (by,), (1,),
        )  # fmt: skip
        links.append(ChainLink(unit, CommitId(bytes([index]) * 32), index, (by,), index * tokens, 1, record))
    return links


def test_who_serves_a_later_stage_or_has_moved_there_is_credited_with_what_its_commits_say() -> None:
    stages = {
        FIRST: stage_commits(stage_links(FIRST, {1: [(7, 0)], 2: [(7, 1)]}, by=A)),
        SECOND: stage_commits(stage_links(SECOND, {1: [(7, 0), (8, 0)], 2: [(7, 1)]}, by=B)),
        THIRD: stage_commits(stage_links(THIRD, {1: [(7, 0)]}, by=A)),
    }
    by_ledger = {A: Counted(2 * TOKENS, 2)}
    assert counted_everywhere(by_ledger, FIRST, stages) == {A: Counted(3 * TOKENS, 3), B: Counted(3 * TOKENS, 2)}
    assert by_ledger == {A: Counted(2 * TOKENS, 2)}


def test_a_round_that_comes_a_commit_late_is_at_every_stage_and_one_that_does_not_come_is_named() -> None:
    whole = {1: [(7, 0)], 2: [(7, 1)], 3: [(7, 2)], 4: [(7, 3)]}
    late, lost = {1: [(7, 0)], 2: [], 3: [(7, 1), (7, 2)], 4: [(7, 3)]}, {1: [(7, 0)], 2: [], 3: [(7, 2)], 4: [(7, 3)]}

    def of(**stages: Mapping[int, Sequence[tuple[int, int]]]) -> tuple[PartialLane, ...]:
        return partial_lanes(
            {UnitName(unit): stage_commits(stage_links(UnitName(unit), s)) for unit, s in stages.items()}
        )

    assert of(first=whole, second=late) == ()
    assert of(first=whole, second=lost) == (PartialLane(7, 1, (UnitName("second"),)),)
    assert of(first=whole, second=lost, third=lost)[0].lacking == (UnitName("second"), UnitName("third"))
    assert of(first=whole, second={1: [(7, 0)], 2: [], 3: [(7, 2)]}) == (), "the next commits may still have it"
    assert of(first=whole, second={}) == (), "nothing of that stage is here yet"
