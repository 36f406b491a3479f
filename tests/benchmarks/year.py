"""A run of a year: what its host and a peer keep of 50,000 rounds of 16 members, and what a start, a join and a day cost then.

    python -m tests.benchmarks.year --json FILE [--quick] [--writes]

Rounds are made one after another and given to the production code of both sides, each in a process of its own (year_sides.py). Records
of the long run have a few slices, and the simulation's keyed hash signs them; start and join are measured on records with a slice for
each member and Ed25519, at the moment when most commits have come since the newest milestone. Figures are processor time, since other
programs share the machine. The bytes of a day are counted on a small model, and grow with its values; `--writes` does only that.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.state.log_entries import LOG_NAME
from protocol.estimates.estimates import SECONDS_PER_DAY
from protocol.rounds.lineage.lineage import MAX_DEPTH
from protocol.rounds.lineage.milestones import MILESTONE_EVERY, SETTLED
from tests.benchmarks.processes import die_with_parent
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.year_chain import NUM_MEMBERS, hashed_run
from tests.benchmarks.year_sides import ROUND_S, written_by

BENCH: Final = "year"
MOST_GROWTH_MB: Final = 20.0
MOST_START_S: Final = 5.0
MOST_OPEN_S: Final = 2.0
MOST_DAY_GB: Final = 150.0
LARGE_VALUES: Final = 10**9
_CHUNK_VALUES: Final = 4096
_WITHIN_S: Final = 4 * 3600.0
_IN_MEMORY: Final = Path("/dev/shm")

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done. `flat_from`: the round from which memory may not grow. `settled_rounds`: of the start and the join.
    `written_rounds`: those whose writes are counted.
    """

    num_rounds: int
    flat_from: int
    settled_rounds: int
    written_rounds: int


_MOST_SINCE: Final = MILESTONE_EVERY + SETTLED - 1
"""Commits since the newest milestone, at most."""

FULL: Final = Plan(50_000, 5_000, MAX_DEPTH + 2 * MILESTONE_EVERY + _MOST_SINCE, 128)
QUICK: Final = Plan(1_500, 1_000, MILESTONE_EVERY + _MOST_SINCE, 64)


class Side:
    """A side of the run in its own process, which ends with this one."""

    def __init__(self, side: str, folder: Path, *arguments: str) -> None:
        folder.mkdir()
        self._out = folder / "readings.jsonl"
        command = [sys.executable, "-m", "tests.benchmarks.year_sides", side, str(folder), *arguments]
        with self._out.open("w", encoding="utf8") as out:
            self._process = subprocess.Popen(command, stdout=out, preexec_fn=die_with_parent)

    def readings(self) -> list[Values]:
        """Its readings, once it has ended.

        Raises:
            RuntimeError: it failed.
        """
        if self._process.wait(_WITHIN_S):
            raise RuntimeError(f"a side ended with {self._process.returncode}; expected 0; see its output above")
        return [json.loads(line) for line in self._out.read_text(encoding="utf8").splitlines()]


def _row(metric: str, value: float, unit: str, most: float | None, **settings: object) -> Row:
    """One figure; `most` is its aim."""
    target = "" if most is None else f"<= {most:g}"
    met = None if most is None else value <= most
    everything = {"members": NUM_MEMBERS, **machine(), **settings}
    return Row(BENCH, metric, round(value, 3), unit, target=target, met=met, trials=1, settings=everything)


def memory_row(who: str, readings: Sequence[Values], plan: Plan) -> Row:
    """The most private memory after round `flat_from`, beyond that at it. A shorter run than the full one has no aim."""
    at = {int(each["index"]): each["bytes"] for each in readings if "index" in each}
    most = max(num_bytes for index, num_bytes in at.items() if index >= plan.flat_from)
    growth_mb = (most - at[plan.flat_from]) / 1e6
    name = f"{who}: memory added from round {plan.flat_from:,} to {plan.num_rounds:,}"
    aim = MOST_GROWTH_MB if plan.flat_from > MAX_DEPTH else None
    return _row(name, growth_mb, "MB", aim, at_mb=round(at[plan.flat_from] / 1e6, 1))


def written_rows(folder: Path, num_rounds: int) -> list[Row]:
    """Bytes that a peer of a model of LARGE_VALUES writes a day at rounds of ROUND_S, as a smaller one's grow with the values."""
    rows = []
    for name in ("int8", "int4"):
        run = replace(hashed_run(), codec=codec_by_name(name), chunk_values=_CHUNK_VALUES)
        clock = trio.testing.MockClock(autojump_threshold=0)
        written = trio.run(written_by, run, folder / name, num_rounds, clock=clock)
        per_day = SECONDS_PER_DAY / ROUND_S / num_rounds
        times = LARGE_VALUES / run.grid.num_elements
        gb = {file: num_bytes * per_day / 1e9 for file, num_bytes in written.items()}
        log_gb = gb.pop(LOG_NAME)
        values_gb = {file: each * times for file, each in gb.items()}
        metric = f"written a day at 1B values, {name}, a round in ten minutes"
        parts = {file: round(each, 1) for file, each in sorted(values_gb.items())}
        rows.append(_row(metric, log_gb + sum(values_gb.values()), "GB", MOST_DAY_GB, log_gb=round(log_gb, 4), **parts))
    return rows


def side_rows(host: Sequence[Values], peer: Sequence[Values], settled: Values, plan: Plan) -> list[Row]:
    """The figures of the sides' readings."""
    end = host[-1]
    rounds = f"after {plan.num_rounds:,} rounds"
    kept, verified = int(settled["num_kept"]), int(settled["num_verified"])
    return [
        memory_row("host", host, plan),
        memory_row("peer", peer, plan),
        _row(f"host opens and reads its ledger {rounds}: processor", end["opened_s"], "s", MOST_OPEN_S),
        _row(f"host's ledger {rounds}", end["ledger_bytes"] / 1e6, "MB", None),
        _row(f"host's archive {rounds}", end["archive_bytes"] / 1e6, "MB", None),
        _row("peer starts again: processor", settled["started_s"], "s", MOST_START_S, commits=kept),
        _row("newcomer joins, with its donor: processor", settled["joined_s"], "s", MOST_START_S, commits=verified),
    ]


def measure(plan: Plan, folder: Path, *, writes_only: bool) -> list[Row]:
    """All figures. `folder` is for the files of both sides."""
    if writes_only:
        return written_rows(folder, plan.written_rounds)
    rounds = str(plan.num_rounds)
    host = Side("host", folder / "host", rounds, "--slices", "2")
    peer = Side("peer", folder / "peer", rounds, "--slices", "2")
    settled = Side("peer", folder / "settled", str(plan.settled_rounds), "--signed")
    rows = written_rows(folder, plan.written_rounds)
    return [*side_rows(host.readings(), peer.readings(), settled.readings()[-1], plan), *rows]


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.year", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="a day of rounds, without aims for memory")
    parser.add_argument("--writes", action="store_true", help="the bytes of a day alone")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="potluck-year.", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        rows = measure(QUICK if options.quick else FULL, folder, writes_only=options.writes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write_rows(rows, options.json)
    print_rows(rows, "a run of a year")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
