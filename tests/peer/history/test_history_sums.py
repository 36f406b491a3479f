"""Sums of a history by day, week and run."""

from __future__ import annotations

from datetime import UTC, datetime

from peer.history.history_sums import Given, Span, given_by, history_json, history_text
from peer.history.round_log import RunHistory, TrainedTime
from peer.status.status_board import SeenRound


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


SUNDAY, MONDAY = at("2026-01-04 23:59:59"), at("2026-01-05 00:00:01")
ONE = RunHistory(
    "one",
    "1" * 16,
    (SeenRound(SUNDAY, 1, 100, 3, 40), SeenRound(MONDAY, 2, 200, 3, 0)),
    (TrainedTime(SUNDAY, 1800.0), TrainedTime(MONDAY, 900.0)),
)
OTHER = RunHistory("two", "2" * 16, (SeenRound(MONDAY, 1, 50, 1, 50),), (TrainedTime(MONDAY, 5400.0),))


def test_a_day_and_a_week_end_at_midnight_of_the_zone() -> None:
    days = given_by([OTHER, ONE], Span.DAY, UTC)
    assert days == {"2026-01-04": Given(1, 1, 40, 1800.0), "2026-01-05": Given(2, 1, 50, 6300.0)}
    assert list(given_by([OTHER, ONE], Span.WEEK, UTC)) == ["2026-W01", "2026-W02"]


def test_each_run_has_its_line_in_their_order() -> None:
    runs = given_by([OTHER, ONE], Span.RUN, UTC)
    assert list(runs) == ["two (22222222)", "one (11111111)"]
    assert runs["one (11111111)"] == Given(2, 1, 40, 2700.0)


def test_the_table_and_the_json_end_with_the_sum() -> None:
    days = given_by([ONE, OTHER], Span.DAY, UTC)
    lines = history_text(days, Span.DAY)
    assert lines[0].split() == ["ROUNDS", "COUNTED", "TOKENS", "TRAINED", "DAY"]
    assert lines[-1].split() == ["2", "of", "3", "90", "2.2", "h", "all"]
    found = history_json(days, Span.DAY)
    assert found["total"] == {"rounds_seen": 3, "rounds_counted": 2, "tokens_counted": 90, "trained_s": 8100.0}
    assert len(history_text(given_by([OTHER], Span.DAY, UTC), Span.DAY)) == 2


def test_a_time_that_no_calendar_has_is_shown_apart() -> None:
    wrong = RunHistory("one", "1" * 16, (SeenRound(1e300, 1, 100, 3, 40),), ())
    assert given_by([wrong], Span.DAY, UTC) == {"?": Given(1, 1, 40, 0.0)}
