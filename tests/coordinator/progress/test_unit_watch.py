"""A run of stages pauses in one sentence when one has no replica any more, and goes on with the next; one of experts does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from coordinator.progress.unit_holders import FROZEN_AFTER_S
from coordinator.progress.unit_keeper_core import frozen_sentence
from coordinator.progress.unit_watch import UnitWatch
from protocol.host.reports import PeerReport, UnitStanding
from protocol.ids import CommitId, PeerId, Root, UnitName
from tests.coordinator.progress.test_stage_commits import stage_links

A, B, A_LIAR = PeerId("a"), PeerId("b"), PeerId("liar")
STAGES = (UnitName("stage-0"), UnitName("stage-1"))
HEAD, ROOT = CommitId(b"h" * 32), Root(bytes(32))
PAUSED = "the run pauses at stage-1: no live peer holds it: it waits for a holder, which gets "


def _report(stage: int, index: int) -> PeerReport:
    beside = (UnitStanding(STAGES[stage], HEAD, ROOT, index),) if stage else ()
    return replace(PeerReport("training", "", STAGES[0]), head=HEAD, index=index, beside=beside, experts=(stage,))


def _watch(*, are_stages: bool = True) -> UnitWatch:
    watch = UnitWatch(STAGES, are_stages=are_stages)
    watch.heard(A, _report(0, 7))
    watch.heard(B, _report(1, 7))
    watch.tick(watch.held({A: _report(0, 7), B: _report(1, 7)}), 100.0)
    return watch


def test_the_run_pauses_some_seconds_after_a_stage_lost_its_last_replica_and_goes_on_with_the_next_one() -> None:
    watch = _watch()
    watch.note_kept(STAGES[1], 6)
    alone, both = {A: _report(0, 7)}, {A: _report(0, 7), B: _report(1, 6)}
    with capture_logs() as logs:
        watch.tick(watch.held(alone), 110.0)
        assert watch.paused_because(watch.held(alone)) == ""
        for _ in range(2):
            watch.tick(watch.held(alone), 110.0 + FROZEN_AFTER_S)
        reported = f"{PAUSED}round 6 from here; round 7 is lost unless a former holder returns"
        assert watch.paused_because(watch.held(alone)) == reported
        watch.tick(watch.held(both), 140.0)
        assert watch.paused_because(watch.held(both)) == ""
    assert [log["event"] for log in logs] == ["unit_frozen", "run_paused", "unit_resumed", "run_goes_on"]
    assert logs[1]["reason"] == reported


def test_a_lanes_round_that_a_stage_has_no_part_of_is_said_once_its_next_commits_came_without_it() -> None:
    watch = _watch()
    with capture_logs() as logs:
        watch.note_commits(STAGES[0], stage_links(STAGES[0], {1: [(7, 0)], 2: [(7, 1)], 3: []}))
        watch.note_commits(STAGES[1], stage_links(STAGES[1], {1: [(7, 0)], 2: [], 3: []}))
        assert not logs
        for _ in range(2):
            watch.note_commits(STAGES[1], stage_links(STAGES[1], {1: [(7, 0)], 2: [], 3: [], 4: []}))
    ((said),) = logs
    assert (said["event"], said["lane"], said["round"], said["lacking"]) == ("lane_not_everywhere", 7, 1, (STAGES[1],))


def test_experts_have_no_lanes_and_nothing_is_said_of_them() -> None:
    watch = _watch(are_stages=False)
    watch.note_commits(STAGES[0], stage_links(STAGES[0], {1: [(7, 0)], 2: [], 3: []}))
    assert not watch.stage_commits


def test_who_claims_an_expert_without_its_state_is_named_once_and_holds_nothing() -> None:
    watch, liar = _watch(are_stages=False), replace(_report(0, 7), experts=(0, 1))
    with capture_logs() as logs:
        for _ in range(3):
            watch.heard(B, liar)
        held = watch.held({A: _report(0, 7), B: liar})
    (said,) = logs
    assert said["event"] == "holder_not_counted"
    assert "says that it holds stage-1, but reports no state of it" in said["reason"]
    assert [unit.holders for unit in held] == [(A, B), ()]


def test_who_tells_of_rounds_that_it_does_not_show_keeps_no_expert_from_being_frozen_nor_its_rounds_from_being_told() -> (
    None
):
    watch, liar = (
        _watch(are_stages=False),
        replace(_report(1, 7), beside=(UnitStanding(STAGES[1], HEAD, ROOT, 1 << 50),)),
    )
    live = {A: _report(0, 7), A_LIAR: liar}
    watch.heard(A_LIAR, liar)
    watch.note_kept(STAGES[1], 7)
    assert [unit.holders for unit in watch.held(live)] == [(A,), (A_LIAR,)]
    watch.note_not_counted(STAGES[1], frozenset({A_LIAR}))
    assert [(unit.holders, unit.index) for unit in watch.held(live)] == [((A,), 7), ((), 7)]
    watch.tick(watch.held(live), 110.0)
    with capture_logs() as logs:
        watch.tick(watch.held(live), 110.0 + FROZEN_AFTER_S)
    assert [log["reason"] for log in logs] == [frozen_sentence(7, 7)]
    watch.note_not_counted(STAGES[1], frozenset())
    assert watch.held({A: _report(0, 7)})[1].index == 7, "what it told before counts never again"


def test_without_an_expert_the_others_go_on() -> None:
    watch = _watch(are_stages=False)
    alone = {A: _report(0, 7)}
    watch.tick(watch.held(alone), 110.0)
    with capture_logs() as logs:
        watch.tick(watch.held(alone), 130.0)
    assert watch.paused_because(watch.held(alone)) == ""
    assert [log["event"] for log in logs] == ["unit_frozen"]


@pytest.mark.parametrize("kept_index", [7, 8])
def test_all_that_the_host_keeps_of_a_stage_is_said(kept_index: int) -> None:
    watch = _watch()
    watch.note_kept(STAGES[1], kept_index)
    watch.tick(watch.held({A: _report(0, 7)}), 110.0)
    watch.tick(watch.held({A: _report(0, 7)}), 130.0)
    assert watch.paused_because(watch.held({A: _report(0, 7)})) == f"{PAUSED}all of its 7 rounds from here"
