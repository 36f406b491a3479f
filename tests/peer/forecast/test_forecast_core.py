from __future__ import annotations

from dataclasses import replace

import pytest

from peer.forecast.crew_core import Link, parse_crew
from peer.forecast.forecast_core import Conditions, Energy, forecast
from protocol.errors import ConfigError
from protocol.estimates.estimates import SECONDS_PER_DAY, run_size
from protocol.run.manifest import RunConfig, default_run_toml, parse_run_config
from protocol.run.traffic import round_bytes

CONDITIONS = Conditions(link=Link(1000.0, 1000.0), g_per_kwh=400.0, price_kwh=0.25, machine_watts=50.0)
NONE = Energy(0.0, None, None)
THREE = parse_crew("3x2000tok/s:150w")


def _run(**keys: object) -> RunConfig:
    run = parse_run_config(default_run_toml())
    return run.model_copy(update={"round": run.round.model_copy(update=keys)})


def test_memory_and_bytes_are_those_that_the_dry_run_promises() -> None:
    """Peers so slow that each round ends by its longest interval, as the dry run's day has it."""
    run = _run()
    size, found = run_size(run), forecast(run, parse_crew("3x100tok/s"), CONDITIONS)
    assert found.machine_bytes == size.peer_bytes
    up, down = round_bytes(size.update_bytes, size.result_bytes, 3, reduces=True)
    assert found.day_up_bytes == pytest.approx(up * size.slow_rounds_per_day, rel=0.05)
    assert found.day_down_bytes == pytest.approx(down * size.slow_rounds_per_day, rel=0.05)


def test_time_energy_cost_and_carbon_follow_from_speed_and_power() -> None:
    found = forecast(_run(), THREE, CONDITIONS)
    assert found.tokens == 20_000_000
    assert found.days * SECONDS_PER_DAY == pytest.approx(20_000_000 / 6000, rel=0.01)
    kwh = 3 * 0.2 * found.days * 24
    assert found.energy is not None
    assert found.energy.kwh == pytest.approx(kwh)
    assert (found.energy.cost, found.energy.carbon_kg) == (pytest.approx(kwh * 0.25), pytest.approx(kwh * 0.4))


def test_half_the_hours_take_twice_the_days_and_the_same_energy() -> None:
    whole_day, half = (forecast(_run(), THREE, replace(CONDITIONS, hours_a_day=hours)) for hours in (24.0, 12.0))
    assert half.days == pytest.approx(2 * whole_day.days, rel=0.01)
    assert (half.energy or NONE).kwh == pytest.approx((whole_day.energy or NONE).kwh, rel=0.01)
    assert half.speed.members == pytest.approx(1.5)


def test_peers_that_leave_cost_time_and_ones_that_never_stay_are_refused() -> None:
    found = forecast(_run(), THREE, replace(CONDITIONS, leaves_a_day=24.0))
    assert 0.01 < found.speed.leaving_share < 0.1
    with pytest.raises(ConfigError, match="--churn 1000"):
        forecast(_run(longest_interval_s=3600.0), parse_crew("3x10tok/s"), replace(CONDITIONS, leaves_a_day=1000.0))


def test_power_that_nobody_knows_makes_no_energy_and_a_note() -> None:
    found = forecast(_run(), parse_crew("2x2000tok/s:150w,1x2000tok/s"), CONDITIONS)
    assert found.energy is None
    assert any("power" in note for note in found.notes)


def test_peers_that_cannot_train_the_model_are_left_out_by_name_and_nobody_left_is_an_error() -> None:
    large = _run().model_copy(
        update={"model": _run().model.model_copy(update={"dim": 4096, "num_layers": 32, "ffn_dim": 11_008})}
    )
    found = forecast(large, parse_crew("1x8xh100,2xrtx2060"), CONDITIONS)
    assert [note for note in found.notes if note.startswith("2xrtx2060 is left out")]
    assert found.speed.members == 1.0
    with pytest.raises(ConfigError, match="no peer can train") as caught:
        forecast(large, parse_crew("2xrtx2060"), CONDITIONS)
    assert "\n" not in str(caught.value)


def test_a_thin_link_is_a_note_and_one_that_carries_nothing_too() -> None:
    def notes_at(mbit: float) -> str:
        return " ".join(forecast(_run(), parse_crew("3x3000tok/s"), replace(CONDITIONS, link=Link(mbit, mbit))).notes)

    assert "the slowest link makes rounds longer, " in notes_at(0.3)
    assert "no round would end" in notes_at(0.01)
    assert "link" not in notes_at(1000.0)


def test_a_run_of_stages_is_sent_to_its_own_command() -> None:
    run = parse_run_config(default_run_toml("pipeline"))
    with pytest.raises(ConfigError, match="potluck cut"):
        forecast(run, THREE, CONDITIONS)


def test_a_run_of_experts_is_planned_by_what_a_peer_holds() -> None:
    run = parse_run_config(default_run_toml("expert"))
    found = forecast(run, THREE, CONDITIONS)
    assert found.num_values == run.num_elements > run.held_elements
    assert found.machine_bytes == run_size(run).peer_bytes


def test_outside_of_the_laws_range_the_loss_comes_with_warnings() -> None:
    run = _run().model_copy(update={"model": _run().model.model_copy(update={"vocab_size": 32_000, "dim": 512})})
    found = forecast(run, THREE, CONDITIONS)
    assert found.loss is not None
    assert found.loss.notes
    assert set(found.loss.notes) <= set(found.notes)
