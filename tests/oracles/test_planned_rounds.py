"""Planned rounds against the production round machine, in virtual time behind slow links."""

from __future__ import annotations

import pytest

from peer.forecast.crew_core import Link
from peer.forecast.round_times_core import Pace, round_times
from peer.forecast.shapes_core import Numbers, run_of, shape_of
from protocol.run.manifest import RunConfig
from tests.simulation.slow_links import CODEC, Links, RoundTiming, run
from tests.simulation.trainer import STEP_TOKENS

NUM_ROUNDS = 3
MOST_OFF = 0.25
STEP_S = 0.4
FAST_DOWN = 1e5


def _planned(values: RunConfig, steps: int, *, is_blocking: bool) -> RunConfig:
    section = values.round.model_copy(
        update={"target_tokens": 2 * steps * STEP_TOKENS, "mode": "blocking" if is_blocking else "overlap"}
    )
    inner = values.inner.model_copy(update={"batch_tokens": STEP_TOKENS})
    return values.model_copy(update={"round": section, "inner": inner})


@pytest.mark.parametrize(
    ("mbit_s", "steps", "is_blocking"),
    [(60.0, 40, False), (60.0, 40, True), (6.0, 40, False)],
    ids=["training goes on", "training waits", "a link that makes rounds longer"],
)
def test_rounds_last_as_long_as_planned(mbit_s: float, steps: int, is_blocking: bool) -> None:
    shape = shape_of(50_000_000, 32_768)
    numbers = Numbers(codec=CODEC, members=2)
    config = _planned(run_of(shape, 10**9, numbers), steps, is_blocking=is_blocking)
    links = Links(mbit_s * 1e6, step_s=STEP_S, num_peers=2, values=config.held_elements)
    seen = run(links, RoundTiming(steps, is_blocking=is_blocking), lambda told: len(told.rounds) >= NUM_ROUNDS + 2, 1e5)
    plan = round_times(config, Pace(2, 2 * STEP_TOKENS / STEP_S, Link(FAST_DOWN, mbit_s)))
    steady = seen.steady(NUM_ROUNDS)
    round_s = sum(each.round_s for each in steady) / len(steady)
    tokens_per_s = sum(each.tokens for each in steady) / sum(each.round_s for each in steady)
    assert plan.round_s == pytest.approx(round_s, rel=MOST_OFF)
    assert plan.tokens / plan.round_s == pytest.approx(tokens_per_s, rel=MOST_OFF)
    assert 1.0 - plan.lost_share == pytest.approx(seen.utilisation(NUM_ROUNDS), rel=MOST_OFF)
