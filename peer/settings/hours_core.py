"""Weekly hours as a volunteer writes them, "mon-fri 22:00-07:00, sat-sun 00:00-24:00": strict parsing, and the next change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from protocol.errors import ConfigError, UsageError

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * DAY_MINUTES

MAX_TEXT: Final = 1000
"""Characters. Enough for one span for every hour of a week."""

LONGEST_PAUSE_MINUTES: Final = 366 * DAY_MINUTES

_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_PAUSE: Final = re.compile(
    rf"(?P<bare>{_NUMBER})|(?:(?P<days>{_NUMBER})d)?(?:(?P<hours>{_NUMBER})h)?(?:(?P<minutes>{_NUMBER})m(?:in)?)?"
    rf"(?:(?P<seconds>{_NUMBER})s)?"
)
_PAUSE_MINUTES: Final = {"bare": 1, "days": DAY_MINUTES, "hours": 60, "minutes": 1, "seconds": 1 / 60}

_SPAN: Final = re.compile(
    r"((?P<first>[a-z]+)(-(?P<last>[a-z]+))? +)?(?P<start>[0-9]{1,2}:[0-9]{2})-(?P<stop>[0-9]{1,2}:[0-9]{2})"
)
_EXAMPLE: Final = '"mon-fri 22:00-07:00, sat-sun 00:00-24:00"'


@dataclass(frozen=True, slots=True)
class WeeklyHours:
    """The times when training is welcome, in the owner's wall-clock time.

    Attributes:
        spans: (start, stop) in minutes since Monday 00:00, sorted, disjoint, stop excluded.
    """

    spans: tuple[tuple[int, int], ...]

    def are_open(self, minute: int) -> bool:
        """Whether `minute` of the week (0 is Monday 00:00) lies in one of the spans."""
        return any(start <= minute < stop for start, stop in self.spans)

    def next_opening(self, minute: int) -> int:
        """The minute of the week at which the next span begins. `minute` must lie in no span."""
        starts = [start for start, _ in self.spans]
        return min(starts, key=lambda start: (start - minute) % WEEK_MINUTES)


def parse_hours(text: str) -> WeeklyHours:
    """The spans in `text`. Without days, a span is of every day. One that ends before it begins runs into the next day. Adjacent spans
    are joined.

    Raises:
        ConfigError: any other text; names the part that is wrong.
    """
    if len(text) > MAX_TEXT:
        raise _wrong(f"{len(text)} characters", f"at most {MAX_TEXT}")
    minutes: set[tuple[int, int]] = set()
    for part in text.split(","):
        minutes.update(_week_spans(part.strip().lower()))
    return WeeklyHours(_joined(minutes))


def parse_pause(text: str) -> float:
    """Minutes of "90s", "30m", "1h", "1h30m" or "2d"; a bare number is minutes.

    Raises:
        UsageError: any other text, nothing at all, or more than LONGEST_PAUSE_MINUTES.
    """
    found = _PAUSE.fullmatch(text.strip().lower())
    parts = found.groupdict(default="0") if found is not None and text.strip() else {}
    minutes = sum(float(number) * _PAUSE_MINUTES[unit] for unit, number in parts.items())
    if not 0 < minutes <= LONGEST_PAUSE_MINUTES:
        raise UsageError(
            f"--for is {text[:40]!r}",
            f"a time such as 30m, 1h or 1h30m, or minutes, more than 0 and at most {LONGEST_PAUSE_MINUTES:,} minutes",
        )
    return minutes


def minute_name(minute: int) -> str:
    """A minute of the week as text: "Fri 22:00"."""
    day, of_day = divmod(minute % WEEK_MINUTES, DAY_MINUTES)
    return f"{DAYS[day].capitalize()} {of_day // 60:02}:{of_day % 60:02}"


def _week_spans(part: str) -> list[tuple[int, int]]:
    found = _SPAN.fullmatch(part)
    if found is None:
        raise _wrong(repr(part[:40]), f"days and times as in {_EXAMPLE}")
    begin_day = found["first"] or DAYS[0]
    first, last = _day(begin_day), _day(found["last"] or found["first"] or DAYS[-1])
    start, stop = _minute(found["start"], is_end=False), _minute(found["stop"], is_end=True)
    if start == stop:
        raise _wrong(repr(part), "an end other than the beginning; a whole day is 00:00-24:00")
    length = stop - start if stop > start else stop - start + DAY_MINUTES
    spans = []
    for offset in range((last - first) % 7 + 1):
        begin = (first + offset) % 7 * DAY_MINUTES + start
        spans.append((begin, min(begin + length, WEEK_MINUTES)))
        if begin + length > WEEK_MINUTES:  # Sunday night runs into Monday
            spans.append((0, begin + length - WEEK_MINUTES))
    return spans


def _day(name: str) -> int:
    if name not in DAYS:
        raise _wrong(f"the day {name[:20]!r}", f"one of {', '.join(DAYS)}")
    return DAYS.index(name)


def _minute(text: str, *, is_end: bool) -> int:
    hour, minute = map(int, text.split(":"))
    if is_end and (hour, minute) == (24, 0):
        return DAY_MINUTES
    if hour > 23 or minute > 59:
        raise _wrong(f"the time {text!r}", "00:00 to 23:59, or 24:00 as an end")
    return hour * 60 + minute


def _joined(spans: set[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return tuple(joined)


def _wrong(found: str, expected: str) -> ConfigError:
    return ConfigError(
        f"peer setting weekly_hours has {found}",
        expected,
        "mend --weekly-hours, POTLUCK_PEER_WEEKLY_HOURS or peer.toml",
    )
