"""The experts of one peer take turns."""

from __future__ import annotations

from peer.training.replica.expert_turns import expert_of_step


def test_each_expert_has_its_step_and_a_run_without_has_none() -> None:
    assert [expert_of_step((1, 4), step) for step in range(4)] == [1, 4, 1, 4]
    assert [expert_of_step((3,), step) for step in range(2)] == [3, 3]
    assert expert_of_step((), 7) is None


def test_each_island_takes_all_experts_and_islands_begin_at_different_ones() -> None:
    """Positions of island 0 of two are even, those of island 1 odd: by the position alone each would have one expert."""
    turns = [[expert_of_step((3, 5), step, 2) for step in range(island, 8, 2)] for island in range(2)]
    assert turns == [[3, 5, 3, 5], [5, 3, 5, 3]]
