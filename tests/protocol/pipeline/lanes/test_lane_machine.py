"""A lane as a whole: steps agreed, snapshots complete, members replaced, and its end."""

from __future__ import annotations

import math

import pytest

from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.pipeline.lanes import lane_machine as lane
from protocol.pipeline.lanes.lane_machine import (
    AgreeStep,
    Dissolve,
    Event,
    GoBack,
    KeepFrom,
    LaneState,
    LaneTicked,
    LoadedReported,
    LoadFailed,
    MemberHeard,
    MemberLost,
    Resume,
    SnapshotReported,
    SparesListed,
    SquareReported,
)
from protocol.pipeline.stage_machine import LaneConfig, Point

A, B, C, X, Y, Z = (PeerId(name) for name in "ABCXYZ")
CONFIG = LaneConfig("1f1b", 3, 4, inner_steps=3, snapshot_steps=2, step_tokens=100)
START = Point(4, 0)
ANY = frozenset({0, 1, 2})


def _fed(state: LaneState, *events: Event, now_s: float = 0.0) -> lane.LaneTransition:
    done = lane.LaneTransition(state)
    for event in events:
        done = lane.step(done.state, event, now_s)
    return done


def _snapshots(at: Point, epoch: int = 0, members: tuple[PeerId, ...] = (A, B, C)) -> list[SnapshotReported]:
    return [SnapshotReported(peer, epoch, at) for peer in members]


def _squares(at: Point, epoch: int = 0, square: float = 1.0) -> list[SquareReported]:
    return [SquareReported(peer, epoch, at, square) for peer in (A, B, C)]


def _begun() -> LaneState:
    return _fed(lane.begin(CONFIG, (A, B, C), START, 0.0), *_snapshots(START)).state


def _two_steps() -> LaneState:
    """Two inner steps done, the snapshot behind them not whole yet."""
    return _fed(_begun(), *_squares(START), *_squares(Point(4, 1))).state


def test_a_step_is_agreed_when_all_stages_have_told_whoever_is_first() -> None:
    reported = [SquareReported(C, 0, START, 0.5), SquareReported(A, 0, START, 1.0)]
    waiting = _fed(_begun(), *reported)
    assert waiting.orders == ()
    agreed = lane.step(waiting.state, SquareReported(B, 0, START, 2.0), 0.0)
    assert agreed.orders == (AgreeStep(0, START, 3.5),)
    assert agreed.state.at == Point(4, 1)


def test_a_snapshot_counts_when_every_stage_holds_it() -> None:
    state = _two_steps()
    assert state.saved == START
    two = _fed(state, *_snapshots(Point(4, 2))[:2])
    assert two.orders == ()
    assert two.state.saved == START
    three = _fed(two.state, SnapshotReported(C, 0, Point(4, 2)))
    assert three.orders == (KeepFrom(Point(4, 2)),)
    assert three.state.saved == Point(4, 2)


def test_a_member_that_is_lost_is_replaced_all_go_back_and_what_was_trained_since_is_lost() -> None:
    state = _fed(_two_steps(), SparesListed(((X, frozenset({0})), (Y, frozenset({1})), (Z, ANY)))).state
    lost = lane.step(state, MemberLost(B), 5.0)
    assert lost.orders == (GoBack(1, START, 0, (A, Y, C)),)
    assert lost.state.lost_tokens == 200
    back = _fed(lost.state, LoadedReported(A, 1), LoadedReported(C, 1))
    assert back.orders == ()
    resumed = lane.step(back.state, LoadedReported(Y, 1), 5.0)
    assert resumed.orders == (Resume(1),)
    assert "time line 0" in _fed(resumed.state, *_squares(START)[:1]).remark
    again = _fed(resumed.state, *(SquareReported(peer, 1, START, 1.0) for peer in (A, Y, C)))
    assert again.orders == (AgreeStep(1, START, 3.0),)
    assert again.state.lost_tokens == 200


def test_a_lane_goes_back_to_its_newest_whole_snapshot_with_the_steps_that_count_there() -> None:
    state = _fed(_begun(), *_squares(START), *_squares(Point(4, 1), square=math.nan), *_snapshots(Point(4, 2))).state
    state = _fed(state, *_squares(Point(4, 2)), SparesListed(((X, ANY),))).state
    assert lane.step(state, MemberLost(A), 0.0).orders == (GoBack(1, Point(4, 2), 1, (X, B, C)),)
    assert lane.step(state, MemberLost(A), 0.0).state.lost_tokens == 100


