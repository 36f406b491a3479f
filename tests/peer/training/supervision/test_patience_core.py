"""A command may wait for many of the slowest steps, within bounds."""

from __future__ import annotations

import math

import pytest

from peer.training.supervision.patience_core import LEAST_PATIENCE_S, MOST_PATIENCE_S, PATIENCE_STEPS, patience_s


@pytest.mark.parametrize(
    ("micro_batch", "slowest_s", "found"),
    [
        (4, 0.01, LEAST_PATIENCE_S),
        (4, 3.0, 3.0 * PATIENCE_STEPS),
        (4, 1000.0, MOST_PATIENCE_S),
        (4, math.inf, MOST_PATIENCE_S),
        (0, 0.01, MOST_PATIENCE_S),
    ],
    ids=["quick steps", "slow steps", "very slow steps", "no two steps yet", "the micro-batch is still to be found"],
)
def test_patience_grows_with_the_slowest_step_within_bounds(micro_batch: int, slowest_s: float, found: float) -> None:
    assert patience_s(micro_batch, slowest_s) == found
