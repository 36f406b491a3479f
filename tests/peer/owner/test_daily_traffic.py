from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from peer.owner.daily_traffic import SAVE_EVERY_BYTES, TRAFFIC_FILE, DailyTraffic

FRIDAY, SATURDAY = date(2026, 11, 20), date(2026, 11, 21)
MUCH = SAVE_EVERY_BYTES


def test_a_day_counts_what_was_moved_in_it_and_the_next_begins_at_nothing(tmp_path: Path) -> None:
    traffic = DailyTraffic(tmp_path)
    assert [traffic.count(total, FRIDAY) for total in (0, 100, 100, 250)] == [0, 100, 100, 250]
    assert traffic.count(260, SATURDAY) == 10


def test_a_restart_on_the_same_day_counts_on_and_on_another_day_anew(tmp_path: Path) -> None:
    DailyTraffic(tmp_path).count(MUCH, FRIDAY)
    assert DailyTraffic(tmp_path).count(5, FRIDAY) == MUCH + 5
    assert DailyTraffic(tmp_path).count(5, SATURDAY) == 5


def test_it_is_saved_now_and_then_and_leaves_no_other_file(tmp_path: Path) -> None:
    traffic = DailyTraffic(tmp_path)
    traffic.count(0, FRIDAY)
    before = (tmp_path / TRAFFIC_FILE).read_bytes()
    traffic.count(MUCH - 1, FRIDAY)
    assert (tmp_path / TRAFFIC_FILE).read_bytes() == before
    traffic.count(MUCH, FRIDAY)
    assert (tmp_path / TRAFFIC_FILE).read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == [TRAFFIC_FILE]


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff", b'{"day": "2026-11-20", "num_bytes": -5}', b'{"day": "soon"}', b" " * 10_000]
)
def test_a_file_that_makes_no_sense_is_passed_over(tmp_path: Path, data: bytes) -> None:
    (tmp_path / TRAFFIC_FILE).write_bytes(data)
    assert DailyTraffic(tmp_path).count(7, FRIDAY) == 7


def test_a_disk_that_takes_nothing_does_not_stop_the_counting(tmp_path: Path) -> None:
    traffic = DailyTraffic(tmp_path / "none")
    assert [traffic.count(total, FRIDAY) for total in (MUCH, 2 * MUCH)] == [MUCH, 2 * MUCH]
