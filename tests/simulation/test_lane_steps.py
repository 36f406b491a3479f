"""Lanes of whole peers under drawn faults keep their rules, and a rule that is taken out is found."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from protocol.rounds.messages import lane_parts
from tests.simulation.lane_steps import LONG_EXCHANGE_S, simulate

SEEDS = int(os.environ.get("POTLUCK_LANE_SEEDS", "2"))
"""Of stories; more where somebody asks for them."""

TWICE = (71, 102)
"""Of 120 stories with long exchanges, those in which a lane would be brought twice; one is enough, since what a seed draws moves with
the simulation."""


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_lane_is_in_a_round_once_at_every_stage_as_one_data_peer_would_be_or_somebody_says_where_it_is_lost(
    seed: int,
) -> None:
    world, _ = simulate(seed)
    assert world.ledger.num_checked >= 3 * min(unit.state.index for unit in world.units)


def test_a_seat_that_is_lost_and_taken_while_a_round_is_exchanged_is_in_it_once_and_who_died_in_it_in_the_next_one() -> (
    None
):
    late = 0
    for seed in (9, 57, *TWICE):
        world, _ = simulate(seed, LONG_EXCHANGE_S)
        late += world.ledger.num_late
    assert late


def test_without_the_rule_that_a_lane_is_counted_once_a_lost_seat_is_found_in_the_round_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_parts, "brought_twice", lambda brought: {})
    with pytest.raises(AssertionError, match="once more"):
        _simulate_all(TWICE)


def _simulate_all(seeds: Sequence[int]) -> None:
    for seed in seeds:
        simulate(seed, LONG_EXCHANGE_S)
