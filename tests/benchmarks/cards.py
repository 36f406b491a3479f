"""`python -m tests.benchmarks.cards --json FILE [--quick] [--devices cpu,cpu]`: cards of one peer beside one card each.

They are two islands, and two or four ranks that share a replica. Without cards, processes on the CPU with one thread each stand for
them; their speed is not judged then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from averaging.system.machine_limits import read_cores
from tests.benchmarks.cards_islands import FULL, QUICK, island_rows
from tests.benchmarks.ranks_rows import rank_rows
from tests.benchmarks.results import Row, print_rows, write_rows

BENCH: Final = "cards"
SEVERAL: Final = (2, 4)
"""Ranks that share a replica, where there are so many cards or cores."""

FULL_STEPS: Final = 16
QUICK_STEPS: Final = 4


def rows_of_ranks(devices: Sequence[str], num_steps: int) -> list[Row]:
    """The rows of two ranks, and of four on a machine with four cores or where four cards are named."""
    kind = devices[0].partition(":")[0]
    num_places = read_cores().num_threads if kind == "cpu" else len(devices)
    return [
        row
        for num_ranks in SEVERAL
        if num_ranks <= max(2, num_places)
        for row in rank_rows(BENCH, num_ranks=num_ranks, trials=num_steps, device=kind)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cards", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer steps and rounds")
    parser.add_argument("--devices", default="cpu,cpu", help="torch's names of two or four cards, from the first on")
    options = parser.parse_args(arguments)
    devices = options.devices.split(",")
    rows = island_rows(BENCH, devices[:2], QUICK if options.quick else FULL)
    rows += rows_of_ranks(devices, QUICK_STEPS if options.quick else FULL_STEPS)
    write_rows(rows, options.json)
    print_rows(rows, "several cards of one peer")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
