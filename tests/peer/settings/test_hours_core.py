from __future__ import annotations

import pytest

from peer.settings.hours_core import (
    DAY_MINUTES,
    MAX_TEXT,
    WEEK_MINUTES,
    WeeklyHours,
    minute_name,
    parse_hours,
    parse_pause,
)
from protocol.errors import ConfigError, UsageError

NIGHTS = "mon-fri 22:00-07:00, sat-sun 00:00-24:00"


def _minute(day: int, hour: int, minute: int = 0) -> int:
    return day * DAY_MINUTES + hour * 60 + minute


def test_nights_and_whole_weekends_open_and_close_at_the_minute() -> None:
    hours = parse_hours(NIGHTS)
    assert not hours.are_open(_minute(0, 21, 59))
    assert hours.are_open(_minute(0, 22))
    assert hours.are_open(_minute(1, 6, 59))
    assert not hours.are_open(_minute(1, 7))
    assert hours.are_open(_minute(5, 12))
    assert hours.are_open(_minute(6, 23, 59))
    assert not hours.are_open(0)


def test_span_of_sunday_night_runs_into_monday() -> None:
    assert parse_hours("sun 23:00-01:30").spans == ((0, 90), (_minute(6, 23), WEEK_MINUTES))


def test_days_may_run_over_the_end_of_the_week() -> None:
    assert parse_hours("sat-mon 10:00-11:00") == parse_hours("mon 10:00-11:00, sat 10:00-11:00, sun 10:00-11:00")


def test_spans_that_touch_or_overlap_become_one() -> None:
    assert parse_hours("mon 08:00-10:00, MON 09:00-12:00,mon  12:00-13:00").spans == ((480, 780),)
    assert parse_hours("mon-sun 00:00-24:00").spans == ((0, WEEK_MINUTES),)


def test_hours_without_days_are_those_of_every_day_and_a_leading_zero_may_be_left_out() -> None:
    assert parse_hours("22:00-7:00") == parse_hours("mon-sun 22:00-07:00")
    assert parse_hours("mon 9:00-10:00") == parse_hours("mon 09:00-10:00")


@pytest.mark.parametrize(
    ("minute", "opening"),
    [(_minute(0, 12), "Mon 22:00"), (_minute(4, 12), "Fri 22:00"), (0, "Mon 22:00")],
)
def test_next_opening_is_the_first_one_ahead(minute: int, opening: str) -> None:
    assert minute_name(parse_hours(NIGHTS).next_opening(minute)) == opening


def test_next_opening_may_lie_in_the_next_week() -> None:
    assert minute_name(parse_hours("tue 09:00-10:00").next_opening(_minute(6, 12))) == "Tue 09:00"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("weekends", "'weekends'"),
        ("mon", "'mon'"),
        ("mon 22:00", "'mon 22:00'"),
        ("mon 9:0-10:00", "'mon 9:0-10:00'"),
        ("09:00", "'09:00'"),
        ("mon 09:00-10:00,", "''"),
        ("mon 09:00-10:00;tue 09:00-10:00", "'mon 09:00"),
        ("monday 09:00-10:00", "the day 'monday'"),
        ("mon-xyz 09:00-10:00", "the day 'xyz'"),
        ("mon 24:00-10:00", "the time '24:00'"),
        ("mon 09:00-25:00", "the time '25:00'"),
        ("mon 09:60-10:00", "the time '09:60'"),
        ("mon 09:00-24:01", "the time '24:01'"),
        ("mon 09:00-09:00", "'mon 09:00-09:00'"),
        ("mon ٠٩:00-10:00", "'mon "),
        ("mon 09:00-10:00\n", ""),
        ("mon 09:00-10:00," * 100, "1600 characters"),
    ],
)
def test_hours_that_cannot_be_meant_are_one_line_that_names_the_part(text: str, found: str) -> None:
    if text.endswith("\n"):  # a line end from a file is space, as any other
        assert parse_hours(text) == WeeklyHours(((540, 600),))
        return
    with pytest.raises(ConfigError) as caught:
        parse_hours(text)
    line = caught.value.one_line()
    assert f"weekly_hours has {found}" in line
    assert "expected" in line
    assert "\n" not in line
    assert len(line) < MAX_TEXT


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("60", 60),
        ("1h", 60),
        ("30m", 30),
        ("30min", 30),
        ("1h30m", 90),
        ("90s", 1.5),
        ("1m30s", 1.5),
        ("2d", 2880),
        ("1.5h", 90),
        (" 1H ", 60),
        ("0.5", 0.5),
    ],
)
def test_a_pause_is_minutes_or_a_time_with_units(text: str, minutes: float) -> None:
    assert parse_pause(text) == minutes


@pytest.mark.parametrize(
    "text", ["", "0", "0m", "1hh", "m", "-5", "1h 30m", "nan", "inf", "1e3", "999999999d", "367d", "٣m"]
)
def test_a_pause_of_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as 30m, 1h or 1h30m"):
        parse_pause(text)
