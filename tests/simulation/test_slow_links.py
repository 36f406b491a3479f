"""Rounds behind slow links: as many steps as their exchange needs, and nobody is taken for dead."""

from __future__ import annotations

import statistics

import pytest

from tests.simulation.slow_links import Links, Pace, run

LINKS = Links(50e6, num_peers=2)


@pytest.mark.parametrize("is_blocking", [False, True])
def test_measured_rounds_come_to_the_fewest_steps_that_keep_the_utilisation(is_blocking: bool) -> None:
    told = run(LINKS, Pace(None, 0.95, is_blocking), lambda told: len(told.rounds) >= 14, 20_000.0)
    # each round is as long as the exchange of the one before it asks for, and exchanges differ by a third
    exchange_s = statistics.fmean(one.exchange_s for one in told.steady(9)[:-1])
    fewest = exchange_s * (19.0 if is_blocking else 1 / 0.95) / LINKS.step_s
    assert abs(told.steps(8) - fewest) <= max(1.0, 0.02 * fewest)
    assert told.utilisation(8) > (0.94 if is_blocking else 0.98)


def test_at_a_thousandth_of_a_gigabit_with_losses_rounds_go_on_and_nobody_is_taken_for_dead() -> None:
    told = run(Links(1e6, latency_s=0.1, loss=0.01, num_peers=2), Pace(100), lambda told: False, 900.0)
    assert (told.deaths, told.num_partial) == (set(), 0)
    assert told.rounds
