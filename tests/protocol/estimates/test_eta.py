from __future__ import annotations

import pytest

from protocol.estimates.eta import ETA_ROUNDS, ProgressPoint, speeds, time_left_s


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


def test_rounds_that_were_seen_at_once_after_an_outage_do_not_make_the_run_look_fast() -> None:
    """800 tokens a second, of which the observer missed half an hour and saw 60 rounds within two seconds."""
    seen = [ProgressPoint(24_000 * number, 30.0 * number) for number in range(10)]
    seen += [ProgressPoint(24_000 * number, 2100.0 + 0.03 * number) for number in range(10, 70)]
    seen += [ProgressPoint(24_000 * number, 30.0 * number) for number in range(71, 75)]
    assert max(speed for _, speed in speeds(seen)) < 850.0
    assert min(speed for _, speed in speeds(seen)) > 750.0
    left_s = time_left_s(seen, 24_000 * 75, 24_000 * 175)
    assert left_s is not None
    assert 2900.0 < left_s < 3100.0


def test_rounds_that_come_faster_than_they_are_told_apart_have_their_true_speed() -> None:
    seen = [ProgressPoint(100 * number, 0.5 * number) for number in range(100)]
    assert {round(speed) for _, speed in speeds(seen)} == {200}
    assert time_left_s(seen, 9900, 19_900) == 50.0


def test_run_whose_rounds_were_all_seen_at_once_has_no_speed_and_no_time_left() -> None:
    seen = [ProgressPoint(100 * number, 7.0 + 0.01 * number) for number in range(50)]
    assert speeds(seen) == []
    assert time_left_s(seen, 4900, 10_000) is None
