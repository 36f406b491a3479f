"""Synced steps of whole peers under drawn faults keep their rules, and a rule that is taken out is found."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.frozen import replace
from protocol.pipeline.synced import synced, synced_replica
from tests.simulation.synced_steps import simulate


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_gradient_is_in_a_step_once_at_every_stage_or_was_removed_at_all_of_them(seed: int) -> None:
    assert simulate(seed)


def sums_whatever_there_is(patch: pytest.MonkeyPatch) -> None:
    """A replica brings its sum under the numbers that it was asked for, whatever is in it."""

    def told_to_sum(state: Any, numbers: frozenset[int]) -> Any:
        return synced_replica.Step(replace(state, summed=numbers), (synced_replica.DeliverSum(numbers),))

    patch.setattr(synced_replica, "_told_to_sum", told_to_sum)


def counts_a_lost_replicas_work_as_anothers(patch: pytest.MonkeyPatch) -> None:
    """What a lost replica was granted is not done again."""
    real = synced._without

    def without(state: Any, peer: Any) -> Any:
        after, lost = real(state, peer), {piece for piece, whose in state.granted.items() if whose == peer}
        heirs = {one.stage: one.peer for one in after.replicas.values()}
        given = {(number, stage): heirs[stage] for number, stage in lost if stage in heirs}
        return replace(after, granted={**after.granted, **given})

    patch.setattr(synced, "_without", without)


def _one_after_another() -> None:
    for seed in range(1, 7):
        simulate(seed)


def test_a_rule_that_is_taken_out_at_owner_and_replica_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    counts_a_lost_replicas_work_as_anothers(monkeypatch)
    sums_whatever_there_is(monkeypatch)
    with pytest.raises(BaseException, match=r"lost|twice|not equal|for a step of|sub-exception|rounds"):
        _one_after_another()
