from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from peer.owner.controls_core import (
    COOL_FOR_S,
    COOLER_BY_CELSIUS,
    PLUGGED_FOR_S,
    ROOMY_FOR_S,
    STOPPED_BYTES_PER_S,
    CardHeat,
    ControlSettings,
    ControlsState,
    OwnerPause,
    Readings,
    TrainingAllowance,
    decide,
)
from peer.settings.hours_core import parse_hours

FRIDAY_NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
CALM = Readings(now_s=0.0, local=FRIDAY_NOON)


class Story:
    """Looks in a row; time goes on by `after_s` before each, on both clocks."""

    def __init__(self, settings: ControlSettings = ControlSettings()) -> None:  # noqa: B008 - frozen
        self.settings = settings
        self.state = ControlsState()
        self.now_s = 0.0

    def look(self, after_s: float = 1.0, **readings: object) -> TrainingAllowance:
        self.now_s += after_s
        local = FRIDAY_NOON + timedelta(seconds=self.now_s)
        at = replace(CALM, now_s=self.now_s, local=local)
        self.state, decision = decide(self.settings, self.state, replace(at, **readings))  # type: ignore[arg-type]
        return decision


def test_a_machine_on_the_mains_without_limits_trains_at_full_speed_and_gives_no_reason() -> None:
    assert Story().look() == TrainingAllowance(1.0, "")
    assert Story().look(is_on_battery=False, gpu_celsius=95.0).may_compute


# --- the owner's pause ---------------------------------------------------------------------------------------------------------


def test_a_pause_holds_until_it_is_taken_back_and_that_counts_at_once() -> None:
    story = Story()
    paused = story.look(pause=OwnerPause())
    assert (paused.share, paused.reason) == (0.0, "paused until `potluck resume`")
    assert not story.look(after_s=1e6, pause=OwnerPause()).may_compute
    assert story.look().may_compute


def test_a_pause_with_an_end_names_it_and_ends_by_itself() -> None:
    story, end = Story(), OwnerPause((FRIDAY_NOON + timedelta(minutes=30)).timestamp())
    assert "until 12:30" in story.look(pause=end).reason
    assert not story.look(after_s=1798, pause=end).may_compute
    assert story.look(after_s=1, pause=end).may_compute


def test_a_pause_that_ends_on_another_day_names_the_day() -> None:
    end = OwnerPause((FRIDAY_NOON + timedelta(days=1)).timestamp())
    assert "until 2026-11-21 12:00" in Story().look(pause=end).reason


def test_a_damaged_pause_file_pauses_and_says_how_to_go_on() -> None:
    decision = Story().look(pause=OwnerPause(damage="the pause file x makes no sense"))
    assert not decision.may_compute
    assert decision.reason == "paused: the pause file x makes no sense; `potluck resume` removes it and trains on"


# --- battery -------------------------------------------------------------------------------------------------------------------


def test_on_battery_training_stops_at_once_and_goes_on_a_while_after_it_is_plugged_in() -> None:
    story = Story()
    assert story.look(is_on_battery=False).may_compute
    stopped = story.look(is_on_battery=True, battery_percent=63.0)
    assert stopped.reason == "paused until plugged in (on battery power, 63% full)"
    assert "after it was plugged in" in story.look(is_on_battery=False).reason
    assert not story.look(after_s=PLUGGED_FOR_S - 0.5, is_on_battery=False).may_compute
    assert story.look(after_s=0.5, is_on_battery=False).may_compute


def test_a_plug_that_comes_and_goes_does_not_start_training_in_between() -> None:
    story = Story()
    for second in range(200):
        assert not story.look(is_on_battery=second % 7 == 0).may_compute
    assert not story.look(is_on_battery=False, after_s=0).may_compute


def test_who_told_it_to_trains_on_battery() -> None:
    assert Story(ControlSettings(train_on_battery=True)).look(is_on_battery=True).may_compute


# --- weekly hours --------------------------------------------------------------------------------------------------------------


def test_outside_of_its_hours_it_says_which_time_it_is_and_when_they_begin() -> None:
    story = Story(ControlSettings(weekly_hours=parse_hours("mon-fri 22:00-07:00")))
    decision = story.look()
    assert decision.reason == "paused until Fri 22:00 (weekly hours)"
    assert not story.look(after_s=10 * 3600 - 2).may_compute
    assert story.look(after_s=1).may_compute


def test_a_week_of_minutes_trains_exactly_in_the_hours_whatever_the_order_of_days() -> None:
    hours = parse_hours("mon-fri 22:00-07:00, sat-sun 00:00-24:00")
    story = Story(ControlSettings(weekly_hours=hours))
    trained = sum(story.look(after_s=60).may_compute for _ in range(7 * 24 * 60))
    assert trained == (4 * 9 + 2 + 48) * 60  # of Friday's night seven hours lie in the weekend