def test_the_commit_of_a_round_counts_as_trained_only_when_its_snapshot_is_whole() -> None:
    state = _fed(_two_steps(), *_snapshots(Point(4, 2)), *_squares(Point(4, 2))).state
    state = _fed(state, *_snapshots(Point(4, 3)), SnapshotReported(A, 0, Point(5, 0)), SparesListed(((X, ANY),))).state
    back = lane.step(state, MemberLost(B), 0.0)
    assert back.orders == (GoBack(1, Point(4, 3), 3, (A, X, C)),)
    assert back.state.lost_tokens == 0
    again = _fed(back.state, *(LoadedReported(peer, 1) for peer in (A, X, C)), *_snapshots(Point(5, 0), 1, (A, X, C)))
    assert again.state.saved == again.state.at == Point(5, 0)


def test_without_a_spare_within_two_seconds_the_lane_ends_with_the_tokens_of_its_last_snapshot() -> None:
    state = _fed(_two_steps(), *_snapshots(Point(4, 2)), *_squares(Point(4, 2))).state
    lost = lane.step(state, MemberLost(B), 10.0)
    assert lost.orders == ()
    alive = _fed(lost.state, MemberHeard(A), MemberHeard(C), now_s=11.9)
    assert lane.step(alive.state, LaneTicked(), 11.9).orders == ()
    over = lane.step(alive.state, LaneTicked(), 12.1)
    (order,) = over.orders
    assert isinstance(order, Dissolve)
    assert (order.at, order.tokens, order.survivors) == (Point(4, 2), 200, (A, C))
    assert order.holders == (A, C, C)
    assert "no spare for stages [1] within 2 s" in order.reason
    assert over.state.lost_tokens == 100
    assert lane.step(over.state, LaneTicked(), 13.0).remark == "the lane is no more"


def test_a_spare_that_comes_within_two_seconds_is_taken() -> None:
    lost = lane.step(_two_steps(), MemberLost(B), 10.0).state
    unfit = lane.step(lost, SparesListed(((X, frozenset({0, 2})),)), 11.0)
    assert unfit.orders == ()
    assert lane.step(unfit.state, SparesListed(((Y, ANY),)), 11.5).orders == (GoBack(1, START, 0, (A, Y, C)),)


def test_a_silent_member_is_lost_as_one_whose_connection_was_refused() -> None:
    state = _fed(_two_steps(), SparesListed(((X, ANY),))).state
    limit_s = CONFIG.suspect_after_s
    heard = _fed(state, MemberHeard(A), MemberHeard(B), now_s=limit_s - 0.1).state
    assert lane.step(heard, LaneTicked(), limit_s).orders == ()
    assert lane.step(heard, LaneTicked(), limit_s + 0.1).orders == (GoBack(1, START, 0, (A, B, X)),)


def test_two_lost_members_take_two_spares_and_one_alone_is_not_enough() -> None:
    one = _fed(_two_steps(), SparesListed(((X, ANY),))).state
    first = lane.step(one, MemberLost(B), 0.0).state
    second = lane.step(first, MemberLost(C), 0.0)
    assert second.orders == ()
    both = lane.step(second.state, SparesListed(((X, ANY), (Y, ANY))), 0.0)
    assert both.orders == (GoBack(2, START, 0, (A, X, Y)),)
    assert both.state.lost_tokens == 200


def test_a_lane_whose_snapshot_is_gone_ends_without_weight() -> None:
    state = _fed(_two_steps(), SparesListed(((X, ANY),)), MemberLost(B)).state
    (order,) = lane.step(state, LoadFailed(X, 1), 0.0).orders
    assert isinstance(order, Dissolve)
    assert order.tokens == 0
    assert "stage 1 is lost" in order.reason


def test_a_lane_that_dies_before_its_first_snapshot_ends_without_weight() -> None:
    (order,) = lane.step(lane.begin(CONFIG, (A, B, C), START, 0.0), MemberLost(A), 0.0).orders
    assert isinstance(order, Dissolve)
    assert (order.tokens, order.survivors, order.holders) == (0, (B, C), ())


