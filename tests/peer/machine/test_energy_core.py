from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan

import pytest

from peer.machine.energy_core import MOST_WATTS, EnergyCount, MeterReading, counted

Row = tuple[float, float, float | None]


def _after(rows: Sequence[Row]) -> float:
    """Joules after readings of one meter: (seconds, joules, wraps at)."""
    count = EnergyCount()
    for at_s, joules, wraps_at in rows:
        count = counted(count, [MeterReading("card", joules, wraps_at)], at_s)
    return count.joules


def test_a_meter_counts_from_its_second_reading_on() -> None:
    assert _after([(0, 5000, None)]) == 0
    assert _after([(0, 5000, None), (10, 7000, None), (20, 7500, None)]) == 2500


def test_a_meter_that_begins_at_zero_again_has_counted_up_to_its_end() -> None:
    assert _after([(0, 262_000, 262_143.0), (10, 857, 262_143.0)]) == pytest.approx(1000)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 5000, None), (10, 100, None)],
        [(0, 5000, 6000.0), (0, 4999, 6e9)],
        [(0, 0, None), (1, 1e12, None)],
        [(0, 0, None), (10, nan, None)],
        [(0, 0, None), (10, inf, None)],
        [(0, 0, None), (10, -5, None)],
        [(10, 100, None), (0, 1e6, None)],
    ],
)
def test_a_meter_that_goes_backwards_or_jumps_costs_nothing(rows: list[Row]) -> None:
    assert _after(rows) == 0
    last = rows[-1][1]
    begin = last if 0 <= last < inf else 0
    assert _after([*rows, (20, begin + 10, None)]) <= 10


def test_no_jump_counts_more_than_a_machine_can_burn() -> None:
    assert _after([(0, 0, None), (1, 2 * MOST_WATTS, None)]) <= 2 * MOST_WATTS
    assert _after([(0, 0, None), (1, 2 * MOST_WATTS + 1, None)]) == 0


def test_a_meter_that_was_silent_is_counted_again_from_where_it_was() -> None:
    count = counted(EnergyCount(), [MeterReading("card", 100)], 0)
    count = counted(count, [], 10)
    assert counted(count, [MeterReading("card", 400)], 20).joules == 300


def test_several_meters_add_up_and_a_new_one_begins_by_itself() -> None:
    count = counted(EnergyCount(), [MeterReading("a", 100)], 0)
    count = counted(count, [MeterReading("a", 200), MeterReading("b", 9e9)], 10)
    assert counted(count, [MeterReading("a", 250), MeterReading("b", 9e9 + 7)], 20).joules == 157


def test_without_a_reading_there_is_no_meter() -> None:
    assert not counted(EnergyCount(), [], 0).has_meter
    assert counted(EnergyCount(), [MeterReading("a", 1)], 0).has_meter
