"""The length of a pause as its owner writes it: "60", "30m", "1h", "1h30m" or "2d". Pure."""

from __future__ import annotations

import re
from typing import Final

from protocol.errors import UsageError

LONGEST_MINUTES: Final = 366 * 24 * 60

_MINUTES: Final = {"m": 1.0, "min": 1.0, "h": 60.0, "d": 24 * 60.0}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(min|m|h|d)?")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern} *)+")


def pause_minutes(text: str) -> float:
    """The length in minutes; a number without a unit is minutes.

    Raises:
        UsageError: any other text, or no time, or more than a year.
    """
    plain = text.strip().lower()
    if not _WHOLE.fullmatch(plain) or len(plain) > 40:
        raise _wrong(text)
    minutes = sum(float(number) * _MINUTES[unit or "m"] for number, unit in _PART.findall(plain))
    if not 0 < minutes <= LONGEST_MINUTES:
        raise _wrong(text)
    return minutes


def _wrong(text: str) -> UsageError:
    return UsageError(f"--for is {text[:40]!r}", "a time of more than 0 and at most a year, such as 30m, 1h or 2d")