# --- heat ----------------------------------------------------------------------------------------------------------------------

HOT = ControlSettings(max_gpu_celsius=80)


def test_a_card_at_its_ceiling_stops_and_goes_on_after_it_was_cool_for_a_while() -> None:
    story = Story(HOT)
    assert story.look(gpu_celsius=79.0).may_compute
    assert story.look(gpu_celsius=80.0).reason == ("paused until the card was at 75 C or less for 30 s (it is at 80 C)")
    assert not story.look(after_s=COOL_FOR_S * 9, gpu_celsius=76.0).may_compute
    assert not story.look(gpu_celsius=75.0).may_compute
    assert not story.look(after_s=COOL_FOR_S - 1, gpu_celsius=75.0).may_compute
    assert story.look(after_s=1, gpu_celsius=75.0).may_compute


def test_heat_is_named_as_the_cause_only_where_it_is_the_one_that_is_told() -> None:
    story = Story(replace(HOT, max_memory_bytes=1))
    assert story.look(gpu_celsius=80.0, memory_bytes=2).is_too_hot
    assert not Story(HOT).look(gpu_celsius=70.0).is_too_hot
    large = Story(replace(HOT, max_memory_bytes=1)).look(gpu_celsius=70.0, memory_bytes=2)
    assert (large.may_compute, large.is_too_hot) == (False, False)


def test_a_temperature_that_swings_around_the_ceiling_never_flaps() -> None:
    story, changes, was = Story(HOT), 0, True
    for second in range(600):
        now = story.look(gpu_celsius=80.0 + (-1) ** second).may_compute
        changes, was = changes + (now != was), now
    assert changes == 1


def test_a_reading_that_fails_while_the_card_is_hot_does_not_count_as_cool() -> None:
    story = Story(HOT)
    story.look(gpu_celsius=90.0)
    lost = story.look(after_s=1000.0)
    assert not lost.may_compute
    assert "too hot at its last reading" in lost.reason


def test_a_ceiling_that_nothing_can_measure_is_said_and_not_pretended() -> None:
    decision = Story(replace(HOT, max_cpu_celsius=90)).look(cpu_celsius=40.0)
    assert decision.may_compute
    assert not decision.is_kept
    assert decision.reason == "the temperature of the card cannot be read here, so its ceiling is not kept"


def test_the_processor_has_a_ceiling_of_its_own() -> None:
    story = Story(ControlSettings(max_cpu_celsius=70))
    assert story.look(cpu_celsius=70.0 - COOLER_BY_CELSIUS, gpu_celsius=99.0).may_compute
    assert "(it is at 71 C)" in story.look(cpu_celsius=71.0).reason


# --- use by its owner, and duty ------------------------------------------------------------------------------------------------


def test_only_when_idle_stops_at_the_first_key_and_says_how_long_it_takes_from_now() -> None:
    story = Story(ControlSettings(idle_after_s=300))
    assert story.look(idle_s=300.0).may_compute
    assert story.look(idle_s=math.inf).may_compute
    assert story.look(idle_s=12.0).reason == (
        "paused until nobody has used this machine for 5 min (last input 12 s ago)"
    )


def test_where_use_cannot_be_known_it_does_not_train_and_says_so() -> None:
    decision = Story(ControlSettings(idle_after_s=300)).look(idle_s=None)
    assert not decision.may_compute
    assert "cannot tell whether anybody uses it" in decision.reason
    assert Story().look(idle_s=0.0).may_compute


def test_a_duty_is_a_share_of_the_time_and_is_said() -> None:
    story = Story(ControlSettings(duty_percent=25))
    assert story.look() == TrainingAllowance(0.25, "trains 25% of the time, as its owner set it")
    assert story.look(pause=OwnerPause()).share == 0.0


# --- network -------------------------------------------------------------------------------------------------------------------


def test_caps_hold_whether_it_trains_or_not() -> None:
    story = Story(ControlSettings(upload_bytes_per_s=1e6, download_bytes_per_s=2e6))
    for decision in (story.look(), story.look(pause=OwnerPause())):
        assert (decision.upload_bytes_per_s, decision.download_bytes_per_s, decision.is_held) == (1e6, 2e6, False)
    assert (Story().look().upload_bytes_per_s, Story().look().download_bytes_per_s) == (None, None)


def test_a_quota_that_is_used_up_stops_bulk_and_training_and_holds_what_was_trained_until_midnight() -> None:
    story = Story(ControlSettings(daily_quota_bytes=5_000_000_000, upload_bytes_per_s=1e6))
    assert story.look(today_bytes=4_999_999_999).may_compute
    used = story.look(today_bytes=5_010_000_000)
    assert used.reason == "paused until midnight (the daily quota of 5 GB is used up)"
    assert (used.share, used.is_held) == (0.0, True)
    assert used.upload_bytes_per_s == used.download_bytes_per_s == STOPPED_BYTES_PER_S
    assert story.look(today_bytes=5_010_000_000, pause=OwnerPause()).is_held
    after = story.look(today_bytes=0)
    assert (after.share, after.is_held, after.upload_bytes_per_s) == (1.0, False, 1e6)


