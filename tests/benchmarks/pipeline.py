"""`python -m tests.benchmarks.pipeline --json FILE [--quick] [--parts exact,speed]`: what pipeline runs keep, each beside its oracle.

exact   in one process: real stages in torch, with messages, kills and speeds in virtual time (pipeline_exact.py). So equalities,
        bytes and shares are exact, and nothing of it says how long a step takes on a machine or over a line.
loss    what codecs between stages cost in held-out loss (pipeline_loss.py)
speed   lanes of real processes beside torch's own pipeline, in real time, on a machine that does nothing else (pipeline_speed.py)
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import structlog
import torch

from averaging.codecs.rows.boundary import Boundary, BoundaryCodec
from protocol.ids import RunId
from protocol.pipeline.micro_batch import MicroBatch
from tests.benchmarks.pipeline_exact import no_less_than, no_more_than, oracle_rows
from tests.benchmarks.pipeline_loss import loss_rows
from tests.benchmarks.pipeline_speed import speed_rows
from tests.benchmarks.placement_trace import Rule, Simulation, Trace, nobody_moves, ours, petals
from tests.benchmarks.results import Row, machine, print_rows, write_rows


def boundary_bytes() -> list[Row]:
    """Bytes a token and value of the model's width, one direction, heads with them."""
    batch = MicroBatch(RunId(bytes(32)), 0, 0, 0, 0)
    rows = []
    limits: dict[BoundaryCodec, float] = {"int8": 1.03, "int4": 0.53}
    for codec, limit in limits.items():
        shares = [
            Boundary(codec, "forward", 1, batch, (4, 128, dim)).message_bytes / (4 * 128 * dim) for dim in (128, 2048)
        ]
        rows.append(no_more_than(f"boundary bytes a token, {codec}", shares, limit, "d", {"dims": [128, 2048]}))
    return rows


def placement(hours: float) -> list[Row]:
    """Three rules on one preemption trace."""
    trace = Trace(num_servers=16, num_stages=4, up_s=7200, down_s=3600, hours=hours, seed=1)
    rules: tuple[Rule, ...] = (nobody_moves, petals, ours)
    found = {rule.__name__: Simulation(trace, rule).run() for rule in rules}
    settings: dict[str, object] = {
        "hours": hours,
        **{name: {"share": outcome.share, "moved_bytes": outcome.moved_bytes} for name, outcome in found.items()},
    }
    moved = found["ours"].moved_bytes / max(1, found["petals"].moved_bytes)
    return [
        no_less_than("placement: share of the optimum on a preemption trace", [found["ours"].share], 0.96, settings),
        no_more_than("... bytes moved, of what Petals' rule moves", [moved], 0.5, "share", settings),
    ]


def exact_rows(*, is_quick: bool) -> Iterator[list[Row]]:
    """All that is the same on every machine."""
    yield from oracle_rows(is_quick=is_quick)
    yield boundary_bytes()
    yield placement(8.0 if is_quick else 32.0)


class PartRows(Protocol):
    """The rows of a part, as they are measured."""

    def __call__(self, *, is_quick: bool) -> Iterator[list[Row]]:
        """A tenth of them, or less, where they are to show that all of it works."""
        ...


PART_ROWS: Final[Mapping[str, PartRows]] = {"exact": exact_rows, "loss": loss_rows, "speed": speed_rows}
PARTS: Final = tuple(PART_ROWS)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {','.join(PARTS)}")
    return parts


def main(arguments: Sequence[str]) -> None:
    """All rows, as a table and as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.pipeline", description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", type=_parts, default=PARTS, help="exact,loss,speed, which is all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(
        1
    )  # the stages are small: several threads wait for each other ten times as long as they compute
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    rows: list[Row] = []
    for part in [part for part in PARTS if part in options.parts]:
        for more in PART_ROWS[part](is_quick=options.quick):
            rows += more
            if options.json:
                write_rows(rows, options.json)  # what was measured stands, also where what follows fails
    print_rows(rows, f"pipeline parts, {machine()}")


if __name__ == "__main__":
    main(sys.argv[1:])
