"""A peer that missed rounds downloads hardly more than the shorter of replay and state weighs; the benchmark of recovery goes through
1 to 20 missed rounds.
"""

from __future__ import annotations

from tests.benchmarks.missed_rounds import MOST_OVER, measure

FEW, MANY = 2, 12
"""An update weighs an eighth of a state: few come by replay, many by a state."""


def test_missed_rounds_come_by_the_way_of_fewer_bytes_and_lead_to_the_same_bytes() -> None:
    few, many = measure((FEW, MANY))
    assert few.missed == FEW
    assert MANY <= many.missed <= MANY + 2, "one or two more may be made while it is on its way back"
    assert max(few.over, many.over) <= MOST_OVER
    assert few.is_equal
    assert many.is_equal
