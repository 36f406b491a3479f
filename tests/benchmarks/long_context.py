"""`python -m tests.benchmarks.long_context --json FILE [--quick]`: a long context on two ranks beside one process.

Each is in processes of its own on the CPU, over gloo, and makes one forward and one backward pass over one sequence: with the same
parameters and tokens, so that the gradients can be compared. Kept for the backward pass are all tensors that autograd saves but the
parameters, each memory counted once. The peak is of all that torch allocates in both passes beside the parameters.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from peer.training.plan.layout import Mesh
from tests.benchmarks.long_context_pass import CONTEXT_FILE, measured_pass
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.peer.training.ranks.rank_processes import Found, run_ranks

BENCH: Final = "long_context"
NUM_RANKS: Final = 2
LONG: Final = 8192
QUICK: Final = 2048
MOST_ERROR: Final = 1e-5
MOST_OF_ACTIVATIONS: Final = 0.6
LIMIT_S: Final = 1800.0


def rows_of(context_tokens: int) -> list[Row]:
    """The errors of gradients and the shares of memory, the worst rank's."""
    (alone,), ranks = (_found(Mesh(), context_tokens), _found(Mesh(shard=NUM_RANKS, context=NUM_RANKS), context_tokens))
    names = [name for name in alone if name not in ("kept", "peak")]
    errors = [max(float((found[name] - alone[name]).abs().max()) for name in names) for found in ranks]
    largest = max(float(alone[name].abs().max()) for name in names)
    settings = {"context_tokens": context_tokens, "ranks": NUM_RANKS, "largest_gradient": largest, **machine()}
    error = max(errors)
    return [
        Row(
            BENCH,
            "largest error of any gradient",
            error,
            "",
            target=f"<= {MOST_ERROR:g}",
            met=error <= MOST_ERROR,
            trials=1,
            settings=settings,
        ),
        _share_row("bytes kept for the backward pass", "kept", alone, ranks, MOST_OF_ACTIVATIONS, settings),
        _share_row("peak bytes of both passes", "peak", alone, ranks, MOST_OF_ACTIVATIONS, settings),
    ]


def _share_row(
    metric: str, name: str, alone: Found, ranks: Sequence[Found], most: float, settings: dict[str, object]
) -> Row:
    value, baseline = max(float(found[name]) for found in ranks), float(alone[name])
    ratio = round(value / baseline, 4)
    return Row(BENCH, metric, value, "bytes", baseline, ratio, f"<= {most:g} x", ratio <= most, 1, settings=settings)


def _found(mesh: Mesh, context_tokens: int) -> list[Found]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / CONTEXT_FILE).write_text(str(context_tokens))
        return run_ranks(mesh, measured_pass, Path(name), LIMIT_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.long_context", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="a shorter context")
    options = parser.parse_args(arguments)
    rows = rows_of(QUICK if options.quick else LONG)
    write_rows(rows, options.json)
    print_rows(rows, "a long context on two ranks")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
