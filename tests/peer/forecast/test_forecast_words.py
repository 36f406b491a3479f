from __future__ import annotations

import pytest

from peer.forecast.crew_core import parse_crew
from peer.forecast.forecast_core import Conditions, forecast
from peer.forecast.forecast_words import assumption_line, candidate_lines, forecast_estimates, forecast_json
from peer.forecast.search_core import best_within
from peer.forecast.shapes_core import Numbers, run_of, shape_of
from protocol.estimates.dry_run import estimate_lines

CONDITIONS = Conditions(hours_a_day=8.0, leaves_a_day=2.0)
RUN = run_of(shape_of(350_000_000, 32_768), 7_000_000_000, Numbers(members=3))
FOUND = forecast(RUN, parse_crew("4xrtx4090"), CONDITIONS)


def test_each_thing_has_its_line() -> None:
    names = [each.name for each in forecast_estimates(FOUND, CONDITIONS)]
    expected = ["model", "peers", "together", "rounds", "leaving", "a day", "memory", "time", "energy", "loss"]
    assert [name for name in names if name] == expected


def test_what_is_not_asked_for_is_not_told() -> None:
    (energy,) = [each.expected for each in forecast_estimates(FOUND, CONDITIONS) if each.name == "energy"]
    assert "CO2" not in energy
    assert "costs" not in energy


def test_assumptions_are_told_in_one_line() -> None:
    assert "30% of their peak" in assumption_line(CONDITIONS)
    assert "8 h a day" in assumption_line(CONDITIONS)


def test_models_of_a_search_are_one_line_each_and_few() -> None:
    best = best_within(3.0, Numbers(), parse_crew("4xrtx4090"), CONDITIONS)
    lines = candidate_lines(best, 3)
    assert len(lines) == 3
    assert all("loss" in line for line in lines)


def test_json_has_units_in_its_names() -> None:
    found = forecast_json(FOUND)
    assert {"machine_bytes", "day_up_bytes", "kwh", "joules_per_token", "carbon_kg"} <= set(found)


def test_a_run_of_a_moment_has_no_time_of_zero_and_whole_steps() -> None:
    small = run_of(shape_of(1_000_000, 512), 2_000_000, Numbers(members=5))
    lines = {
        each.name: each.expected
        for each in forecast_estimates(forecast(small, parse_crew("5xh100"), CONDITIONS), CONDITIONS)
    }
    assert lines["time"] == "less than 1 s"
    assert lines["energy"].endswith(" Wh")
    assert "e+" not in " ".join(lines.values())


def test_a_run_that_ends_within_its_first_round_has_no_interval_of_rounds_and_no_days_of_traffic() -> None:
    small = run_of(shape_of(1_000_000, 512), 2_000_000, Numbers(members=5))
    found = forecast(small, parse_crew("5xh100"), CONDITIONS)
    lines = {each.name: each.expected for each in forecast_estimates(found, CONDITIONS)}
    assert lines["rounds"] == "one: all tokens are trained within it"
    assert "a day" not in lines
    assert lines["a round"].startswith("up ")


@pytest.mark.parametrize(
    ("num_values", "vocab_size", "tokens"),
    [(1_000_000, 257, 1_000_000), (350_000_000, 8_192, 7_000_000_000), (6_000_000, 32_768, 100_000)],
)
def test_a_loss_is_a_number_or_one_reason_why_there_is_none(num_values: int, vocab_size: int, tokens: int) -> None:
    run = run_of(shape_of(num_values, vocab_size), tokens, Numbers(vocab_size=vocab_size))
    found = forecast(run, parse_crew("1xh100"), CONDITIONS)
    lines = estimate_lines(forecast_estimates(found, CONDITIONS))
    said = [line for line in (*lines, *found.notes) if "loss" in line or "law" in line or "nats" in line]
    assert len(said) == 1
    assert said[0].startswith("no loss is foretold: the law ")
    assert forecast_json(found)["loss"] is None
    assert FOUND.loss is not None
    assert not any(note.startswith("no loss") for note in FOUND.notes)


def test_models_of_a_vocabulary_that_the_law_does_not_know_are_listed_without_a_loss() -> None:
    best = best_within(3.0, Numbers(vocab_size=257), parse_crew("4xrtx4090"), CONDITIONS)
    assert not any("loss" in line or line.rstrip().endswith(",") for line in candidate_lines(best, 3))
