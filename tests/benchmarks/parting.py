"""The work of a peer that is asked to leave, and has five seconds.

    python -m tests.benchmarks.parting --json FILE [--quick] [--parts virtual real]

- virtual: five peers in virtual time, with the production services. One of them is asked to go at each of ten moments of a round,
  spread evenly. An upload takes a third of the round, so some moments lie in the exchange. The same script is among the scenarios of
  the simulation (tests/simulation/scenarios_turnover.py).
- real: four daemons on loopback, one of which gets a SIGTERM at each of ten moments (parting_real.py).

A moment counts if commits cover all tokens that the peer had trained since its last one.
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
from tests.benchmarks.parting_real import INTERVAL_S, NUM_PEERS, Parted, partings
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.simulation import scenarios_turnover
from tests.simulation.collection import SCENARIOS
from tests.simulation.scenario import play

BENCH: Final = "parting"
SCENARIO: Final = "asked-to-go-at-ten-moments"
LEAST_COUNTED: Final = 9
NUM_SEEDS: Final = 5
QUICK_SEEDS: Final = 1
QUICK_MOMENTS: Final = 2
PARTS: Final = ("virtual", "real")


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


def virtual_row(num_seeds: int) -> Row:
    """The median over the seeds, and the worst one against the aim."""
    found = sorted(counted_moments(seed) for seed in range(num_seeds))
    return Row(
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


def real_rows(num_moments: int) -> list[Row]:
    """The moments after which all work counted, and how soon the leaver's process had ended. Fewer moments than ten have no aim."""
    found = list[Parted]()
    for each in partings(num_moments):
        print(f"real: {each}", flush=True)
        found.append(each)
    counted, gone_s = sum(each.is_counted for each in found), sorted(each.gone_s for each in found)
    is_judged = num_moments == scenarios_turnover.NUM_MOMENTS
    about = {"peers": NUM_PEERS, "interval_s": INTERVAL_S, "parting_s": PARTING_S, "machine": machine()}
    return [
        Row(
            BENCH,
            f"SIGTERM to a daemon at {num_moments} moments of a round on loopback: moments after which all work counts",
            float(counted),
            "moments",
            target=f">= {LEAST_COUNTED}" if is_judged else "",
            met=counted >= LEAST_COUNTED if is_judged else None,
            trials=num_moments,
            settings=about,
        ),
        Row(
            BENCH,
            "SIGTERM to a daemon: until its process has ended",
            round(gone_s[len(gone_s) // 2], 2),
            "s",
            trials=num_moments,
            spread={"best": round(gone_s[0], 2), "worst": round(gone_s[-1], 2)},
            settings=about,
        ),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every aim was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.parting")
    parser.add_argument("--json", type=Path, help="write the rows there, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="one seed and two moments, to see that it works")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args(arguments)
    rows = [virtual_row(QUICK_SEEDS if args.quick else NUM_SEEDS)] if "virtual" in args.parts else []
    if "real" in args.parts:
        rows += real_rows(QUICK_MOMENTS if args.quick else scenarios_turnover.NUM_MOMENTS)
    if args.json is not None:
        write_rows(rows, args.json)
    print_rows(rows, "peers that are asked to go")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
