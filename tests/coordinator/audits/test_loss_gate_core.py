from __future__ import annotations

import random

import pytest

from coordinator.audits.loss_gate_core import (
    FEWEST_CHANGES,
    NEW_LEVEL_AFTER,
    Measure,
    noise_of,
    rise_in,
)


def _measures(losses: list[float]) -> list[Measure]:
    return [Measure(index, nats) for index, nats in enumerate(losses, 1)]


def _honest(num: int, seed: int, noise: float = 0.01) -> list[float]:
    """A loss that falls ever slower, with noise."""
    chance = random.Random(seed)
    return [2.0 + 3.0 / (1 + 0.2 * index) + chance.gauss(0.0, noise) for index in range(num)]


def test_the_noise_is_the_typical_change_and_one_bad_round_does_not_move_it() -> None:
    changes = [-0.01, 0.01, -0.02, 0.02, 0.0]
    assert noise_of(changes) == pytest.approx(0.01)
    assert noise_of([*changes, 90.0]) <= 0.02
    assert noise_of([]) == 0.0


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.05])
def test_honest_runs_never_rise_whatever_their_noise(noise: float) -> None:
    for seed in range(40):
        losses = _honest(120, seed, noise)
        assert [number for number in range(0, 121, 3) if rise_in(_measures(losses[:number]))] == []


def test_a_loss_that_runs_away_is_found_at_its_second_commit_and_the_last_good_one_is_named() -> None:
    good = _honest(40, 1)
    losses = _measures([*good, 2.9, 3.6, 5.0])
    assert rise_in(losses[:41]) is None, "one value is one peer's word"
    found = rise_in(losses[:42])
    assert found is not None
    assert found.good == losses[39]
    assert found.bad == tuple(losses[40:42])
    later = rise_in(losses)
    assert later is not None
    assert later.good == losses[39]
    assert later.words.startswith("held-out loss rose from 2.3")
    assert "to 5 at round 43; noise explains up to 2." in later.words


def test_one_bad_value_between_good_ones_is_no_rise_and_the_loss_that_comes_back_ends_one() -> None:
    good = _honest(40, 2)
    assert rise_in(_measures([*good, 9.0, good[-1], 9.0, good[-1]])) is None
    assert rise_in(_measures([*good, 9.0, 9.0])) is not None
    assert rise_in(_measures([*good, 9.0, 9.0, good[-1]])) is None


def test_a_loss_that_stays_up_becomes_the_level_of_the_run() -> None:
    good = _honest(40, 3)
    assert rise_in(_measures([*good, *[3.0] * NEW_LEVEL_AFTER])) is not None
    assert rise_in(_measures([*good, *[3.0] * (NEW_LEVEL_AFTER + 1)])) is None


def test_nothing_is_judged_before_the_noise_is_known() -> None:
    assert rise_in([]) is None
    assert rise_in(_measures([2.0, 90.0, 90.0])) is None
    few = [2.0 - 0.01 * number for number in range(FEWEST_CHANGES)]
    assert rise_in(_measures([*few, 90.0, 90.0])) is None
    assert rise_in(_measures([*few, 1.9, 1.9, 90.0, 90.0])) is not None
