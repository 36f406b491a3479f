"""Sums of a peer's history by day, week or run. Pure: times come in, the zone is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import Enum

from averaging.host.daemon_views import table
from peer.history.round_log import RunHistory
from protocol.tables import duration, short_count


class Span(Enum):
    """The unit of a line of the history."""

    DAY = "day"
    WEEK = "week"
    RUN = "run"


@dataclass(frozen=True, slots=True)
class Given:
    """A peer's part in a span of time: rounds that it saw, those that counted it, its counted tokens, and its time of training."""

    rounds_seen: int = 0
    rounds_counted: int = 0
    tokens_counted: int = 0
    trained_s: float = 0.0

    def __add__(self, other: Given) -> Given:
        return Given(
            self.rounds_seen + other.rounds_seen,
            self.rounds_counted + other.rounds_counted,
            self.tokens_counted + other.tokens_counted,
            self.trained_s + other.trained_s,
        )


def given_by(histories: Sequence[RunHistory], span: Span, zone: tzinfo | None) -> dict[str, Given]:
    """The sums by the names of the spans: "2026-01-31", "2026-W05", or a run's name with its id. Days and weeks ascend; weeks begin
    on Monday. `zone` None is the machine's own.
    """
    sums: dict[str, Given] = {}
    for history in histories:
        parts = [
            *((seen.unix_s, Given(1, int(seen.own_tokens > 0), seen.own_tokens)) for seen in history.rounds),
            *((trained.unix_s, Given(trained_s=trained.seconds)) for trained in history.trained),
        ]
        for unix_s, part in parts:
            name = _span_name(history, unix_s, span, zone)
            sums[name] = sums.get(name, Given()) + part
    return sums if span is Span.RUN else dict(sorted(sums.items()))


def _span_name(history: RunHistory, unix_s: float, span: Span, zone: tzinfo | None) -> str:
    if span is Span.RUN:
        return f"{history.run or '?'} ({history.folder_name[:8]})"
    try:
        day = datetime.fromtimestamp(unix_s, zone)
    except (ValueError, OverflowError, OSError):  # a clock that was set to nonsense
        return "?"
    year, week, _ = day.isocalendar()
    return f"{day:%Y-%m-%d}" if span is Span.DAY else f"{year}-W{week:02d}"


def history_json(sums: Mapping[str, Given], span: Span) -> dict[str, object]:
    """For scripts: {"by": ..., "rows": [...], "total": {...}}; times in seconds."""
    rows = [{span.value: name, **_numbers(given)} for name, given in sums.items()]
    return {"by": span.value, "rows": rows, "total": _numbers(sum(sums.values(), Given()))}


def _numbers(given: Given) -> dict[str, object]:
    return {
        "rounds_seen": given.rounds_seen,
        "rounds_counted": given.rounds_counted,
        "tokens_counted": given.tokens_counted,
        "trained_s": round(given.trained_s, 1),
    }


def history_text(sums: Mapping[str, Given], span: Span) -> list[str]:
    """A table, with the sum of all at its end."""
    shown = [*sums.items(), *([("all", sum(sums.values(), Given()))] if len(sums) > 1 else [])]
    cells = [
        (
            f"{given.rounds_counted:,} of {given.rounds_seen:,}",
            short_count(given.tokens_counted),
            duration(given.trained_s),
            name,
        )
        for name, given in shown
    ]
    header = ("ROUNDS COUNTED", "TOKENS", "TRAINED", span.value.upper())
    return table(header, cells, right=frozenset(header[:3]))
