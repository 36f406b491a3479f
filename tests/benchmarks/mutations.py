"""`python -m tests.benchmarks.mutations [--each N] [--seed S]`: is damage found before it is used, whatever it hits?

So many mutations each of what peers and the host take from others or read back from a disk. Every one has to be refused or left out,
named in one line, and replaced by good bytes where somebody has them; none may end in anything but the project's own errors.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.benchmarks.mutated_bytes import CHUNKS, UPDATES, measure_bytes
from tests.benchmarks.mutated_ledger import measure_ledger
from tests.benchmarks.mutated_records import (
    measure_certificates,
    measure_generations,
    measure_log,
    measure_reports,
)
from tests.benchmarks.mutating import Outcome
from tests.benchmarks.results import Row, always, print_rows

BENCH: Final = "recovery"
SEED: Final = 17
NUM_EACH: Final = 1000

Measure = Callable[[int, random.Random, Path], Awaitable[list[Outcome]]]
"""How many, by which chance, in which empty folder."""


async def _chunks(number: int, chance: random.Random, folder: Path) -> list[Outcome]:
    return await measure_bytes("chunks", CHUNKS, number, chance)


async def _updates(number: int, chance: random.Random, folder: Path) -> list[Outcome]:
    return await measure_bytes("updates", UPDATES, number, chance)


async def _certificates(number: int, chance: random.Random, folder: Path) -> list[Outcome]:
    return await measure_certificates(number, chance)


KINDS: Final[dict[str, Measure]] = {
    "chunks": _chunks,
    "updates": _updates,
    "certificates": _certificates,
    "reports": measure_reports,
    "ledger": measure_ledger,
    "log": measure_log,
    "generations": measure_generations,
}


def measure(num_each: int = NUM_EACH, seed: int = SEED, kinds: Sequence[str] = tuple(KINDS)) -> list[Outcome]:
    """So many mutations of each kind, in virtual time; all chance comes from the seed."""
    outcomes: list[Outcome] = []
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix="potluck-mutations-") as folder, _everything_reported(), capture_logs():
            run = partial(KINDS[kind], num_each, random.Random(f"{kind}/{seed}"), Path(folder))
            outcomes += trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    return outcomes


@contextmanager
def _everything_reported() -> Iterator[None]:
    """A developer may want to see only warnings, but the whole log is judged here."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))
    try:
        yield
    finally:
        structlog.configure(wrapper_class=before)


def rows(outcomes: Sequence[Outcome], settings: dict[str, object]) -> list[Row]:
    """One row a kind, and what holds for all of them. The verdicts are counted in the settings."""
    made: list[Row] = []
    for kind in KINDS:
        ours = [one for one in outcomes if one.kind.split(":")[0] == kind]
        if ours:
            verdicts = dict(Counter(one.verdict for one in ours))
            reported = {**settings, "verdicts": verdicts, "mutations": dict(Counter(one.how for one in ours))}
            made.append(
                always(BENCH, f"{kind}: mutations detected before use", [one.is_caught for one in ours], reported)
            )
    sourced = [one.verdict == "replaced" for one in outcomes if one.has_source]
    made.append(always(BENCH, "mutations replaced from another source where there is one", sourced, settings))
    named = [one.is_named for one in outcomes if one.lines is not None]
    made.append(always(BENCH, "mutations named in one line", named, settings))
    crashes = sum(one.verdict == "crashed" for one in outcomes)
    spread = {"best": float(crashes), "worst": float(crashes)}
    reported = {**settings, "log entries past their checksums": sum(one.kind == "entries" for one in outcomes)}
    metric = "crashes over all mutations"
    made.append(Row(BENCH, metric, crashes, "count", None, None, "= 0", crashes == 0, len(outcomes), spread, reported))
    return made


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.mutations", description=__doc__)
    parser.add_argument("--each", type=int, default=NUM_EACH, help="mutations of each kind")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args(arguments)
    outcomes = measure(options.each, options.seed)
    made = rows(outcomes, {"seed": options.seed, "each": options.each})
    print_rows(made, "mutations: damage is found before it is used")
    for one in [one for one in outcomes if one.verdict in ("missed", "crashed")][:20]:
        print(one)
    return 0 if all(row.met for row in made) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
