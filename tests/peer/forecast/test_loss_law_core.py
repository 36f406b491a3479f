from __future__ import annotations

from itertools import pairwise
from math import inf, isinf

import pytest

from peer.forecast.loss_law_core import (
    BESIROGLU,
    HOFFMANN,
    Schedule,
    expected_loss,
    least_loss,
    members_factor,
    no_law_for,
    tokens_to,
)

ALONE = Schedule()


def test_the_loss_of_chinchilla_is_as_both_papers_have_it() -> None:
    """70G values and 1.4T tokens: both fits agree there to a few hundredths."""
    assert BESIROGLU.loss(70e9, 1.4e12) == pytest.approx(1.97, abs=0.02)
    assert HOFFMANN.loss(70e9, 1.4e12) == pytest.approx(1.94, abs=0.02)


@pytest.mark.parametrize(
    ("num_values", "members", "percent"),
    [(35e6, 2, 0.7), (35e6, 4, 2.0), (35e6, 8, 3.9), (90e6, 8, 3.1), (550e6, 4, 0.7), (550e6, 8, 1.7), (2.4e9, 8, 1.1)],
)
def test_members_cost_what_the_published_table_shows(num_values: float, members: float, percent: float) -> None:
    """Charles et al. 2025: measured losses over those of data-parallel training; the fits miss them by at most 0.4%."""
    assert 100 * (members_factor(num_values, members) - 1) == pytest.approx(percent, abs=0.45)


def test_a_training_that_its_authors_left_out_of_the_fit_is_outside_of_its_range() -> None:
    """The points of arXiv 2404.10102 with the fewest tokens a value: the last one left out, the first one taken."""
    assert len(expected_loss(2.007e9, 8.116e8, ALONE).notes) == 1
    assert expected_loss(1.794e9, 8.2e8, ALONE).notes == ()


def test_the_published_numbers_are_as_their_tables_have_them() -> None:
    """Besiroglu et al. 2024, table 1: both rows."""
    assert (BESIROGLU.floor, BESIROGLU.of_values, BESIROGLU.of_tokens) == (1.8172, 482.01, 2085.43)
    assert (BESIROGLU.values_power, BESIROGLU.tokens_power) == (0.3478, 0.3658)
    assert (HOFFMANN.floor, HOFFMANN.of_values, HOFFMANN.of_tokens) == (1.6934, 406.4, 410.7)
    assert (HOFFMANN.values_power, HOFFMANN.tokens_power) == (0.3392, 0.2849)


def test_the_factor_has_no_jumps_and_grows_with_members_where_models_are_small() -> None:
    factors = [members_factor(35e6, members / 4) for members in range(4, 80)]
    assert factors == sorted(factors)
    assert max(after - before for before, after in pairwise(factors)) < 0.01


def test_long_rounds_and_more_members_cost_and_one_member_alone_pays_nothing() -> None:
    short, long = (expected_loss(1e9, 2e10, Schedule(4, steps)).nats for steps in (30, 1000))
    assert short < long < short + 0.05
    assert expected_loss(1e9, 2e10, Schedule(1, 1000)).nats == BESIROGLU.loss(1e9, 2e10)
    assert expected_loss(1e8, 2e9, Schedule(8, 30)).nats > expected_loss(1e8, 2e9, Schedule(2, 30)).nats


def test_the_interval_holds_both_fits() -> None:
    found = expected_loss(1e9, 2e10, ALONE)
    assert found.low < min(BESIROGLU.loss(1e9, 2e10), HOFFMANN.loss(1e9, 2e10))
    assert found.high > max(BESIROGLU.loss(1e9, 2e10), HOFFMANN.loss(1e9, 2e10))
    assert found.notes == ()


@pytest.mark.parametrize(
    ("num_values", "tokens", "schedule", "words"),
    [
        (1e6, 2e10, ALONE, "models of 57.0M to 16.0B values; this one has 1.0M, 57 times smaller"),
        (1e9, 1e6, ALONE, "fitted to 820.0M to 320.0B tokens; these are 1.0M, 820 times fewer"),
        (1e9, 6.4e11, ALONE, "these are 640.0B, 2 times more"),
        (1e9, 2e10, Schedule(20), "1 to 8 members"),
        (
            1.5e10,
            3e11,
            Schedule(4),
            "DiLoCo's law was fitted to models of 35.0M to 10.0B values, this one is 1.5 times larger",
        ),
        (1e9, 2e10, Schedule(4, 5000), "up to 1000 local steps"),
    ],
)
def test_outside_of_its_range_the_law_warns(num_values: float, tokens: float, schedule: Schedule, words: str) -> None:
    (note,) = expected_loss(num_values, tokens, schedule).notes
    assert words in note


@pytest.mark.parametrize(
    ("num_values", "tokens", "vocab_size", "words"),
    [
        (1e9, 2e10, 257, "a vocabulary of about 32,000, and this one has 257"),
        (1e5, 1e6, 32_768, "does not hold for 100.0k values after 1.0M tokens"),
        (1e9, 2e10, 16_000, ""),
        (1e9, 1e8, 32_768, ""),
    ],
)
def test_of_small_vocabularies_and_far_below_its_range_the_law_says_nothing(
    num_values: float, tokens: float, vocab_size: int, words: str
) -> None:
    found = no_law_for(num_values, tokens, Schedule(vocab_size=vocab_size))
    assert words in found
    assert bool(found) == bool(words)


def test_tokens_to_a_loss_lead_back_to_it_and_below_the_floor_none_are_enough() -> None:
    for schedule in (ALONE, Schedule(4, 100)):
        tokens = tokens_to(2.6, 1e9, schedule)
        assert expected_loss(1e9, tokens, schedule).nats == pytest.approx(2.6)
        assert isinf(tokens_to(least_loss(1e9, schedule) - 0.01, 1e9, schedule))
    assert tokens_to(2.0, 1e6, ALONE) == inf


def test_a_small_model_is_told_how_far_below_the_law_of_members_it_is() -> None:
    notes = expected_loss(3.5e6, 2e10, Schedule(4)).notes
    assert notes[-1].endswith("values, this one is 10 times smaller; members cost small models more than it says")
