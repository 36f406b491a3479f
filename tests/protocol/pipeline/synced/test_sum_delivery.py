"""A sum is brought to each fellow until it has it; who is behind is waited for, who disputes it is not."""

from __future__ import annotations

import pytest

from protocol.ids import PeerId
from protocol.pipeline.messages.lane_messages import Refusal
from protocol.pipeline.synced.sum_delivery import (
    LAGGARD_WITHIN_S,
    SUM_TRIES,
    SumDelivery,
    answered,
    asked,
    is_with_all,
    served_by,
    unanswered,
)

A, B = PeerId("a"), PeerId("b")
FRESH = SumDelivery(0.0)


def test_a_sum_is_brought_to_each_fellow_once_however_often_it_is_asked_for() -> None:
    state, to = asked(FRESH, (A, B), 0.0)
    assert to == (A, B)
    state, to = asked(state, (A, B), 1.0)
    assert to == ()
    state = answered(state, A, None)
    assert not is_with_all(state, (A, B), 1.0)
    state = answered(state, B, None)
    assert is_with_all(state, (A, B), 1.0)
    assert asked(state, (A, B), 2.0)[1] == ()


def test_who_comes_meanwhile_is_brought_it_alone_and_who_left_and_came_again_once_more() -> None:
    state = answered(asked(FRESH, (A,), 0.0)[0], A, None)
    assert not is_with_all(state, (A, B), 0.0)
    assert asked(state, (A, B), 0.0)[1] == (B,)
    assert asked(served_by(served_by(state, (B,)), (A, B)), (A, B), 0.0)[1] == (A, B)


@pytest.mark.parametrize("refusal", [Refusal.NOT_YET, Refusal.OTHER])
def test_a_fellow_that_is_behind_is_brought_it_again_within_the_deadline_and_then_gone_without(
    refusal: Refusal,
) -> None:
    state = answered(asked(FRESH, (A, B), 0.0)[0], A, None)
    for now_s in (1.0, 6.0, LAGGARD_WITHIN_S - 1.0):
        state = answered(state, B, refusal)
        assert not is_with_all(state, (A, B), now_s)
        state, to = asked(state, (A, B), now_s)
        assert to == (B,)
        assert not is_with_all(state, (A, B), LAGGARD_WITHIN_S + 1.0)  # it may be taking it just now
    state = answered(state, B, refusal)
    assert state.given_up == frozenset()
    assert is_with_all(state, (A, B), LAGGARD_WITHIN_S)
    assert asked(state, (A, B), LAGGARD_WITHIN_S)[1] == ()


def test_a_fellow_that_refuses_a_sum_for_what_is_in_it_is_brought_it_again_and_in_the_end_gone_without() -> None:
    state = answered(asked(FRESH, (A, B), 0.0)[0], B, None)
    for number in range(SUM_TRIES):
        assert state.given_up == frozenset()
        assert not is_with_all(state, (A, B), LAGGARD_WITHIN_S + 1.0)
        state, to = asked(state, (A, B), float(number))
        assert to == ((A,) if number else ())  # it is under way there already
        state = answered(state, A, Refusal.CONTENT)
    assert state.given_up == {A}
    assert asked(state, (A, B), float(SUM_TRIES))[1] == ()
    assert is_with_all(state, (A, B), 0.0)


def test_refusals_of_several_fellows_are_not_added_up_and_who_left_and_came_again_begins_anew() -> None:
    state = asked(FRESH, (A, B), 0.0)[0]
    for fellow in (A, B, A, B):
        state = answered(state, fellow, Refusal.CONTENT)
    assert state.given_up == frozenset()
    assert answered(served_by(served_by(state, (B,)), (A, B)), A, Refusal.CONTENT).given_up == frozenset()
    assert answered(state, A, Refusal.CONTENT).given_up == {A}


def test_where_the_way_to_a_fellow_broke_it_is_brought_once_more() -> None:
    state = unanswered(asked(FRESH, (A,), 0.0)[0], A)
    assert asked(state, (A,), 1.0)[1] == (A,)
