"""`python -m tests.benchmarks.agreement --json FILE [--quick]`: how far honest deltas agree, chunk by chunk.

The rule that guards means looks at each member's agreement: the median of the cosines between its chunk and the others'. It holds
while that is far above the cosine of random vectors. Peers train as in `tests.benchmarks.attacks`, and nobody attacks. Rows tell, for
each codec and schedule, the agreement of the median member in all chunks of all rounds, and what the rule makes of it: the share of
chunks in which agreement is near zero, so that everybody is kept, and the share of honest work that it leaves out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from averaging.arithmetic.robust_mean import NOISE_SQUARED, Judgement
from tests.benchmarks.attack_training import AttackedTraining
from tests.benchmarks.attacks import LOCAL_STEPS, MODEL, RATE, RULE, WAYS
from tests.benchmarks.convergence import corpus
from tests.benchmarks.convergence_training import CHUNK, Corpus
from tests.benchmarks.convergence_ways import Ramp, Regime, Trial, Way
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "agreement"
NUM_PEERS: Final = 8
MOST_LEFT_OUT: Final = 0.01
"""The most honest work that the rule should leave out."""

INT8: Final = WAYS["int8"]
SCHEDULES: Final[Mapping[str, Way]] = MappingProxyType(
    {
        "int8": INT8,
        "int4": WAYS["int4"],
        "e3m0": WAYS["e3m0"],
        "topk with feedback": WAYS["topk"],
        "int8, overlap of 3 steps": replace(INT8, delay=3),
        "int8, 3 fragments": replace(INT8, num_fragments=3),
        "int8, rounds of 32 steps": replace(INT8, ramp=Ramp(4 * LOCAL_STEPS)),
    }
)
"""The ways that are compared. Only those of one unit are judged by whole chunks of the model."""


def judged(way: Way, num_steps: int, text: Corpus) -> list[list[Judgement]]:
    """Train honest peers; the judgements of each chunk, round by round."""
    regime = Regime(BENCH, MODEL, NUM_PEERS, num_steps, 4 * MODEL.context_tokens, (RATE, RATE, RATE))
    training = AttackedTraining(Trial(regime, way, 0, RATE), text, robust=RULE)
    training.run()
    return training.judged


def rows_of(name: str, rounds: Sequence[Sequence[Judgement]], num_steps: int) -> list[Row]:
    """The agreement, and what the rule makes of it."""
    chunks = [each for found in rounds for each in found]
    medians = [each.median for each in chunks]
    fewest = min(len(found) for found in rounds)
    # of the last chunk of a unit, which may be shorter, the bound is a little higher
    unjudged = statistics.fmean(each * max(0.0, each) * CHUNK <= NOISE_SQUARED for each in medians)
    left_out = statistics.fmean(len(each.left_out) / NUM_PEERS for each in chunks)
    early, late = (
        statistics.median(each.median for found in part for each in found) for part in (rounds[:2], rounds[-2:])
    )
    settings = {
        "model": MODEL.model_dump(),
        "peers": NUM_PEERS,
        "steps": num_steps,
        "rounds": len(rounds),
        "chunks": fewest,
        "first_rounds": round(early, 3),
        "last_rounds": round(late, 3),
        "machine": machine(),
    }
    spread = {"best": round(max(medians), 3), "worst": round(min(medians), 3)}
    return [
        Row(
            BENCH,
            f"{name}: agreement of the median member",
            round(statistics.median(medians), 3),
            "cosine",
            trials=len(medians),
            spread=spread,
            settings=settings,
        ),
        Row(
            BENCH,
            f"{name}: chunks in which everybody is kept for lack of agreement",
            round(unjudged, 4),
            "share",
            trials=len(medians),
            settings=settings,
        ),
        Row(
            BENCH,
            f"{name}: honest work left out",
            round(left_out, 4),
            "share",
            None,
            None,
            f"<= {MOST_LEFT_OUT:g}",
            left_out <= MOST_LEFT_OUT,
            len(medians),
            settings=settings,
        ),
    ]


def main(arguments: Sequence[str]) -> int:
    """0 when the rule leaves little enough out everywhere."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.agreement", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="a part of the steps, int8 alone")
    parser.add_argument("--steps", type=int, default=320, help="local steps of each peer")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    text, rows = corpus(), list[Row]()
    num_steps = min(48, options.steps) if options.quick else options.steps
    for name, way in SCHEDULES.items():
        if not options.quick or name == "int8":
            rows += rows_of(name, judged(way, num_steps, text), num_steps)
            print(f"{name}: {rows[-3].value}, left out {rows[-1].value}", flush=True)
    write_rows(rows, options.json)
    print_rows(rows, "agreement of honest deltas")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
