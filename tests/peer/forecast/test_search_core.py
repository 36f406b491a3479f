from __future__ import annotations

import pytest

from peer.forecast.crew_core import parse_crew
from peer.forecast.forecast_core import Conditions, Forecast
from peer.forecast.search_core import best_within, portable, soonest_to, time_to, to_optimum, within_days
from peer.forecast.shapes_core import Numbers, run_of, shape_of
from peer.training.plan.card_memory_core import flops_per_token, run_load
from protocol.errors import ConfigError

CREW = parse_crew("4xrtx3090@1000,1xh100@1000")
CONDITIONS, NUMBERS = Conditions(), Numbers()
RUN = run_of(shape_of(350_000_000, 32_768), 7_000_000_000, NUMBERS)


def _nats(found: Forecast) -> float:
    return found.loss.nats if found.loss is not None else float("nan")


def test_the_best_model_for_some_days_beats_its_neighbours_and_more_days_take_a_larger_one() -> None:
    week, year = (best_within(days, NUMBERS, CREW, CONDITIONS) for days in (7.0, 365.0))
    losses = [each.found.loss.nats for each in week if each.found.loss is not None]
    assert losses == sorted(losses)
    assert week[0].found.days == pytest.approx(7.0, rel=1e-3)
    assert week[0].run.num_elements < year[0].run.num_elements
    assert losses[0] > _nats(year[0].found)


def test_the_soonest_model_reaches_the_loss_and_a_lower_loss_takes_longer() -> None:
    three, lower = (soonest_to(nats, NUMBERS, CREW, CONDITIONS) for nats in (3.0, 2.7))
    assert _nats(three[0].found) == pytest.approx(3.0, abs=1e-3)
    assert three[0].found.days < lower[0].found.days


def test_both_ways_of_asking_agree() -> None:
    found = time_to(3.0, RUN, CREW, CONDITIONS)
    back = within_days(found.days, RUN, CREW, CONDITIONS)
    assert _nats(back) == pytest.approx(3.0, abs=1e-3)


def test_the_picture_has_a_time_for_every_size_that_fits_some_peer() -> None:
    sizes = to_optimum(NUMBERS, CREW, CONDITIONS)
    values = [each.found.num_values for each in sizes]
    assert values == sorted(values)
    assert sizes[-1].found.days > 1000 * sizes[0].found.days
    assert sizes[-1].run.num_elements > 3_000_000_000


@pytest.mark.parametrize("nats", [1.0, 0.5])
def test_a_loss_that_nobody_can_reach_is_one_line(nats: float) -> None:
    with pytest.raises(ConfigError, match=f"--loss {nats:g}") as caught:
        soonest_to(nats, NUMBERS, CREW, CONDITIONS)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="which this model nears"):
        time_to(nats, RUN, CREW, CONDITIONS)


@pytest.mark.parametrize(("nats", "vocab_size"), [(11.0, 32_768), (3.0, 257)])
def test_a_loss_of_which_the_law_does_not_speak_is_refused_in_one_line(nats: float, vocab_size: int) -> None:
    numbers = Numbers(vocab_size=vocab_size)
    run = run_of(shape_of(350_000_000, vocab_size), 7_000_000_000, numbers)
    with pytest.raises(ConfigError, match=f"--loss {nats:g}"):
        soonest_to(nats, numbers, CREW, CONDITIONS)
    with pytest.raises(ConfigError, match=f"--loss {nats:g}"):
        time_to(nats, run, CREW, CONDITIONS)


def test_models_of_a_small_vocabulary_are_still_in_the_order_of_the_law() -> None:
    small, usual = (best_within(7.0, Numbers(vocab_size=size), CREW, CONDITIONS) for size in (257, 32_768))
    assert all(each.found.loss is None for each in small)
    assert 0.5 < small[0].run.num_elements / usual[0].run.num_elements < 2.0


@pytest.mark.parametrize("days", [0.0, -1.0, float("nan"), 1e9])
def test_days_that_nobody_can_mean_are_refused(days: float) -> None:
    with pytest.raises(ConfigError, match="--days"):
        best_within(days, NUMBERS, CREW, CONDITIONS)


def test_so_little_time_that_no_model_takes_a_step_is_an_error() -> None:
    with pytest.raises(ConfigError, match="finish no step"):
        best_within(1e-9, NUMBERS, CREW, CONDITIONS)


def test_a_speed_of_one_model_becomes_one_of_any_model_and_needs_that_model() -> None:
    (group,) = portable(parse_crew("2x1000tok/s:90w"), RUN)
    assert group.flops_per_s == pytest.approx(1000.0 * flops_per_token(run_load(RUN)))
    assert (group.tokens_per_s, group.watts, group.count) == (0.0, 90.0, 2)
    with pytest.raises(ConfigError, match="tflops"):
        portable(parse_crew("2x1000tok/s"), None)


@pytest.mark.parametrize("days", [1e-9, 1e-300])
def test_days_in_which_a_given_model_gets_no_step_are_refused(days: float) -> None:
    with pytest.raises(ConfigError, match=r"these peers train [0-9]+ tokens? in it; expected a step of"):
        within_days(days, RUN, CREW, CONDITIONS)


def test_a_loss_that_takes_a_given_model_longer_than_a_hundred_years_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"these peers reach it in [0-9,]+ days; expected at most 36,500; plan more"):
        time_to(2.7, RUN, parse_crew("1x0.001tflops"), CONDITIONS)


def test_days_in_which_peers_train_more_than_a_run_may_have_are_refused_and_not_cut() -> None:
    crowd = parse_crew("1000000x1e9tok/s")
    with pytest.raises(ConfigError, match="at most"):
        within_days(36_500.0, RUN, crowd, CONDITIONS)
