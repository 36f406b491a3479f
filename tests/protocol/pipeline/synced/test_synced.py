"""A synced step as its owner decides it: each micro-batch once at every stage, or at none, whatever is lost, late or twice."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.ids import PeerId
from protocol.pipeline.synced import synced
from protocol.pipeline.synced.synced import (
    Ask,
    Commit,
    Declined,
    Drop,
    Event,
    Finished,
    Grant,
    Measured,
    ReplicaJoined,
    ReplicaLost,
    Spoilt,
    StartAgain,
    Sum,
    SumDelivered,
    SyncedState,
    Ticked,
)
from protocol.pipeline.synced_routing import SyncedConfig, Work
from tests.protocol.pipeline.synced_world import Faults, SyncedWorld

A, B, C, D = (PeerId(name) for name in "ABCD")
CONFIG = SyncedConfig(num_stages=2, num_micro_batches=1, in_flight=4)
F0, B0, B1 = Work(0, 0, False), Work(0, 0, True), Work(0, 1, True)


def _fed(state: SyncedState, *events: Event, now_s: float = 0.0) -> synced.Step:
    done = synced.Step(state)
    for event in events:
        done = synced.step(done.state, event, now_s)
    return done


def _begun() -> SyncedState:
    return _fed(SyncedState(CONFIG, 1), ReplicaJoined(A, 0), ReplicaJoined(C, 1)).state


def _granted() -> synced.Step:
    return _fed(_begun(), Finished(A, F0), Finished(C, B1), Finished(A, B0))


def test_a_micro_batch_goes_forward_and_backward_and_its_sums_are_committed() -> None:
    begun = _fed(SyncedState(CONFIG, 1), ReplicaJoined(A, 0))
    assert begun.orders == (Ask(A, F0),)
    back = synced.step(begun.state, ReplicaJoined(A, 0), 0.0)
    assert back.orders == (StartAgain(A, "what it had summed before counts no more"), Ask(A, F0))
    forward = _fed(_begun(), Finished(A, F0))
    assert forward.orders == (Ask(C, B1),)
    last = synced.step(forward.state, Finished(C, B1), 0.0)
    assert last.orders == (Grant(C, 0), Ask(A, B0))
    assert _granted().orders == (Grant(A, 0), Sum(C, frozenset({0})), Sum(A, frozenset({0})))
    summed = _fed(_granted().state, SumDelivered(A, frozenset({0})))
    assert summed.waiting == "sums of C"
    (commit,) = synced.step(summed.state, SumDelivered(C, frozenset({0})), 0.0).orders
    assert isinstance(commit, Commit)
    assert commit.sums == ((0, ((A, frozenset({0})),)), (1, ((C, frozenset({0})),)))
    assert commit.counted == {0}


def test_what_a_lost_replica_was_granted_is_done_again_at_its_stage_alone() -> None:
    lost = _fed(_granted().state, ReplicaJoined(B, 0), ReplicaLost(A))
    assert lost.orders == (Ask(B, B0),)
    again = synced.step(lost.state, Finished(B, B0), 0.0)
    assert Grant(B, 0) in again.orders
    assert Sum(B, frozenset({0})) in again.orders


def test_a_reply_that_comes_twice_or_from_two_counts_once() -> None:
    state = _fed(_begun(), ReplicaJoined(D, 1), Finished(A, F0)).state
    first = synced.step(state, Finished(C, B1), 0.0).state
    assert synced.step(first, Finished(C, B1), 0.0).orders == ()
    assert synced.step(first, Finished(D, B1), 0.0).orders == (Drop(D, 0),)


def test_work_that_is_late_is_given_to_another_replica_too_and_to_the_same_one_where_there_is_no_other() -> None:
    alone = synced.step(_begun(), Ticked(), 3.1)
    assert alone.orders == (Ask(A, F0),)
    both = _fed(_begun(), ReplicaJoined(B, 0)).state
    assert synced.step(both, Ticked(), 2.9).orders == ()
    assert synced.step(both, Ticked(), 3.1).orders == (Ask(B, F0),)


def test_a_replica_that_declines_is_asked_again_after_a_tick_and_others_at_once() -> None:
    declined = synced.step(_begun(), Declined(A, F0), 0.0)
    assert declined.orders == ()
    assert synced.step(declined.state, Ticked(), 0.1).orders == (Ask(A, F0),)
    other = _fed(_begun(), ReplicaJoined(B, 0), Declined(A, F0))
    assert other.orders == (Ask(B, F0),)


def test_a_spoilt_micro_batch_is_removed_everywhere_and_sums_that_had_it_begin_again() -> None:
    two = SyncedConfig(num_stages=2, num_micro_batches=2, in_flight=4)
    state = _fed(SyncedState(two, 1), ReplicaJoined(A, 0), ReplicaJoined(C, 1)).state
    later = [Finished(A, Work(1, 0, False)), Finished(C, Work(1, 1, True))]
    state = _fed(state, Finished(A, F0), Finished(C, B1), *later).state
    spoilt = synced.step(state, Spoilt(0), 0.0)
    assert [order for order in spoilt.orders if isinstance(order, StartAgain)] == [
        StartAgain(C, "micro-batch 0 is removed at all stages, and was in its sum")
    ]
    assert Ask(C, Work(1, 1, True)) in spoilt.orders
    assert spoilt.state.counted == {1}
    assert synced.step(spoilt.state, Finished(A, B0), 0.0).orders == (Drop(A, 0),)


def test_a_sum_over_other_micro_batches_than_were_granted_does_not_count() -> None:
    state = _granted().state
    assert "which it was not granted" in synced.step(state, SumDelivered(A, frozenset({0, 1})), 0.0).remark
    assert synced.step(state, Ticked(), 1.1).orders == (Sum(C, frozenset({0})), Sum(A, frozenset({0})))


def test_the_sums_of_a_stage_are_asked_for_again_where_a_replica_joins_that_has_none_of_them() -> None:
    summing = _fed(_granted().state, SumDelivered(A, frozenset({0}))).state
    assert summing.replicas[A].summed
    joined = synced.step(summing, ReplicaJoined(B, 0), CONFIG.first_guess_s)
    assert Sum(A, frozenset({0})) in joined.orders
    assert joined.state.phase != "over"


def test_a_stage_that_nobody_has_is_said_and_the_step_goes_on_when_somebody_does() -> None:
    state = _fed(SyncedState(CONFIG, 1), ReplicaJoined(A, 0), Finished(A, F0))
    assert state.waiting == "nobody has stages [1]"
    assert Ask(C, B1) in synced.step(state.state, ReplicaJoined(C, 1), 0.0).orders


def test_what_comes_from_nobody_is_passed_over_with_a_reason() -> None:
    for event in (Finished(D, F0), ReplicaLost(D), Finished(C, F0), Spoilt(7), ReplicaJoined(D, 2)):
        passed = synced.step(_begun(), event, 0.0)
        assert passed.remark
        assert passed.state.done == frozenset()


def test_a_replica_twice_as_fast_gets_twice_the_work_and_queues_are_bounded() -> None:
    config = SyncedConfig(num_stages=1, num_micro_batches=60, in_flight=12, queue=4)
    world = SyncedWorld(config, 3, Faults(), seed=1, speeds=(1.0, 2.0, 4.0), steps=2)
    world.run()
    slow, middle, fast = (world.num_done[PeerId(f"0.{number}")] for number in range(3))
    assert 1.4 * slow < middle < fast / 1.4
    assert 120 <= slow + middle + fast <= 126  # a few are asked for twice while nothing is known of anybody


@pytest.mark.parametrize("seed", range(12))
def test_every_micro_batch_counts_once_at_every_stage_or_at_none_under_drawn_faults(seed: int) -> None:
    faults = Faults(lost=0.15, twice=0.1, late=0.1, killed=0.03, spoilt=0.02 if seed % 2 else 0.0)
    config = SyncedConfig(num_stages=3, num_micro_batches=6, in_flight=6)
    world = SyncedWorld(config, 2, faults, seed=seed, steps=2)
    world.run()
    for commit in world.commits:
        assert commit.counted | commit.removed == set(range(6))
        assert bool(commit.removed) <= bool(faults.spoilt)


def test_who_has_shown_nothing_yet_is_tried_beside_those_who_are_fast() -> None:
    config = SyncedConfig(num_stages=2, num_micro_batches=6, in_flight=6)
    state = _fed(
        SyncedState(config, 1), ReplicaJoined(C, 1, work_s=0.1), ReplicaJoined(D, 1), ReplicaJoined(A, 0)
    ).state
    forward = [Finished(A, Work(number, 0, False)) for number in range(6)]
    asked = _fed(state, *forward).state.replicas
    assert len(asked[C].asked) == len(asked[D].asked) == 3


@pytest.mark.parametrize("seed", range(4))
def test_held_out_text_goes_forward_at_every_stage_and_is_measured_once_in_each_step_under_drawn_faults(
    seed: int,
) -> None:
    faults = Faults(lost=0.15, twice=0.1, late=0.1, killed=0.03)
    config = SyncedConfig(num_stages=3, num_micro_batches=6, in_flight=6)
    world = SyncedWorld(config, 2, faults, seed=seed, steps=2, num_heldout=3)
    world.run()
    assert world.measured == [7.0, 7.0]  # a reply tells its number: 6, 7 and 8
    assert all(commit.counted == set(range(6)) and not commit.removed for commit in world.commits)


def _measuring() -> SyncedState:
    return _fed(SyncedState(CONFIG, 1, num_heldout=1), ReplicaJoined(A, 0), ReplicaJoined(C, 1)).state


def test_a_step_ends_after_its_held_out_text_is_measured_and_what_is_measured_is_never_granted() -> None:
    trained = _fed(_measuring(), Finished(A, F0), Finished(C, B1), Finished(A, B0))
    assert not any(isinstance(order, Sum) for order in trained.orders)
    forward = _fed(trained.state, Finished(A, Work(1, 0, False)))
    assert forward.orders == (Ask(C, Work(1, 1, False)),)
    done = _fed(forward.state, Finished(C, Work(1, 1, False), 2.5))
    assert done.orders == (Measured(2.5), Sum(C, frozenset({0})), Sum(A, frozenset({0})))
    assert synced.step(done.state, Finished(C, Work(1, 1, False), 9.0), 0.0).orders == ()


def test_held_out_text_that_comes_to_no_number_is_said_and_removes_no_micro_batch() -> None:
    forward = _fed(_measuring(), Finished(A, Work(1, 0, False)))
    spoilt = _fed(forward.state, Spoilt(1))
    assert Measured(None) in spoilt.orders
    assert spoilt.state.counted == {0}
    assert spoilt.state.removed == frozenset()


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 stage"):
        SyncedConfig(num_stages=2, num_micro_batches=0, in_flight=1)
