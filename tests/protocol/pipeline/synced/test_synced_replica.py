"""A replica adds each backward pass to its sum once, when it is granted, or never."""

from __future__ import annotations

import pytest

from protocol.pipeline.synced import synced_replica
from protocol.pipeline.synced.synced_replica import (
    Asked,
    Committed,
    Compute,
    Computed,
    Decline,
    DeliverSum,
    Discard,
    Dropped,
    Event,
    Fold,
    Forget,
    Granted,
    RefuseSum,
    ReplicaState,
    Reply,
    ToldToStartAgain,
    ToldToSum,
)
from protocol.pipeline.synced_routing import Work

B0, B1 = Work(0, 1, True), Work(1, 1, True)
F0 = Work(0, 1, False)
FRESH = ReplicaState(stage=1, weights=7, most_apart=2)


def _fed(*events: Event, state: ReplicaState = FRESH) -> synced_replica.Step:
    done = synced_replica.Step(state)
    for event in events:
        done = synced_replica.step(done.state, event)
    return done


def _apart() -> ReplicaState:
    return _fed(Asked(7, B0), Computed(7, B0)).state


def test_work_is_computed_and_answered_and_its_gradients_wait_to_be_granted() -> None:
    assert _fed(Asked(7, B0)).orders == (Compute(B0),)
    done = _fed(Asked(7, B0), Computed(7, B0))
    assert done.orders == (Reply(B0),)
    assert done.state.apart == {0}
    granted = _fed(Granted(7, 0), state=done.state)
    assert granted.orders == (Fold(0),)
    assert granted.state.summed == {0}


def test_a_grant_that_comes_twice_counts_once_and_one_for_nothing_not_at_all() -> None:
    assert _fed(Granted(7, 0), Granted(7, 0), state=_apart()).orders == ()
    assert _fed(Granted(7, 0)).remark


def test_asked_again_a_replica_answers_with_what_it_has() -> None:
    assert _fed(Asked(7, B0), state=_apart()).orders == (Reply(B0),)
    assert _fed(Granted(7, 0), Asked(7, B0), state=_apart()).orders == (Reply(B0),)
    assert _fed(Asked(7, B0), Asked(7, B0)).orders == ()
    # a forward pass leaves nothing, and is done again
    assert _fed(Asked(7, F0), Computed(7, F0), Asked(7, F0)).orders == (Compute(F0),)


def test_a_lost_grant_is_made_up_for_when_the_sum_is_asked_for() -> None:
    summed = _fed(ToldToSum(7, frozenset({0})), state=_apart())
    assert summed.orders == (Fold(0), DeliverSum(frozenset({0})))
    assert _fed(ToldToSum(7, frozenset({0})), state=summed.state).orders == (DeliverSum(frozenset({0})),)


@pytest.mark.parametrize("numbers", [frozenset({0, 1}), frozenset({1}), frozenset()])
def test_a_sum_over_others_is_refused_and_begun_again(numbers: frozenset[int]) -> None:
    state = _fed(Granted(7, 0), state=_apart()).state
    forget, refuse = _fed(ToldToSum(7, numbers), state=state).orders
    assert forget == Forget()
    assert isinstance(refuse, RefuseSum)


def test_what_does_not_count_is_dropped() -> None:
    dropped = _fed(Dropped(7, 0), state=_apart())
    assert dropped.orders == (Discard(0),)
    assert _fed(Granted(7, 0), state=dropped.state).orders == ()
    assert _fed(Dropped(7, 0), state=dropped.state).remark
    assert _fed(Granted(7, 0), Dropped(7, 0), state=_apart()).orders == ()


def test_starting_again_forgets_all_and_work_under_way_answers_nobody() -> None:
    again = _fed(Asked(7, B1), ToldToStartAgain(7), state=_apart())
    assert again.orders == (Forget(),)
    assert _fed(Computed(7, B1), state=again.state).orders == ()
    assert again.state == FRESH


@pytest.mark.parametrize("weights", [6, 8])
def test_work_and_words_of_other_weights_are_refused_never_computed(weights: int) -> None:
    (declined,) = _fed(Asked(weights, B0)).orders
    assert isinstance(declined, Decline)
    assert "7 are here" in declined.reason
    for event in (Granted(weights, 0), ToldToSum(weights, frozenset({0})), Dropped(weights, 0)):
        assert _fed(event, state=_apart()) == synced_replica.Step(_apart(), (), f"weights {weights}, and 7 are here")


def test_work_of_another_stage_and_more_than_may_lie_apart_is_declined() -> None:
    (other,) = _fed(Asked(7, Work(0, 2, True))).orders
    assert isinstance(other, Decline)
    full = _fed(Asked(7, B1), Computed(7, B1), Asked(7, Work(2, 1, True)), state=_apart())
    (declined,) = full.orders
    assert isinstance(declined, Decline)
    assert "2 gradients wait" in declined.reason


def test_a_commit_brings_other_weights_and_keeps_nothing_and_counts_once() -> None:
    committed = _fed(Granted(7, 0), Committed(8), state=_apart())
    assert committed.orders == (Forget(),)
    assert committed.state == ReplicaState(stage=1, weights=8, most_apart=2)
    assert _fed(Committed(8), state=committed.state).remark
