"""`python -m tests.benchmarks.long_lines --json FILE [--quick]`: one stream over a long line that loses packets now and then.

Two processes in namespaces behind lines of their own (slow_wire.py), with Linux's default congestion control, CUBIC, and with BBR.
Ours as it is, with further connections where they pay (averaging/network/direct/substream_rule.py), beside ours over one connection,
and a blocking socket with ssl in a process that does nothing else. The payload's share of the line's rate, ends of transfers included.
All ways take turns; the first transfer of each is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.places import Place
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.slow_wire import Wire, open_wire
from tests.benchmarks.transport import Pair, open_pair
from tests.benchmarks.transport_end import write_credentials
from tests.benchmarks.wire_core import WireSpec

BENCH: Final = "long_lines"
WAYS: Final = ("direct", "one", "blocking")
NAMES: Final = {"direct": "ours", "one": "ours over one connection", "blocking": "a blocking TLS socket"}
LONG: Final = WireSpec(40e6, 0.05)
LOSSY: Final = WireSpec(40e6, 0.05, 0.001)
TARGET_LOSSY: Final = 0.8
"""Of the line with one packet in a thousand lost, where one connection of CUBIC has 0.1 to 0.2."""

WARM_UP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Point:
    """A line, and who fills it."""

    spec: WireSpec
    control: str
    num_bytes: int

    @property
    def name(self) -> str:
        """In the table."""
        return f"{self.spec}, {self.control}"


POINTS: Final = (Point(LOSSY, "cubic", 24 << 20), Point(LONG, "cubic", 48 << 20), Point(LOSSY, "bbr", 48 << 20))
QUICK: Final = (Point(LOSSY, "cubic", 16 << 20),)


def _control(place: Place, control: str) -> None:
    """By this congestion control to everybody, from now on."""
    there = ("ip", "-n", place.namespace, "route")
    route = subprocess.run([*there, "show"], check=True, timeout=10, capture_output=True, text=True).stdout.split()
    plain = route[: route.index("congctl")] if "congctl" in route else route
    subprocess.run([*there, "replace", *plain, "congctl", control], check=True, timeout=10, capture_output=True)


def measure_point(wire: Wire, point: Point, num_trials: int) -> list[Row]:
    """All ways in turn, again and again."""
    giver, taker = wire.places.peers
    for place in (giver, taker):
        _control(place, point.control)
    wire.become(point.spec)
    with tempfile.TemporaryDirectory(prefix="potluck-long-lines.") as name, ExitStack() as stack:
        folder = Path(name)
        write_credentials(folder)
        pairs = {way: stack.enter_context(open_pair(way, folder, (giver, taker), WARM_UP_BYTES)) for way in WAYS}
        for _ in range(1 + num_trials):
            for pair in pairs.values():
                pair.carry(point.num_bytes)
        return _rows(point, pairs)


def _rows(point: Point, pairs: dict[str, Pair]) -> list[Row]:
    rate = point.spec.rate_bit_per_s / 8e6
    shares = {way: [one / rate for one in pair.mb_per_s[1:]] for way, pair in pairs.items()}
    baseline = statistics.median(shares["one"])
    settings = {"bytes": point.num_bytes, "frame_bytes": 1 << 20, **machine(), "tcp": point.control}
    rows = []
    for way, values in shares.items():
        value = statistics.median(values)
        is_judged = way == "direct" and point.control == "cubic" and point.spec.loss > 0
        rows.append(
            Row(
                BENCH,
                f"{point.name}: {NAMES[way]}",
                round(value, 3),
                "of the line",
                None if way == "one" else round(baseline, 3),
                None if way == "one" else round(value / baseline, 3),
                f">= {TARGET_LOSSY:g}" if is_judged else "",
                value >= TARGET_LOSSY if is_judged else None,
                len(values),
                {"best": round(max(values), 3), "worst": round(min(values), 3)},
                settings,
            )
        )
    return rows


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.long_lines", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="one line, three trials")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    with open_wire(2) as wire:
        for point in QUICK if options.quick else POINTS:
            rows += measure_point(wire, point, 3 if options.quick else 5)
            write_rows(rows, options.json)  # a later point may fail
    print_rows(rows, "one stream over a long line")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
