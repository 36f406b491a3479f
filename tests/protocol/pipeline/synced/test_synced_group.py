"""A group of replicas as its owner decides it: who serves, when a step begins and ends, what is brought into a round."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from protocol.errors import ConfigError
from protocol.frozen import replace
from protocol.ids import PeerId
from protocol.pipeline.stage_machine import Point
from protocol.pipeline.synced import synced
from protocol.pipeline.synced import synced_group as group
from protocol.pipeline.synced.synced import Finished, SumDelivered
from protocol.pipeline.synced.synced_group import Begin, Beside, Bring, End, GroupConfig, OfStep, TakeStep
from protocol.pipeline.synced_routing import SyncedConfig, Work

A, B, C, D = (PeerId(name) for name in "ABCD")
STEPS = SyncedConfig(num_stages=2, num_micro_batches=1, in_flight=4)
CONFIG = GroupConfig(STEPS, inner_steps=2, step_tokens=100)
START = Point(0, 0)
SEED = 4
"""By which A is drawn before B for a first step's work."""

ONE = frozenset({0})


def fed(state: group.GroupState, *events: group.Event, now_s: float = 0.0) -> group.Step:
    done = group.Step(state)
    orders: list[group.Order] = []
    for event in events:
        done = group.step(done.state, event, now_s)
        orders += done.orders
    return group.Step(done.state, tuple(orders), done.remark, done.waiting)


def begun() -> group.Step:
    return group.begin(CONFIG, SEED, {A: 0, B: 0, C: 1}, START, 0.0)


def ready(*, weights: bytes = b"w") -> group.Step:
    return fed(begun().state, *(group.Ready(peer, START, weights) for peer in (A, B, C)))


def granted(state: group.GroupState) -> group.Step:
    """The step's work is done by A and C."""
    events = [Finished(A, Work(0, 0, False)), Finished(C, Work(0, 1, True)), Finished(A, Work(0, 0, True))]
    return fed(state, *(group.InStep(state.at, event) for event in events))


def worked(state: group.GroupState) -> group.Step:
    """And their sums are with the others."""
    sums = [SumDelivered(A, ONE), SumDelivered(C, ONE)]
    return fed(granted(state).state, *(group.InStep(state.at, event) for event in sums))


def stepped(state: group.GroupState) -> group.Step:
    at = state.at
    done = worked(state)
    return fed(done.state, group.Squared(A, at, 4.0), group.Squared(C, at, 5.0))


def test_a_group_begins_with_the_newest_parameters_and_steps_when_all_hold_them() -> None:
    first = begun()
    assert [order for order in first.orders if isinstance(order, Begin)] == [
        Begin(peer, stage, START, ()) for peer, stage in ((A, 0), (B, 0), (C, 1))
    ]
    assert Beside(0, (A, B)) in first.orders
    two = fed(first.state, group.Ready(A, START), group.Ready(C, START))
    assert two.state.phase == "gathering"
    assert "B" in two.waiting
    assert fed(two.state, group.Ticked(), now_s=3.9).state.phase == "gathering"
    assert ready().state.phase == "stepping"


def test_a_rounds_first_step_waits_a_while_for_who_is_late_and_no_longer() -> None:
    two = fed(begun().state, group.Ready(A, START), group.Ready(C, START))
    awake = fed(two.state, group.Heard(A), group.Heard(B), group.Heard(C), now_s=3.0)
    begins = fed(awake.state, group.Ticked(), now_s=5.1)
    assert begins.state.phase == "stepping"
    late = fed(begins.state, group.Ready(B, START), now_s=5.2)
    assert late.state.step is not None
    assert B in late.state.step.replicas


def test_a_steps_first_work_is_shared_among_all_who_begin_it() -> None:
    two = GroupConfig(SyncedConfig(num_stages=2, num_micro_batches=2, in_flight=4), inner_steps=2, step_tokens=100)
    state = group.begin(two, SEED, {A: 0, B: 0, C: 1}, START, 0.0).state
    begins = fed(state, *(group.Ready(peer, START) for peer in (A, B, C)))
    asked = [order.order for order in begins.orders if isinstance(order, OfStep)]
    assert {order.peer for order in asked if isinstance(order, synced.Ask)} == {A, B}


def test_a_steps_first_work_goes_to_who_is_fast_whoever_is_named_first() -> None:
    state = ready().state
    members = {A: replace(state.members[A], work_s=9.0), B: replace(state.members[B], work_s=0.1), C: state.members[C]}
    at_end = replace(state, phase="gathering", step=None, members=MappingProxyType(members))
    begins = fed(at_end, group.Heard(A))
    assert OfStep(START, synced.Ask(B, Work(0, 0, False))) in begins.orders
    assert OfStep(START, synced.Ask(A, Work(0, 0, False))) not in begins.orders


