"""Lanes of whole peers under drawn faults keep their rules, and a rule that is taken out is found."""

from __future__ import annotations

import os
from typing import Any

import pytest

from peer.lane_rounds import StageRounds
from tests.simulation.lane_steps import simulate

SEEDS = int(os.environ.get("POTLUCK_LANE_SEEDS", "4"))
"""Of stories; more where somebody asks for them."""


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_lane_is_in_a_round_once_at_every_stage_as_one_data_peer_would_be_or_somebody_says_where_it_is_lost(
    seed: int,
) -> None:
    world, _ = simulate(seed)
    assert world.ledger.num_checked >= 3 * min(unit.state.index for unit in world.units)


def test_a_share_that_stays_where_its_seat_was_given_back_is_found_in_the_round_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stays(rounds: Any, share: Any) -> None:
        """It is not taken back."""

    monkeypatch.setattr(StageRounds, "_withdraw", stays)
    with pytest.raises(AssertionError, match="once more"):
        simulate(33)