def test_a_lane_whose_stage_and_its_neighbour_are_lost_ends_without_weight() -> None:
    state = _fed(_two_steps(), *_snapshots(Point(4, 2)), MemberLost(B), MemberLost(C)).state
    (order,) = _fed(state, MemberHeard(A), LaneTicked(), now_s=2.5).orders
    assert isinstance(order, Dissolve)
    assert (order.tokens, order.holders) == (0, ())
    assert "nobody has the snapshot of stage 1" in order.reason
    # two that are no neighbours have left a copy each
    config = LaneConfig("1f1b", 4, 4, inner_steps=3, snapshot_steps=2, step_tokens=100)
    members = (A, B, C, X)
    state = _fed(
        lane.begin(config, members, START, 0.0),
        *_snapshots(START, 0, members),
        *(SquareReported(peer, 0, START, 1.0) for peer in members),
        *(SquareReported(peer, 0, Point(4, 1), 1.0) for peer in members),
        *_snapshots(Point(4, 2), 0, members),
        MemberLost(A),
        MemberLost(C),
    ).state
    heard = _fed(state, MemberHeard(B), MemberHeard(X), now_s=2.4).state
    (order,) = lane.step(heard, LaneTicked(), 2.5).orders
    assert isinstance(order, Dissolve)
    assert (order.tokens, order.holders) == (200, (B, B, X, X))


def test_a_member_that_came_since_the_snapshot_brings_it_once_it_has_loaded_it() -> None:
    state = _fed(_two_steps(), *_snapshots(Point(4, 2)), SparesListed(((X, ANY),)), MemberLost(B)).state
    early = _fed(state, LoadedReported(A, 1), MemberLost(A)).state
    (order,) = _fed(early, MemberHeard(X), MemberHeard(C), LaneTicked(), now_s=2.5).orders
    assert isinstance(order, Dissolve)
    # A has loaded its own and given it to X before it was lost; that of stage 1 is still C's alone
    assert (order.tokens, order.holders) == (200, (X, C, C))
    early = _fed(state, MemberLost(A)).state
    (order,) = _fed(early, MemberHeard(X), MemberHeard(C), LaneTicked(), now_s=2.5).orders
    assert isinstance(order, Dissolve)
    assert (order.tokens, order.holders) == (0, ())
    late = _fed(state, *(LoadedReported(peer, 1) for peer in (A, X, C)), MemberLost(A)).state
    (order,) = _fed(late, MemberHeard(X), MemberHeard(C), LaneTicked(), now_s=2.5).orders
    assert isinstance(order, Dissolve)
    assert (order.tokens, order.holders) == (200, (X, X, C))


@pytest.mark.parametrize(
    ("event", "remark"),
    [
        (SquareReported(X, 0, START, 1.0), "no member"),
        (SquareReported(A, 1, START, 1.0), "time line 1, here it is 0"),
        (SquareReported(A, 0, Point(4, 1), 1.0), "a gradient of"),
        (SnapshotReported(A, 0, START), "nobody asks for"),
        (SnapshotReported(A, 0, Point(9, 0)), "nobody asks for"),
        (LoadedReported(A, 0), "the lane is running"),
    ],
)
def test_what_does_not_fit_is_passed_over_with_a_reason(event: Event, remark: str) -> None:
    passed = lane.step(_begun(), event, 0.0)
    assert remark in passed.remark
    assert passed.orders == ()


def test_a_square_told_twice_counts_once() -> None:
    state = lane.step(_begun(), SquareReported(A, 0, START, 1.0), 0.0).state
    again = lane.step(state, SquareReported(A, 0, START, 7.0), 0.0)
    assert again.remark
    assert again.state.squares == {0: 1.0}


def test_a_lane_has_one_member_a_stage() -> None:
    with pytest.raises(LocalProtocolError, match="3, each once"):
        lane.begin(CONFIG, (A, B, B), START, 0.0)


def _slow_steps() -> LaneState:
    """Two inner steps of five seconds each; of the third one stage has told its part."""
    state = _begun()
    for number in range(2):
        state = _fed(state, *_squares(Point(4, number)), now_s=5.0 * (number + 1)).state
    return _fed(state, SquareReported(A, 0, Point(4, 2), 1.0), now_s=11.0).state


def _alive(state: LaneState, now_s: float) -> LaneState:
    return _fed(state, *(MemberHeard(peer) for peer in (A, B, C)), now_s=now_s).state