def test_a_step_is_taken_by_all_when_every_stage_has_added_up_its_sums() -> None:
    done = worked(ready().state)
    (commit,) = [
        order.order for order in done.orders if isinstance(order, OfStep) and isinstance(order.order, synced.Commit)
    ]
    assert commit.counted == ONE
    assert done.state.phase == "squaring"
    one = fed(done.state, group.Squared(A, START, 4.0))
    assert not any(isinstance(order, TakeStep) for order in one.orders)
    both = fed(one.state, group.Squared(C, START, 5.0), group.Squared(B, START, 4.0))
    (take,) = [order for order in both.orders if isinstance(order, TakeStep)]
    assert take == TakeStep(START, 9.0, 1, (A, B, C))
    assert both.state.at == Point(0, 1)
    assert both.state.tokens == 100
    assert both.state.step is not None
    assert (
        both.state.step.replicas[A].work_s == both.state.members[A].work_s == 0.0
    )  # what it has shown is not forgotten
    assert "a square of" in both.remark


def test_a_gradient_that_is_not_finite_is_stepped_over_and_its_tokens_do_not_count() -> None:
    done = fed(worked(ready().state).state, group.Squared(A, START, 4.0), group.Squared(C, START, float("inf")))
    assert any(isinstance(order, TakeStep) for order in done.orders)
    assert done.state.tokens == 0


def test_after_the_rounds_steps_every_replica_brings_its_part_of_the_tokens_and_none_is_lost_in_sharing() -> None:
    state = stepped(ready().state).state
    odd = replace(state, tokens=101)
    over = stepped(odd)
    (bring,) = [order for order in over.orders if isinstance(order, Bring)]
    assert bring.at == Point(0, 2)
    assert dict(bring.tokens) == {A: 101, B: 100, C: 201}
    assert over.state.at == Point(1, 0)
    assert over.state.phase == "gathering"
    again = fed(over.state, *(group.Ready(peer, Point(1, 0), b"x") for peer in (A, B, C)))
    assert again.state.phase == "stepping"


def test_who_begins_a_round_with_other_parameters_than_its_stage_loads_those_of_another_replica() -> None:
    done = fed(begun().state, group.Ready(A, START, b"w"), group.Ready(B, START, b"v"))
    assert Begin(B, 0, START, (A,)) in done.orders
    assert not done.state.members[B].is_ready


def test_who_comes_loads_from_the_replicas_and_the_steps_end_waits_for_it_but_not_for_ever() -> None:
    state = ready().state
    came = fed(state, group.Came(D, 1))
    assert Begin(D, 1, START, (C,)) in came.orders
    assert Beside(1, (C, D)) in came.orders
    held = granted(came.state)
    assert "loads the weights" in held.waiting
    loaded = fed(held.state, group.Ready(D, START))
    assert OfStep(START, synced.Sum(A, ONE)) in loaded.orders
    living = [group.Heard(peer) for peer in (A, B, C, D)]
    assert not fed(held.state, *living, group.Ticked(), now_s=29.0).orders
    late = fed(held.state, *living, group.Ticked(), now_s=30.1)
    assert OfStep(START, synced.Sum(A, ONE)) in late.orders


def test_who_is_not_heard_is_lost_and_what_it_was_granted_is_done_again_by_another() -> None:
    done = granted(ready().state)
    awake = fed(done.state, group.Heard(B), group.Heard(C), now_s=4.0)
    lost = fed(awake.state, group.Ticked(), now_s=4.1)
    assert A not in lost.state.members
    assert Beside(0, (B,)) in lost.orders
    assert OfStep(START, synced.Ask(B, Work(0, 0, True))) in lost.orders
    held_up = fed(awake.state, group.Ticked(held_up_s=1.0), now_s=4.1)
    assert A in held_up.state.members


def test_a_stage_that_nobody_has_any_more_ends_the_group_and_says_what_is_lost() -> None:
    state = stepped(ready().state).state
    lost = fed(state, group.Lost(C))
    (end,) = [order for order in lost.orders if isinstance(order, End)]
    assert end.peers == (A, B)
    assert end.lost_tokens == 100
    assert "stages [1] have nobody left" in end.reason
    assert fed(lost.state, group.Came(D, 1)).remark == "the group is no more"


def test_a_word_about_another_point_changes_nothing() -> None:
    state = ready().state
    for event in (
        group.InStep(Point(0, 1), Finished(A, Work(0, 0, False))),
        group.Squared(A, Point(0, 1), 1.0),
        group.Ready(A, Point(0, 1)),
        group.Ready(D, START),
        group.Came(A, 0),
        group.Came(D, 2),
        group.Lost(D),
    ):
        passed = fed(state, event)
        assert passed.remark
        assert passed.state.step == state.step


def test_who_stands_at_a_former_point_loads_the_present_one() -> None:
    state = stepped(ready().state).state
    behind = fed(replace(state, members={**state.members, D: group.Member(1)}), group.Ready(D, START))
    assert Begin(D, 1, Point(0, 1), (C,)) in behind.orders


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="inner step"):
        GroupConfig(STEPS, inner_steps=0, step_tokens=100)
