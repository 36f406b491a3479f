"""Adds up meters of energy that only ever count on. Pure. A meter that goes backwards, jumps or falls silent costs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Final

MOST_WATTS: Final = 20_000.0
"""Of one meter, on average between two readings. More is no energy but a meter that began anew."""

_SLACK_S: Final = 1.0
"""Meters are read a moment before or after the time that is noted."""


@dataclass(frozen=True, slots=True)
class MeterReading:
    """The count of one meter at one moment.

    Attributes:
        name: of the meter, the same at each reading.
        joules: since a moment that nobody knows.
        wraps_at: joules at which it begins at 0 again; None if it does not.
    """

    name: str
    joules: float
    wraps_at: float | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The newest reading of a meter, and when it was made, in seconds of one clock."""

    joules: float
    at_s: float


@dataclass(frozen=True, slots=True)
class EnergyCount:
    """Joules since the first reading of each meter, and the newest readings by their meters' names."""

    joules: float = 0.0
    meters: Mapping[str, Counted] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def has_meter(self) -> bool:
        """Whether any meter was ever read."""
        return bool(self.meters)


def counted(before: EnergyCount, readings: Sequence[MeterReading], now_s: float) -> EnergyCount:
    """The count after these readings. A meter is counted from its second reading on. One that is missing is counted again from
    where it was, when it is back.
    """
    joules, meters = before.joules, dict(before.meters)
    for reading in readings:
        if not isfinite(reading.joules) or reading.joules < 0:
            continue
        last = meters.get(reading.name)
        if last is not None:
            joules += _between(last, reading, now_s)
        meters[reading.name] = Counted(reading.joules, now_s)
    return EnergyCount(joules, meters)


def _between(last: Counted, reading: MeterReading, now_s: float) -> float:
    """Joules between two readings of a meter; 0 where they contradict each other."""
    more = reading.joules - last.joules
    if more < 0 and reading.wraps_at is not None:
        more += reading.wraps_at
    most = MOST_WATTS * (max(0.0, now_s - last.at_s) + _SLACK_S)
    return more if 0.0 <= more <= most else 0.0