def test_members_that_answer_and_do_not_get_on_are_replaced_after_ten_of_the_slowest_steps() -> None:
    state = _fed(_slow_steps(), SparesListed(((X, ANY), (Y, ANY))), now_s=11.0).state
    assert lane.step(_alive(state, 59.0), LaneTicked(), 59.0).orders == ()
    stuck = lane.step(_alive(state, 61.0), LaneTicked(), 61.0)
    assert stuck.orders == (GoBack(1, START, 0, (A, X, Y)),)
    assert "answer and do not get on" in stuck.orders[0].reason


def test_a_lane_in_which_nobody_gets_on_ends_with_its_last_snapshot() -> None:
    state = _fed(_two_steps(), *_snapshots(Point(4, 2)), now_s=1.0).state
    ended = lane.step(_alive(state, 40.0), LaneTicked(), 40.0)
    assert isinstance(ended.orders[0], Dissolve)
    assert (ended.orders[0].at, ended.orders[0].tokens) == (Point(4, 2), 200)


def test_between_rounds_a_lane_waits_for_the_commit_as_long_as_that_takes() -> None:
    state = _fed(_two_steps(), *_snapshots(Point(4, 2)), *_squares(Point(4, 2)), *_snapshots(Point(4, 3))).state
    assert state.at == Point(5, 0)
    assert lane.step(_alive(state, 500.0), LaneTicked(), 500.0).orders == ()


def test_silence_while_the_keeper_itself_was_not_running_is_nobodys_death() -> None:
    limit_s = CONFIG.suspect_after_s
    late = lane.step(_begun(), LaneTicked(lag_s=4.0), limit_s + 3.9)
    assert late.state.phase == "running"
    assert lane.step(late.state, LaneTicked(), limit_s + 4.1).state.phase == "wanting"


def test_before_its_first_step_nobody_knows_how_long_one_takes_and_a_lane_that_shows_life_goes_on() -> None:
    state = _alive(_begun(), 500.0)
    assert lane.step(state, LaneTicked(), 500.0).orders == ()
    slow = _fed(state, *_squares(START), now_s=500.0).state
    assert lane.step(_alive(slow, 5000.0), LaneTicked(), 5000.0).orders == (), "ten of its slowest step"
    assert lane.step(_alive(slow, 5501.0), LaneTicked(), 5501.0).state.phase == "over"


def test_a_first_step_that_never_ends_ends_the_lane_and_so_does_a_stage_that_is_never_made() -> None:
    late_s = lane.FIRST_STEP_WITHIN_S + 1.0
    assert lane.step(_alive(_begun(), late_s), LaneTicked(), late_s).state.phase == "over"
    opening = _fed(lane.begin(CONFIG, (A, B, C), START, 0.0), *_snapshots(START)[:2]).state
    assert lane.step(_alive(opening, late_s - 2.0), LaneTicked(), late_s - 2.0).orders == ()
    (ended,) = lane.step(_alive(opening, late_s), LaneTicked(), late_s).orders
    assert isinstance(ended, Dissolve)
    assert ended.reason.startswith("stages [2] answer and do not get on")


def test_steps_go_on_before_the_first_snapshot_is_whole_and_who_never_holds_it_is_named() -> None:
    state = _fed(lane.begin(CONFIG, (A, B, C), START, 0.0), *_snapshots(START)[:2], *_squares(START)).state
    assert (state.at, state.saved) == (Point(4, 1), None)
    whole = _fed(state, *_snapshots(START)[2:]).state
    assert (whole.saved, whole.counted[Point(4, 1)]) == (START, 1)
    late_s = lane.LOADED_WITHIN_S + 1.0
    (ended,) = lane.step(_alive(state, late_s), LaneTicked(), late_s).orders
    assert isinstance(ended, Dissolve)
    assert ended.tokens == 0
    assert ended.reason.startswith("stages [2] answer and do not get on")


def test_a_member_that_has_just_come_may_take_as_long_for_its_first_step_as_a_new_lane() -> None:
    state = _fed(_slow_steps(), SparesListed(((X, ANY),)), MemberLost(C), now_s=11.0).state
    back = _fed(state, *(LoadedReported(peer, 1) for peer in (A, B, X)), now_s=12.0).state
    alive = _fed(back, *(MemberHeard(peer) for peer in (A, B, X)), now_s=400.0).state
    assert lane.step(alive, LaneTicked(), 400.0).orders == ()
