"""Peers with the same view choose the same keeper and form the same lanes, and no lane begins in the middle of a round."""

from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError
from protocol.ids import CommitId, PeerId
from protocol.pipeline.lanes.lane_forming import (
    ENDS_WITHIN_S,
    LATE_SHARE,
    SPARE_FRESH_S,
    UNEVEN_AFTER_S,
    FormingState,
    Spare,
    decide,
    heard,
    keeper_order,
    lane_number,
    may_begin_keeping,
    spares_listed,
    without,
)
from protocol.pipeline.stage_machine import LaneConfig, Point

CONFIG = LaneConfig("1f1b", 2, 4, 8, 4, 1024)
GENESIS = CommitId(b"g" * 32)
A, B, C, D = (PeerId(name) for name in "abcd")


def _reported(*spares: tuple[PeerId, int, int], at_s: float = 0.0) -> FormingState:
    state = FormingState(CONFIG)
    for peer, stage, index in spares:
        state = heard(state, peer, Spare(stage, index, at_s))
    return state


def test_all_know_holders_of_the_first_stage_in_one_order_whoever_they_heard_of_first() -> None:
    order = keeper_order(GENESIS, [A, B, C])
    assert order == keeper_order(GENESIS, [C, A, B, A])
    assert set(order) == {A, B, C}
    assert order != keeper_order(CommitId(b"h" * 32), [A, B, C]) or order != keeper_order(
        CommitId(b"i" * 32), [A, B, C]
    )


def test_the_first_who_is_there_begins_to_keep_lanes_and_the_next_when_it_is_gone() -> None:
    first, second, third = keeper_order(GENESIS, [A, B, C])
    assert may_begin_keeping(first, (first, second, third), ())
    assert not may_begin_keeping(second, (first, second, third), ())
    assert may_begin_keeping(second, (first, second, third), {first})
    assert not may_begin_keeping(D, (first,), {first})


def test_a_lane_is_formed_as_soon_as_somebody_is_free_for_every_stage() -> None:
    formed = decide(_reported((A, 0, 3)), 3, (), 0.0)
    assert (formed.lanes, formed.reason) == ((), "nobody is free for stage 1")
    formed = decide(_reported((A, 0, 3), (B, 1, 3), (C, 0, 3)), 3, (), 0.0)
    assert formed.lanes == ((A, B),)
    assert spares_listed(formed.state, 0.0) == ((C, frozenset([0])),)


def test_as_many_lanes_are_formed_as_there_are_peers_for() -> None:
    formed = decide(_reported((A, 0, 0), (B, 1, 0), (C, 0, 0), (D, 1, 0)), 0, (), 0.0)
    assert formed.lanes == ((A, B), (C, D))
    assert not formed.state.spares


def test_who_was_not_heard_for_a_while_is_no_spare() -> None:
    state = _reported((A, 0, 0), (B, 1, 0))
    assert decide(state, 0, (), SPARE_FRESH_S + 0.1).lanes == ()
    assert spares_listed(state, SPARE_FRESH_S + 0.1) == ()


def test_no_lane_begins_in_the_middle_of_a_round_that_others_are_in() -> None:
    state, late = _reported((A, 0, 5), (B, 1, 5)), int(LATE_SHARE * CONFIG.inner_steps) + 1
    formed = decide(state, 5, [Point(5, late)], 0.0)
    assert formed.lanes == ()
    assert "begins with the next one" in formed.reason
    assert decide(state, 5, [Point(5, late - 1)], 0.0).lanes == ((A, B),)
    assert decide(state, 5, [Point(4, 8)], 0.0).lanes == ((A, B),)


def test_no_lane_begins_with_a_round_that_all_others_have_done_their_part_of() -> None:
    state = _reported((A, 0, 5), (B, 1, 5))
    formed = decide(state, 5, [Point(6, 0)], 0.0)
    assert formed.lanes == ()
    assert formed.reason == "round 6 is about to end: a lane begins with the next one"
    reported = heard(heard(formed.state, A, Spare(0, 6, 3.0)), B, Spare(1, 6, 3.0))
    assert decide(reported, 6, [Point(6, 0)], 3.0).lanes == ((A, B),)
    never = heard(heard(formed.state, A, Spare(0, 5, ENDS_WITHIN_S)), B, Spare(1, 5, ENDS_WITHIN_S))
    assert decide(never, 5, [Point(6, 0)], ENDS_WITHIN_S).lanes == ((A, B),), "these do not count alike"


def test_a_stage_that_catches_up_is_waited_for_and_one_that_stays_behind_is_not() -> None:
    state = _reported((A, 0, 5), (B, 1, 4))
    formed = decide(state, 5, (), 0.0)
    assert formed.lanes == ()
    assert "stages [1] are not at round 6 yet" in formed.reason
    reported = heard(heard(formed.state, A, Spare(0, 5, UNEVEN_AFTER_S)), B, Spare(1, 4, UNEVEN_AFTER_S))
    assert decide(reported, 5, (), UNEVEN_AFTER_S).lanes == ((A, B),)


def test_who_serves_a_lane_or_is_gone_is_not_taken() -> None:
    assert decide(without(_reported((A, 0, 0), (B, 1, 0)), {B}), 0, (), 0.0).lanes == ()


def test_lanes_of_one_keeper_and_of_two_have_numbers_of_their_own() -> None:
    numbers = {lane_number(keeper, session, count) for keeper in (A, B) for session in (1, 2) for count in range(50)}
    assert len(numbers) == 200
    assert all(0 <= number < 1 << 32 for number in numbers)
    with pytest.raises(LocalProtocolError):
        lane_number(A, 1, 1 << 14)