# --- memory --------------------------------------------------------------------------------------------------------------------


SMALL = ControlSettings(max_memory_bytes=2_000_000_000)


def test_above_its_memory_training_stops_at_once_and_goes_on_after_a_while_below_nine_tenths() -> None:
    story = Story(SMALL)
    assert story.look(memory_bytes=2_000_000_000).may_compute
    stopped = story.look(memory_bytes=2_340_000_000)
    assert stopped.share == 0.0
    assert stopped.reason == ("paused until its processes hold less than 1.8 GB of memory (they hold 2.34 GB)")
    assert not story.look(after_s=1e6, memory_bytes=1_800_000_000).may_compute
    assert not story.look(memory_bytes=1_799_999_999).may_compute
    assert "hold 1.5 GB" in story.look(after_s=ROOMY_FOR_S - 0.5, memory_bytes=1_500_000_000).reason
    assert story.look(after_s=0.5, memory_bytes=1_500_000_000).may_compute


def test_memory_that_comes_and_goes_does_not_start_training_in_between() -> None:
    story = Story(SMALL)
    for second in range(200):
        assert not story.look(memory_bytes=2_100_000_000 if second % 20 == 0 else 1_000_000_000).may_compute


def test_without_a_limit_any_memory_will_do() -> None:
    assert Story().look(memory_bytes=1 << 60) == TrainingAllowance()


# --- several at once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "first"),
    [
        ({"pause": OwnerPause(), "is_on_battery": True, "gpu_celsius": 99.0}, "paused until `potluck resume`"),
        ({"is_on_battery": True, "gpu_celsius": 99.0}, "paused until plugged in"),
        ({"gpu_celsius": 99.0}, "paused until Sun 00:00 (weekly hours)"),
    ],
)
def test_of_several_causes_the_one_is_named_that_the_owner_can_change_first(
    readings: dict[str, object], first: str
) -> None:
    settings = replace(HOT, weekly_hours=parse_hours("sun 00:00-01:00"))
    assert Story(settings).look(**readings).reason.startswith(first)


def _heats(*celsius: float | None, worlds: Sequence[int] = (0, 1)) -> tuple[CardHeat, ...]:
    return tuple(
        CardHeat(f"card {number}", world, heat)
        for number, (world, heat) in enumerate(zip(worlds, celsius, strict=True))
    )


def test_a_hot_card_pauses_its_own_replica_alone_and_is_named() -> None:
    settings = ControlSettings(max_gpu_celsius=80)
    state, now = decide(settings, ControlsState(), Readings(0.0, FRIDAY_NOON, gpu_celsius=85.0, cards=_heats(60, 84)))
    assert (now.share, now.is_too_hot) == (1.0, False)
    assert now.worlds_paused == ((1, "paused until card 1 was at 75 C or less for 30 s (it is at 84 C)"),)
    assert now.reason == now.worlds_paused[0][1]
    state, now = decide(settings, state, Readings(10.0, FRIDAY_NOON, cards=_heats(60, 70)))
    assert now.worlds_paused, "not cool for long enough"
    state, now = decide(settings, state, Readings(40.0, FRIDAY_NOON, cards=_heats(60, 70)))
    assert (now.worlds_paused, now.reason) == ((), "")


def test_one_hot_card_of_a_shared_replica_pauses_all_of_it_as_do_hot_cards_of_each() -> None:
    settings = ControlSettings(max_gpu_celsius=80)
    for worlds, heats in (((0, 0), (60, 84)), ((0, 1), (81, 84))):
        readings = Readings(0.0, FRIDAY_NOON, cards=_heats(*heats, worlds=worlds))
        _, now = decide(settings, ControlsState(), readings)
        assert (now.share, now.is_too_hot, now.may_compute) == (0.0, True, False)
        assert "card " in now.reason


def test_of_several_cards_the_one_whose_heat_is_not_known_is_named() -> None:
    _, now = decide(
        ControlSettings(max_gpu_celsius=80), ControlsState(), Readings(0.0, FRIDAY_NOON, cards=_heats(60, None))
    )
    assert now.reason == "the temperature of card 1 cannot be read here, so its ceiling is not kept"
    assert not now.is_kept
    _, without = decide(ControlSettings(), ControlsState(), Readings(0.0, FRIDAY_NOON, cards=_heats(99, None)))
    assert (without.reason, without.worlds_paused) == ("", ())
