"""Tests of protocol/pipeline/lanes/endings.py.

The member that gives a stage's part of an ended lane: the keeper names it, and only one.

When a run says that it pauses for a stage that nobody holds, and that it does not for one that is away for a moment.

A stage waits for its last round once the run is over, and not for ever.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.pipeline.lanes.endings import (
    LAST_ROUND_WITHIN_S,
    PAUSED_AFTER_S,
    REMEMBERED,
    SPINE_REPORTED_WITHIN_S,
    EndedLane,
    EndedLanes,
    Ending,
    claimed,
    counted_tokens,
    decide,
    empty_since,
    has_ended,
    is_after_the_end,
    paused_because,
)
from protocol.pipeline.lanes.lane_machine import Dissolve
from protocol.pipeline.messages.lane_messages import LaneClaim
from protocol.pipeline.stage_machine import Point
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.record import Ballot, CommitRecord, Contributor, Omission, OuterStep, SliceRecord

UNIT, BASE, ROOT = UnitName("stage-1"), CommitId(b"b" * 32), Root(bytes(32))
A, B = PeerId("alice"), PeerId("bob")


def _link(
    slices: tuple[SliceRecord, ...], *of: tuple[PeerId, tuple[LanePart, ...]], cap_tokens: int = 1000
) -> ChainLink:
    contributors = tuple(
        Contributor(peer, 1, ROOT, tokens := sum(part.tokens for part in parts), min(tokens, cap_tokens), parts)
        for peer, parts in of
    )
    record = CommitRecord(
        UNIT, BASE, 1, Ballot(0, A), slices, contributors, "fp32", cap_tokens, 1, OuterStep("mean", 1.0, 0.0), 1, (A,), (1,)
    )  # fmt: skip
    return ChainLink(UNIT, CommitId(b"c" * 32), 1, (A,), 1, 1, record)


WHOLE = (SliceRecord(0, 9, A, ROOT, ()),)
THIRDS = (SliceRecord(0, 3, A, ROOT, (Omission(A, "late"),)), SliceRecord(3, 9, A, ROOT, (Omission(B, "late"),)))


def test_a_part_counts_whole_whoever_brought_it_and_whatever_the_weight_cap_is() -> None:
    link = _link(WHOLE, (A, (LanePart(7, 3, 100), LanePart(8, 3, 50))), (B, (LanePart(9, 3, 100),)), cap_tokens=60)
    assert [counted_tokens([link], lane, 3) for lane in (7, 8, 9)] == [100, 50, 100]


def test_other_lanes_other_rounds_and_the_genesis_count_nothing_of_it() -> None:
    link = _link(WHOLE, (A, (LanePart(7, 3, 100),)))
    genesis = ChainLink(UNIT, BASE, 0, (A,), 0, 1)
    assert counted_tokens([genesis, link], 7, 2) == counted_tokens([genesis, link], 8, 3) == 0
    assert counted_tokens([genesis, link], 7, 3) == 100


def test_where_slices_took_it_of_different_peers_each_counts_by_its_slices() -> None:
    both = _link(THIRDS, (A, (LanePart(7, 3, 90),)), (B, (LanePart(7, 3, 90),)))
    assert counted_tokens([both], 7, 3) == 90
    one = _link(THIRDS, (A, (LanePart(7, 3, 90),)), (B, (LanePart(8, 3, 90),)))
    assert [counted_tokens([one], lane, 3) for lane in (7, 8)] == [60, 30]


FIRST, LOST, NEXT, HEIR, OTHER = (PeerId(name) for name in ("first", "lost", "next", "heir", "other"))
AT = Point(4, 3)
ENDED = EndedLane((FIRST, LOST, NEXT), Dissolve(AT, 4096, (FIRST, NEXT), (FIRST, NEXT, NEXT), "no spare"))
STATE = has_ended(EndedLanes(), 7, ENDED)
CLAIM = LaneClaim(7, Point(4, 4), 1, 4096, NEXT)


def test_the_part_of_a_lost_member_is_its_neighbours_to_give_and_goes_to_one_who_may_ask_again() -> None:
    done = claimed(STATE, HEIR, CLAIM)
    assert done.reason == ""
    assert claimed(done.state, HEIR, CLAIM).reason == ""
    again = claimed(done.state, OTHER, CLAIM)
    assert again.reason == "stage 1 of lane 7 once more: heir was given it"
    assert again.state == done.state


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lane": 8}, "lane 8, which did not end here"),
        ({"giver": FIRST}, "from first: it is next's to bring"),
        ({"tokens": 8192}, "8192 tokens of round 5 of lane 7, which ended with 4096 tokens of round 5"),
        ({"at": Point(5, 3)}, "4096 tokens of round 6 of lane 7, which ended with 4096 tokens of round 5"),
        ({"stage": 2}, "from next, which served it and brings it itself"),
        ({"stage": 0}, "it is first's to bring"),
        ({"stage": 9}, "it is nobody's"),
    ],
)
def test_anything_else_is_refused_and_nobody_was_given_it(changes: dict[str, object], reason: str) -> None:
    done = claimed(STATE, HEIR, replace(CLAIM, **changes))  # type: ignore[arg-type]
    assert reason in done.reason
    assert done.state == STATE


def test_of_a_lane_that_ended_without_weight_there_is_nothing_to_give() -> None:
    state = has_ended(EndedLanes(), 7, EndedLane(ENDED.members, Dissolve(AT, 0, (FIRST, NEXT), (), "lost")))
    assert "which ended with 0 tokens" in claimed(state, HEIR, CLAIM).reason


def test_only_the_newest_lanes_are_remembered_and_who_was_given_of_them() -> None:
    state = claimed(STATE, HEIR, CLAIM).state
    for number in range(100, 100 + REMEMBERED):
        state = has_ended(state, number, ENDED)
    assert len(state.ended) == REMEMBERED
    assert not state.given
    assert "did not end here" in claimed(state, HEIR, CLAIM).reason


def test_a_stage_without_a_holder_for_a_while_pauses_the_run_in_one_sentence() -> None:
    empty = empty_since({}, (2, 0, 1), 100.0)
    assert empty == {1: 100.0}
    assert paused_because(empty, 100.0 + PAUSED_AFTER_S - 0.1) == ""
    assert paused_because(empty, 100.0 + PAUSED_AFTER_S) == (
        "the run pauses: nobody who is there holds stage 1; it goes on from its newest state that a peer or the host has"
        " as soon as somebody takes what is missing"
    )


def test_who_comes_back_soon_or_takes_the_stage_ends_the_pause() -> None:
    empty = empty_since({1: 100.0}, (2, 1, 1), 130.0)
    assert not empty
    assert paused_because(empty, 130.0) == ""
    assert empty_since(empty, (2, 0, 1), 140.0) == {1: 140.0}, "its time begins anew"


def test_several_lost_stages_are_one_sentence_too() -> None:
    empty = empty_since({0: 0.0}, (0, 1, 0), 5.0)
    assert empty == {0: 0.0, 2: 5.0}
    assert "holds stage 0;" in paused_because(empty, 12.0)
    assert "holds stages 0, 2; it goes on from their newest states" in paused_because(empty, 20.0)


def test_while_tokens_are_missing_the_stage_goes_on() -> None:
    for has_last_round in (True, False):
        assert not decide(Ending(), is_run_over=False, has_last_round=has_last_round, now_s=1e6).is_done


def test_with_its_last_round_the_stage_is_done_at_once() -> None:
    done = decide(Ending(), is_run_over=True, has_last_round=True, now_s=5.0)
    assert (done.is_done, done.missing) == (True, "")


def test_a_last_round_that_does_not_come_is_given_up_and_said() -> None:
    first = decide(Ending(), is_run_over=True, has_last_round=False, now_s=100.0)
    assert (first.is_done, first.state) == (False, Ending(100.0))
    late = decide(first.state, is_run_over=True, has_last_round=False, now_s=100.0 + LAST_ROUND_WITHIN_S)
    assert not late.is_done
    given_up = decide(late.state, is_run_over=True, has_last_round=False, now_s=100.1 + LAST_ROUND_WITHIN_S)
    assert given_up.is_done
    assert given_up.missing.startswith("the last round of this stage did not come within 20 s")


def test_a_run_that_goes_on_on_another_lineage_begins_the_wait_anew() -> None:
    first = decide(Ending(), is_run_over=True, has_last_round=False, now_s=100.0)
    again = decide(first.state, is_run_over=False, has_last_round=False, now_s=110.0)
    assert decide(again.state, is_run_over=True, has_last_round=False, now_s=125.0).state == Ending(125.0)


def _after(own_tokens: int, spine: tuple[int, int] | None, waited_s: float = 0.0) -> bool | None:
    """Of a run of 1000 tokens, before its fifth round."""
    return is_after_the_end(own_tokens=own_tokens, total_tokens=1000, spine=spine, round_=5, waited_s=waited_s)


def test_a_stage_whose_own_commits_lack_tokens_brings_its_round_whatever_the_first_stage_has() -> None:
    assert _after(900, None) is False
    assert _after(900, (5, 1000)) is False


def test_a_round_after_the_first_stages_commit_with_all_tokens_is_brought_nowhere() -> None:
    assert _after(1000, (5, 1000)) is True
    assert _after(1000, (5, 999)) is False


def test_the_first_stages_commit_is_waited_for_and_not_for_ever() -> None:
    for spine in (None, (4, 900)):
        assert _after(1000, spine) is None
        assert _after(1000, spine, SPINE_REPORTED_WITHIN_S) is False
    assert _after(1000, (4, 1000), SPINE_REPORTED_WITHIN_S) is True
