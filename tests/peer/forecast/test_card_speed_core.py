from __future__ import annotations

from pathlib import Path

import pytest

from averaging.system.machine_limits import Memory
from peer.checks import expected_plan as expected_plan_module
from peer.checks.expected_plan import expected_plan
from peer.forecast.card_speed_core import MACHINE_MEMORY, USUAL_MFU, group_speed
from peer.forecast.crew_core import parse_crew
from peer.forecast.known_cards_core import known_card
from peer.forecast.shapes_core import Numbers, run_of, shape_of
from peer.settings.config import PeerConfig
from peer.training.plan.card_memory_core import flops_per_token, whole_load
from protocol.run.manifest import RunConfig
from protocol.tables import whole


def _run(num_values: int) -> RunConfig:
    return run_of(shape_of(num_values, 32_768), 20 * num_values, Numbers())


def test_a_card_trains_at_its_share_of_the_peak() -> None:
    run = _run(124_000_000)
    (group,) = parse_crew("3xrtx3090")
    found = group_speed(run, group, mfu=0.4)
    assert found.tokens_per_s == pytest.approx(0.4 * 71e12 / flops_per_token(whole_load(run.model)))
    assert found.how.startswith("RTX 3090, 24 GB: bf16, compiled")


@pytest.mark.parametrize("num_values", [124_000_000, 1_000_000_000, 1_400_000_000, 8_000_000_000])
def test_memory_and_speed_are_what_the_doctor_of_that_card_would_say(
    num_values: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, card = _run(num_values), known_card("rtx3090").card
    machine_bytes = MACHINE_MEMORY * card.memory_bytes
    monkeypatch.setattr(expected_plan_module, "read_memory", lambda: Memory(machine_bytes, machine_bytes))
    own = PeerConfig(state_dir=tmp_path)
    exact = run.model_copy(update={"inner": run.inner.model_copy(update={"moments": "exact"})})
    choice = expected_plan(card, exact, own, has_compiler=True)
    found = group_speed(exact, parse_crew("rtx3090")[0], USUAL_MFU)
    assert (found.card_bytes, found.usable_bytes) == (choice.expected_bytes, choice.usable_bytes)
    assert found.fits == (choice.missing_bytes == 0)
    told, _, speed = choice.reason.partition("; about ")
    assert told == found.how
    assert speed.startswith(f"{whole(found.tokens_per_s)} tokens/s at " if found.fits else "")
    assert bool(speed) == speed.endswith(" of its peak") == found.fits


def test_sparing_memory_costs_speed() -> None:
    (group,) = parse_crew("rtx3090")
    roomy, tight = (group_speed(_run(size), group, 0.3) for size in (300_000_000, 2_000_000_000))
    reached = [
        each.tokens_per_s * flops_per_token(whole_load(_run(size).model))
        for each, size in ((roomy, 300_000_000), (tight, 2_000_000_000))
    ]
    assert "computed again" in tight.how
    assert reached[0] == pytest.approx(0.3 * 71e12)
    assert reached[1] < 0.96 * reached[0]


def test_several_cards_of_a_peer_add_up_and_share_a_model_that_fits_none_alone() -> None:
    alone, four = (group_speed(_run(124_000_000), parse_crew(name)[0], 0.3) for name in ("h100", "1x4xh100"))
    assert 3.0 <= four.tokens_per_s / alone.tokens_per_s <= 4.0
    large = _run(20_000_000_000)
    assert not group_speed(large, parse_crew("h100")[0], 0.3).fits
    assert group_speed(large, parse_crew("1x8xh100")[0], 0.3).fits


def test_a_measured_speed_is_taken_as_it_is() -> None:
    run = _run(124_000_000)
    measured, any_model = parse_crew("2x1500tok/s,1x5tflops")
    assert group_speed(run, measured, 0.3).tokens_per_s == 1500.0
    assert group_speed(run, any_model, 0.3).tokens_per_s == pytest.approx(5e12 / flops_per_token(whole_load(run.model)))
