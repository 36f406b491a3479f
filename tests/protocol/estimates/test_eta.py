from __future__ import annotations

import pytest

from protocol.estimates.eta import ETA_ROUNDS, ProgressPoint, time_left_s


def test_time_left_follows_the_pace_of_the_latest_rounds_alone() -> None:
    slow = [ProgressPoint(10 * number, 1000.0 * number) for number in range(5)]
    fast = [ProgressPoint(100 + 300 * number, 10_000.0 + 10.0 * number) for number in range(ETA_ROUNDS)]
    assert time_left_s(slow + fast, 3000, 3600) == pytest.approx(20.0)


@pytest.mark.parametrize(
    "points",
    [
        (),
        (ProgressPoint(300, 1.0),),
        (ProgressPoint(300, 1.0), ProgressPoint(600, 1.0)),
        (ProgressPoint(600, 1.0), ProgressPoint(300, 2.0)),
    ],
    ids=["none", "one", "no time between them", "fewer tokens than before"],
)
def test_time_left_is_unknown_where_two_rounds_do_not_tell_it(points: tuple[ProgressPoint, ...]) -> None:
    assert time_left_s(points, 600, 1200) is None


def test_complete_run_takes_no_more_time() -> None:
    assert time_left_s((), 1200, 1200) == 0.0
