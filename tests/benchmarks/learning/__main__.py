"""`python -m tests.benchmarks.learning --folder FOLDER --json FILE [--size 1M | --quick]`: held-out loss at equal tokens.

Members train a small decoder on Python's standard library in this process, a step each in turn. They are kept together by the
product's own arithmetic: delta, codecs, error feedback, weighted mean, outer step, optimizers. The reference is synchronous
training at the best learning rate of a sweep. Other ways have their inner and outer rates swept. A sweep grows while its best rate is
its lowest or highest. The members of a way share the tokens of a step.

The folder keeps finished trainings, one a line, and the state of the one that is under way. Each start goes on where the last one was
left, for `--piece-s` seconds, and writes the rows of all that is finished. Exit code 0: all that was asked for is trained, and every
target is met. 1: a target is missed. 2: the piece is over, and there is more to train: start it again. 3: a file of the
folder is damaged, or the size needs a card.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch

from tests.benchmarks.convergence import BadRunsError, Runs, corpus
from tests.benchmarks.convergence_training import Corpus
from tests.benchmarks.convergence_ways import Trial
from tests.benchmarks.learning.law_rows import law_rows
from tests.benchmarks.learning.loss_rows import rows_of, standings
from tests.benchmarks.learning.pieces import Piece
from tests.benchmarks.learning.saved_training import BadSavedTrainingError
from tests.benchmarks.learning.sizes import QUICK, SIZES, Size
from tests.benchmarks.learning.table_plan import CHAPTERS, TablePlan, name_of
from tests.benchmarks.results import print_rows, write_rows

PIECE_S: Final = 540.0
RUNS_NAME: Final = "runs.jsonl"


def next_trial(plans: Sequence[TablePlan], chapters: Sequence[str], only: re.Pattern[str]) -> Trial | None:
    """The first training that is planned and not finished; the plan grows with what is finished."""
    for plan in plans:
        for trial in plan.trials(chapters):
            if only.search(name_of(trial.way)) and plan.loss(trial) is None:
                return trial
    return None


def train(plans: Sequence[TablePlan], options: argparse.Namespace) -> bool:
    """Train until all is done or the piece is over; whether all is done."""
    text: Corpus | None = None
    stops_at_s = time.monotonic() + options.piece_s
    while (trial := next_trial(plans, options.chapters, options.only)) is not None:
        text = text or corpus()
        outcome = Piece(trial, text, options.folder, options.device).run_until(stops_at_s)
        if outcome is None:
            return False
        plans[0].runs.add(trial, asdict(outcome))
        what = f"{trial.regime.name}, {trial.regime.num_peers} members, seed {trial.seed}, rate {trial.rate:g}"
        print(f"{what}: {name_of(trial.way)}: {outcome.loss:.4f} nats/byte, {outcome.cpu_s:.0f} CPU s", flush=True)
    return True


def _chapters(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CHAPTERS]:
        raise argparse.ArgumentTypeError(
            f"no chapter {unknown[0]!r}; expected some of {', '.join(CHAPTERS)}, by commas"
        )
    return names


def _times(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} times as many steps; expected a whole number from 1 on")
    return int(text)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}; expected a regular expression") from error


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.learning", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where trainings are kept")
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--size", choices=SIZES, default="1M")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK}, the chapter of rates alone")
    parser.add_argument(
        "--chapters", type=_chapters, default=list(CHAPTERS), help=f"by commas, of {','.join(CHAPTERS)}"
    )
    parser.add_argument(
        "--only",
        type=_pattern,
        default="",
        help='ways whose name has this regular expression in it, such as "int8|mean$"',
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--longer", type=_times, default=1, help="times as many steps, to see what passes with time")
    parser.add_argument("--piece-s", type=float, default=PIECE_S, help="seconds until this piece ends")
    parser.add_argument("--device", default="cpu", help="where members train: cpu or cuda")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    options = parser.parse_args(arguments)
    if options.quick:
        options.size, options.chapters = QUICK, ["rates"]
    return options


def _plans(size: Size, options: argparse.Namespace) -> list[TablePlan]:
    options.folder.mkdir(parents=True, exist_ok=True)
    runs = Runs(options.folder / RUNS_NAME)
    return [TablePlan(size, seed, runs) for seed in range(options.seeds)]


def main(arguments: Sequence[str]) -> int:
    """The module's docstring says what the codes mean."""
    options = _options(arguments)
    size = SIZES[options.size].longer(options.longer)
    if size.needs_card and options.device == "cpu":
        print(f"{size.name} takes weeks on a processor; give --device cuda, or a smaller --size", file=sys.stderr)
        return 3
    torch.set_num_threads(options.threads)
    try:
        plans = _plans(size, options)
        is_done = train(plans, options)
    except (BadRunsError, BadSavedTrainingError) as error:
        print(error, file=sys.stderr)
        return 3
    rows = [*rows_of(size, plans), *law_rows(size, standings(plans))]
    write_rows(rows, options.json)
    print_rows(rows, "loss at equal tokens")
    if not is_done:
        return 2
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
