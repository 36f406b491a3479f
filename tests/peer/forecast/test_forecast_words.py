from __future__ import annotations

from peer.forecast.crew_core import parse_crew
from peer.forecast.forecast_core import Conditions, forecast
from peer.forecast.forecast_words import assumption_line, candidate_lines, forecast_estimates, forecast_json
from peer.forecast.search_core import best_within
from peer.forecast.shapes_core import Numbers, run_of, shape_of

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


def test_a_loss_above_that_of_a_model_that_knows_nothing_is_told_to_be_none() -> None:
    small = run_of(shape_of(1_000_000, 257), 1_000_000, Numbers())
    assert any(note.startswith("no loss to expect") for note in forecast(small, parse_crew("1xh100"), CONDITIONS).notes)
    assert not any(note.startswith("no loss to expect") for note in FOUND.notes)
