"""`python -m tests.benchmarks.rank_deaths --json FILE [--quick]`: seconds until two ranks of one replica train again after one of them
was killed, was frozen or ran out of memory, at six points of its work.

The ranks are processes on the CPU over gloo with one thread each. They are forked off a process that has imported what they need, so
that imports are not counted. Wall-clock seconds mean little on a machine that does other work; the processor seconds of both ranks do.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.contract.rank_deaths import Recovery, all_deaths, doomed_ranks
from tests.contract.rank_doom import POINTS, How, Point

BENCH: Final = "rank_deaths"
MOST_GONE_S: Final = 2.0
MOST_TRAINING_S: Final = 6.0
QUICK_POINTS: Final[tuple[Point, ...]] = ("backward", "snapshot")


def recoveries(points: Sequence[Point]) -> dict[How, list[Recovery]]:
    """Of both ranks at each of these points, by how the rank ended."""
    found = defaultdict[How, list[Recovery]](list)

    def note(rank: int, how: How, point: Point, recovery: Recovery) -> None:
        print(f"rank {rank}, {how}, {point}: {recovery}", flush=True)
        found[how].append(recovery)

    with tempfile.TemporaryDirectory() as name, doomed_ranks(Path(name)) as doom:
        trio.run(all_deaths, Path(name), doom, note, points)
    return found


def rows_of(found: dict[How, list[Recovery]], settings: dict[str, object]) -> list[Row]:
    """Three rows for each way to end; the worst point and rank must meet the aim."""
    rows = []
    for how, recoveries_of in found.items():
        for what, most_s, times_s in (
            ("until both are gone", MOST_GONE_S, [each.gone_s for each in recoveries_of]),
            ("until both train again", MOST_TRAINING_S, [each.training_s for each in recoveries_of]),
            ("processor seconds of both until they train", math.inf, [each.worked_s for each in recoveries_of]),
        ):
            ordered = sorted(times_s)
            spread = {"best": round(ordered[0], 2), "worst": round(ordered[-1], 2)}
            middle_s, is_met = round(ordered[len(ordered) // 2], 2), ordered[-1] <= most_s
            is_judged = math.isfinite(most_s)
            aim = f"<= {most_s:g} s without imports" if is_judged else ""
            metric, met = f"a rank ends by {how}: {what}", is_met if is_judged else None
            rows.append(Row(BENCH, metric, middle_s, "s", None, None, aim, met, len(ordered), spread, settings))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{BENCH}", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="two of the six points")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = machine() | {"ranks": 2, "load": os.getloadavg()[0]}
    rows = rows_of(recoveries(QUICK_POINTS if options.quick else POINTS), settings)
    write_rows(rows, options.json)
    print_rows(rows, "two ranks after the end of one")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
