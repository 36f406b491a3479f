"""Many newcomers at once: how long they take, and what the members notice of it.

    python -m tests.benchmarks.joining_storm --json FILE [--quick] [--parts virtual real]

- virtual: a hundred megabytes over lines of 20 Mbit/s each way, from four donors, in virtual time. One newcomer alone is the measure.
- real: members on loopback whose rounds follow the clock; then newcomers start at once (joining_storm_real.py).
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import structlog
import trio
import trio.testing

from tests.averaging.rounds.fetching.test_fellows import chunks_stand_for_long_ones, joining_storm
from tests.benchmarks.joining_storm_real import RealPlan, real_rows
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "joining_storm"
MOST_TIMES_ALONE: Final = 2.0
PARTS: Final = ("virtual", "real")


@dataclass(frozen=True, slots=True)
class Plan:
    """How many newcomers come in virtual time, and the plan of the real ones."""

    num_newcomers: int
    real: RealPlan


FULL: Final = Plan(50, RealPlan(num_members=4, num_joiners=12, interval_s=10.0, num_rounds=12, is_large=True))
QUICK: Final = Plan(12, RealPlan(num_members=3, num_joiners=12, interval_s=10.0, num_rounds=5, is_large=False))


@dataclass(frozen=True, slots=True)
class _Storm:
    """Seconds that each newcomer took, in order, and the megabytes that the donors sent."""

    took_s: tuple[float, ...]
    donors_mb: float


def _storm(num_newcomers: int) -> _Storm:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with pytest.MonkeyPatch.context() as patch:
        chunks_stand_for_long_ones(patch)
        clock = trio.testing.MockClock(autojump_threshold=0)
        storm, lines = trio.run(joining_storm, num_newcomers, clock=clock)
    given = sum(sent for peer, sent in lines.bytes_up.items() if peer.startswith("donor"))
    return _Storm(tuple(sorted(storm.took_s.values())), given / 1e6)


def virtual_rows(num_newcomers: int) -> Iterator[Row]:
    """The last newcomer's time against that of one alone, and the share of the bytes that the donors sent."""
    (alone_s,), many = _storm(1).took_s, _storm(num_newcomers)
    last_s, about = many.took_s[-1], {"newcomers": num_newcomers, "donors": 4, "machine": machine()}
    yield Row(
        BENCH,
        f"{num_newcomers} newcomers in virtual time: the last one has its state after",
        round(last_s, 1),
        "s",
        round(alone_s, 1),
        round(last_s / alone_s, 3),
        f"<= {MOST_TIMES_ALONE:g} times one alone",
        last_s <= MOST_TIMES_ALONE * alone_s,
        1,
        {},
        {**about, "first_s": round(many.took_s[0], 1), "median_s": round(many.took_s[num_newcomers // 2], 1)},
    )
    yield Row(
        BENCH,
        f"{num_newcomers} newcomers in virtual time: the donors sent",
        round(many.donors_mb),
        "MB",
        settings=about,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Both parts; the table at the end."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.joining_storm")
    parser.add_argument("--json", type=Path, help="write the rows there, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer newcomers, small states, and fewer rounds")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args(arguments)
    plan = QUICK if args.quick else FULL
    rows: list[Row] = []
    if "virtual" in args.parts:
        rows += virtual_rows(plan.num_newcomers)
    if "real" in args.parts:
        with tempfile.TemporaryDirectory(prefix="potluck-storm-") as folder:
            rows += real_rows(Path(folder), plan.real)
    if args.json is not None:
        write_rows(rows, args.json)
    print_rows(rows, "many newcomers at once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
