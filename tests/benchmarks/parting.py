"""The work of a peer that is asked to leave, and has five seconds: `python -m tests.benchmarks.parting --json FILE [--quick]`.

Five peers in virtual time, with the production services. One of them is asked to go at each of ten moments of a round, spread evenly.
An upload takes a third of the round, so some moments lie in the exchange. A moment counts if commits cover all tokens that the peer
had trained since its last one. The same script is among the scenarios of the simulation (tests/simulation/scenarios_turnover.py).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from averaging.rounds.parting import PARTING_S
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.simulation import scenarios_turnover
from tests.simulation.collection import SCENARIOS
from tests.simulation.scenario import play

BENCH: Final = "parting"
SCENARIO: Final = "asked-to-go-at-ten-moments"
LEAST_COUNTED: Final = 9
NUM_SEEDS: Final = 5
QUICK_SEEDS: Final = 1


def counted_moments(seed: int) -> int:
    """At how many of the ten moments all work counted.

    Raises:
        RuntimeError: the scenario broke off.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    outcome = play(SCENARIOS[SCENARIO], seed, keeps_trace=True)
    told = next((line for line in outcome.lines if scenarios_turnover.COUNTED in line), None)
    if told is None:
        raise RuntimeError(f"seed {seed}: {outcome.error}")
    return told.partition(scenarios_turnover.COUNTED)[2].split().count("1.00")


def main(arguments: Sequence[str] | None = None) -> int:
    """One row: the median over the seeds, and the worst one against the aim."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.parting")
    parser.add_argument("--json", type=Path, help="write the rows there, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="one seed, to see that it works")
    args = parser.parse_args(arguments)
    found = sorted(counted_moments(seed) for seed in range(QUICK_SEEDS if args.quick else NUM_SEEDS))
    row = Row(
        BENCH,
        "asked to go at ten moments of a round: moments after which all work counts",
        float(found[len(found) // 2]),
        "moments",
        target=f">= {LEAST_COUNTED}",
        met=found[0] >= LEAST_COUNTED,
        trials=len(found),
        spread={"best": float(found[-1]), "worst": float(found[0])},
        settings={"peers": 5, "parting_s": PARTING_S, "machine": machine()},
    )
    if args.json is not None:
        write_rows([row], args.json)
    print_rows([row], "peers that are asked to go")
    return 0


if __name__ == "__main__":
    sys.exit(main())
