"""One stage of a lane: what it does next, and what it passes over."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError, LocalProtocolError
from protocol.pipeline import stage_machine as lane_stage
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import (
    Adopted,
    Arrived,
    Contribute,
    Event,
    LaneConfig,
    LaneDissolved,
    LoadSnapshot,
    PassDone,
    Point,
    Resumed,
    RunPass,
    SnapshotLoaded,
    SnapshotTaken,
    SnapshotWhole,
    StageState,
    StepAgreed,
    StepTaken,
    TakeSnapshot,
    TakeStep,
    TellSquare,
    WentBack,
    begin,
    join,
)

CONFIG = LaneConfig("gpipe", 2, 2, inner_steps=3, snapshot_steps=2, step_tokens=100)
START = Point(4, 0)
F0, F1, B0, B1 = Pass(0, False), Pass(1, False), Pass(0, True), Pass(1, True)


def _fed(state: StageState, *events: Event) -> lane_stage.StageTransition:
    done = lane_stage.StageTransition(state)
    for event in events:
        done = lane_stage.step(done.state, event)
    return done


def _begun(stage: int) -> StageState:
    return _fed(begin(CONFIG, stage, START).state, SnapshotTaken(0, START)).state


def _stepped(state: StageState, *, counts: bool = True) -> lane_stage.StageTransition:
    """The first stage through all that one inner step asks of it."""
    at, epoch = state.at, state.epoch
    gradients = [Arrived(epoch, at, B0), Arrived(epoch, at, B1)]
    passes = [PassDone(epoch, at, work) for work in (F0, F1, B0, B1)]
    return _fed(state, *gradients, *passes, StepAgreed(epoch, at, 1.0), StepTaken(epoch, at, counts))


def test_a_lane_begins_with_a_snapshot_and_the_first_stage_needs_nobody_for_its_forward_passes() -> None:
    first = begin(CONFIG, 0, START)
    assert first.orders == (TakeSnapshot(0, START),)
    assert lane_stage.step(first.state, SnapshotTaken(0, START)).orders == (RunPass(START, F0),)


def test_passes_are_taken_in_order_each_when_its_input_is_here() -> None:
    state = _begun(1)
    assert state.running is None
    early = lane_stage.step(state, Arrived(0, START, F1))
    assert early.orders == ()
    both = lane_stage.step(early.state, Arrived(0, START, F0))
    assert both.orders == (RunPass(START, F0),)
    assert lane_stage.step(both.state, PassDone(0, START, F0)).orders == (RunPass(START, F1),)
    # the last stage has the loss, and goes backward without anybody
    assert _fed(both.state, PassDone(0, START, F0), PassDone(0, START, F1)).orders == (RunPass(START, B0),)


def test_a_stage_steps_when_the_lane_agreed_and_not_before() -> None:
    state = _begun(0)
    done = _fed(state, Arrived(0, START, B0), Arrived(0, START, B1), *(PassDone(0, START, w) for w in (F0, F1, B0, B1)))
    assert done.orders == (TellSquare(0, START),)
    agreed = lane_stage.step(done.state, StepAgreed(0, START, 2.5))
    assert agreed.orders == (TakeStep(START, 2.5),)
    assert lane_stage.step(agreed.state, StepTaken(0, START)).state.at == Point(4, 1)
    assert lane_stage.step(state, StepAgreed(0, START, 2.5)).remark == (
        "a step at Point(round=4, step=0) was agreed, here it is Point(round=4, step=0), passing"
    )


def test_snapshots_are_taken_every_so_many_steps_at_the_rounds_end_and_after_its_commit() -> None:
    one = _stepped(_begun(0))
    assert one.orders == (RunPass(Point(4, 1), F0),)
    two = _stepped(one.state)
    assert two.orders == (TakeSnapshot(0, Point(4, 2)),)
    three = _stepped(lane_stage.step(two.state, SnapshotTaken(0, Point(4, 2))).state)
    assert three.orders == (TakeSnapshot(0, Point(4, 3)),)
    averaging = _fed(three.state, SnapshotTaken(0, Point(4, 3)), SnapshotWhole(0, Point(4, 3)))
    assert averaging.orders == (Contribute(4, 300),)
    assert lane_stage.step(averaging.state, Adopted(0, 4)).orders == (TakeSnapshot(0, Point(5, 0)),)


def test_steps_that_were_left_out_count_no_tokens() -> None:
    two = _stepped(_stepped(_begun(0), counts=False).state)
    three = _stepped(lane_stage.step(two.state, SnapshotTaken(0, Point(4, 2))).state)
    held = _fed(three.state, SnapshotTaken(0, Point(4, 3)), SnapshotWhole(0, Point(4, 3)))
    assert held.orders == (Contribute(4, 200),)


def test_a_round_is_entered_when_every_stage_holds_its_end_and_not_before() -> None:
    two = _stepped(_stepped(_begun(0)).state)
    three = _stepped(lane_stage.step(two.state, SnapshotTaken(0, Point(4, 2))).state)
    held = lane_stage.step(three.state, SnapshotTaken(0, Point(4, 3)))
    assert held.orders == ()
    assert "here it is" in lane_stage.step(held.state, SnapshotWhole(0, Point(4, 2))).remark
    assert lane_stage.step(held.state, SnapshotWhole(0, Point(4, 3))).orders == (Contribute(4, 300),)
    # a member was lost meanwhile: the lane's work is the same, and is entered when all are back
    back = _fed(held.state, WentBack(1, Point(4, 2), 2), SnapshotWhole(0, Point(4, 3)))
    assert "time line 0" in back.remark


def test_work_of_the_next_step_may_come_before_this_one_is_taken() -> None:
    state = _fed(_begun(1), Arrived(0, START, F0), Arrived(0, START, F1))
    done = _fed(state.state, *(PassDone(0, START, w) for w in (F0, F1, B0, B1)), Arrived(0, Point(4, 1), F0))
    assert done.orders == ()
    assert _fed(done.state, StepAgreed(0, START, 1.0), StepTaken(0, START)).orders == (RunPass(Point(4, 1), F0),)


@pytest.mark.parametrize(
    ("event", "remark"),
    [
        (Arrived(1, START, F0), "time line 1, here it is 0"),
        (Arrived(0, Point(4, 2), F0), "work of Point"),
        (Arrived(0, Point(3, 3), F0), "work of Point"),
        (Arrived(0, START, B0), "comes from nobody"),
        (Arrived(0, START, Pass(2, False)), "comes from nobody"),
        (Arrived(0, START, Pass(-1, False)), "comes from nobody"),
        (PassDone(0, START, F0), "was not running"),
        (StepTaken(0, START), "was taken"),
        (SnapshotTaken(0, START), "a snapshot of"),
        (SnapshotWhole(0, START), "every stage holds"),
        (SnapshotLoaded(0), "nobody waits"),
        (Resumed(0), "nobody waits"),
        (Adopted(0, 4), "was adopted"),
        (WentBack(0, START, 0), "going back in time line 0"),
    ],
)
def test_what_does_not_fit_is_passed_over_with_a_reason(event: Event, remark: str) -> None:
    state = _begun(1)
    passed = lane_stage.step(state, event)
    assert remark in passed.remark
    assert passed.state == state
    assert passed.orders == ()


def test_the_same_work_twice_is_done_once() -> None:
    state = lane_stage.step(_begun(1), Arrived(0, START, F1)).state
    assert "once more" in lane_stage.step(state, Arrived(0, START, F1)).remark
    ran = _fed(state, Arrived(0, START, F0), PassDone(0, START, F0))
    assert "done already" in lane_stage.step(ran.state, Arrived(0, START, F0)).remark


def test_going_back_forgets_what_is_going_on_and_refuses_the_former_time_line() -> None:
    state = _stepped(_begun(0)).state
    back = lane_stage.step(state, WentBack(1, START, 0))
    assert back.orders == (LoadSnapshot(1, START),)
    assert "time line 0" in lane_stage.step(back.state, PassDone(0, Point(4, 1), F0)).remark
    # what the next stage sends before we have heard that all are back is not lost
    there = lane_stage.step(back.state, Arrived(1, START, B0)).state
    assert _fed(there, SnapshotLoaded(1), Resumed(1)).orders == (RunPass(START, F0),)
    assert not _stepped(_fed(back.state, SnapshotLoaded(1), Resumed(1)).state).remark


def test_a_spare_loads_the_snapshot_and_goes_on_with_the_others() -> None:
    spare = join(CONFIG, 1, WentBack(3, Point(4, 2), 1))
    assert spare.orders == (LoadSnapshot(3, Point(4, 2)),)
    state = _fed(spare.state, SnapshotLoaded(3), Arrived(3, Point(4, 2), F0), Resumed(3)).state
    assert state.running == F0
    assert state.counted == 1


def test_back_at_the_end_of_a_round_a_stage_averages_again() -> None:
    back = _fed(_begun(0), WentBack(1, Point(4, 3), 3), SnapshotLoaded(1), Resumed(1))
    assert back.orders == (Contribute(4, 300),)


def test_a_dissolved_lane_does_nothing_more() -> None:
    over = lane_stage.step(_begun(0), LaneDissolved()).state
    assert _fed(over, WentBack(1, START, 0), Arrived(1, START, B0)) == lane_stage.StageTransition(over)


def test_numbers_that_make_no_lane_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 of each"):
        LaneConfig("gpipe", 2, 2, inner_steps=3, snapshot_steps=0, step_tokens=100)
    with pytest.raises(ConfigError, match="one of gpipe"):
        LaneConfig("other", 2, 2, inner_steps=3, snapshot_steps=1, step_tokens=100)
    with pytest.raises(LocalProtocolError, match="stage 2; expected 0 to 1"):
        begin(CONFIG, 2, START)


def test_the_parameters_that_a_round_begins_with_are_measured_before_its_first_step_and_never_again() -> None:
    config = LaneConfig("gpipe", 2, 2, inner_steps=3, snapshot_steps=2, step_tokens=100, heldout_passes=2)
    measured = (Pass(2, False), Pass(3, False))
    first = _fed(begin(config, 0, START).state, SnapshotTaken(0, START)).state
    assert (first.running, first.todo) == (F0, (F1, B0, B1, *measured))
    last = _fed(begin(config, 1, START).state, SnapshotTaken(0, START)).state
    trained = [PassDone(0, START, work) for work in (F0, F1, B0, B1)]
    last = _fed(last, *[Arrived(0, START, work) for work in (F0, F1)], *trained).state
    assert last.running is None
    arrived = _fed(last, Arrived(0, START, measured[0]))
    assert arrived.orders == (RunPass(START, measured[0]),)
    assert "comes from nobody" in _fed(last, Arrived(0, START, Pass(4, False))).remark
    assert "comes from nobody" in _fed(last, Arrived(0, Point(4, 1), measured[0])).remark
    passes = [PassDone(0, START, work) for work in (F0, F1)]
    gradients = [Arrived(0, START, work) for work in (B0, B1)]
    done = [PassDone(0, START, work) for work in (B0, B1, *measured)]
    after = _fed(first, *gradients, *passes, *done, StepAgreed(0, START, 1.0), StepTaken(0, START)).state
    assert (after.at, after.running, after.todo[0]) == (Point(4, 1), F0, F1)
