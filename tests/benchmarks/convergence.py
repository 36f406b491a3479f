"""`python -m tests.benchmarks.convergence --json FILE [--quick] [--runs FILE]`: held-out loss at equal tokens against bytes.

Peers train a small decoder on Python's standard library in this process, a step each in turn, and are kept together in different ways
by the product's own arithmetic: delta, codecs, error feedback, weighted mean, outer step, optimizers. The reference is synchronous
data-parallel training, which exchanges float32 gradients at each step; its learning rate is the best of three, and all others take
the same. A gap is a way's loss over that of the reference of the same seed, in percent. Bytes are what one peer sends, as the codecs
write it; "fewer" is against the reference's ring.

Every training that is finished is a line of the file of runs: what is there is not trained again, so that an interrupted benchmark
goes on where it was. `--quick` trains a tenth of the steps of the smallest regime: it shows that all of it works, and its gaps mean
little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch

from averaging.data.sources.corpus import python_stdlib_documents
from tests.benchmarks.convergence_training import Corpus, Training, data_parallel_bytes
from tests.benchmarks.convergence_ways import MORE, POINTS, REGIMES, SYNC, Point, Regime, Target, Trial, Way
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "convergence"
Line = dict[str, object]
"""A finished training: the numbers of its trial and of its outcome."""


def corpus() -> Corpus:
    """Python's standard library; one file in twenty is kept for measuring."""
    documents = python_stdlib_documents()
    parts = [
        b"".join(document.path.read_bytes() for document in documents if document.is_heldout is is_heldout)
        for is_heldout in (False, True)
    ]
    train, heldout = (np.frombuffer(part, dtype=np.uint8) for part in parts)
    return Corpus(train, heldout)


class Planned(Protocol):
    """A training that the file of runs may have."""

    @property
    def key(self) -> str:
        """The same for the same numbers."""
        ...

    def numbers(self) -> dict[str, object]:
        """All of it, for JSON."""
        ...


class BadRunsError(Exception):
    """A file of finished trainings is damaged; the message names the line and says what to do."""


class Runs:
    """The file of finished trainings.

    Raises:
        BadRunsError: a line of it is no finished training.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        self._lines: dict[str, Line] = {}
        for number, text in enumerate(whole.splitlines(), start=1):
            key, line = _finished(text, f"{path}, line {number}")
            self._lines[key] = line
        if whole != data:  # an interruption cut the last line off: it is trained again
            path.write_bytes(whole)

    def loss(self, trial: Planned) -> float | None:
        """Of a finished training."""
        line = self._lines.get(trial.key)
        return None if line is None else float(str(line["loss"]))

    def bytes_sent(self, trial: Trial) -> float:
        """Of a finished training, by one peer."""
        return float(str(self._lines[trial.key]["bytes_sent"]))

    def figure(self, trial: Planned, name: str) -> object:
        """Any figure of a finished training; None before it was trained."""
        return self._lines.get(trial.key, {}).get(name)

    def add(self, trial: Planned, outcome: Line) -> None:
        """On disk before the next one begins."""
        line = {"key": trial.key, **trial.numbers(), **outcome}
        with self._path.open("a", encoding="utf8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines[trial.key] = json.loads(json.dumps(line))


def _finished(text: bytes, place: str) -> tuple[str, Line]:
    """A line of the file of runs, with its key."""
    try:
        line = json.loads(text)
        float(line["loss"])
        return str(line["key"]), line
    except (ValueError, KeyError, TypeError) as error:
        expected = "a finished training with its key and loss; delete that line, and it is trained again"
        raise BadRunsError(f"{place}: {error!r}; expected {expected}") from error


def best_rate(runs: Runs, regime: Regime, seed: int, given: float | None) -> float | None:
    """The given one, or of the reference's learning rates the best; None before it was trained."""
    if given is not None:
        return given
    losses = [(loss, rate) for rate in regime.rates if (loss := runs.loss(Trial(regime, SYNC, seed, rate))) is not None]
    return min(losses)[1] if losses else None


def trials_of(
    regime: Regime, seeds: Sequence[int], points: Sequence[Point], runs: Runs, given: float | None
) -> Iterator[Trial]:
    """The reference at each of its rates unless one is given, then everything at the best of them, seed by seed."""
    if given is None:
        yield from (Trial(regime, SYNC, seeds[0], rate) for rate in regime.rates)
    rate = best_rate(runs, regime, seeds[0], given)
    if rate is not None:
        yield from (Trial(regime, way, seed, rate) for seed in seeds for way in (SYNC, *(p.way for p in points)))


def train_all(regimes: Sequence[Regime], seeds: Sequence[int], only: str, runs: Runs, rate: float | None) -> None:
    """Everything that is planned and not in the file."""
    text: Corpus | None = None
    points = (*POINTS, *MORE) if only else POINTS
    for regime in regimes:
        for trial in trials_of(regime, seeds, points, runs, rate):
            if runs.loss(trial) is not None or not any(part in trial.way.name for part in only.split("|")):
                continue
            text = text or corpus()
            outcome = Training(trial, text).run()
            runs.add(trial, asdict(outcome))
            name = f"{regime.name} seed {trial.seed} rate {trial.rate:g} {trial.way.name}"
            print(f"{name}: {outcome.loss:.4f} nats/byte, {outcome.cpu_s:.0f} CPU s", flush=True)


# --- the table ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """The recorded runs of one regime at the reference's best rate."""

    regime: Regime
    rate: float
    seeds: Sequence[int]
    runs: Runs

    def gaps(self, way: Way, against: Way) -> list[float]:
        """Percent, of the seeds that both were trained with."""
        pairs = [(self._loss(way, seed), self._loss(against, seed)) for seed in self.seeds]
        return [100.0 * (own / other - 1.0) for own, other in pairs if own is not None and other is not None]

    def _loss(self, way: Way, seed: int) -> float | None:
        return self.runs.loss(Trial(self.regime, way, seed, self.rate))

    def fewer(self, way: Way) -> float | None:
        """How many times fewer bytes than the reference a peer sends; None where it sends none."""
        trials = [Trial(self.regime, way, seed, self.rate) for seed in self.seeds]
        sent = [self.runs.bytes_sent(trial) for trial in trials if self.runs.loss(trial) is not None]
        reference = data_parallel_bytes(self.regime)
        return reference / statistics.mean(sent) if sent and sent[0] else None

    def rows(self) -> list[Row]:
        """Gap and bytes of each way, then the targets."""
        ways = (SYNC, *(point.way for point in (*POINTS, *MORE)))
        rows = [row for way in ways for row in self._gap_rows(way)]
        return rows + [
            row
            for point in (*POINTS, *MORE)
            for target in point.targets
            for row in self._target_rows(point.way, target)
        ]

    def _gap_rows(self, way: Way) -> list[Row]:
        gaps, fewer = self.gaps(way, SYNC), self.fewer(way)
        if not gaps:
            return []
        losses = [loss for seed in self.seeds if (loss := self._loss(way, seed)) is not None]
        bytes_reported = f", {fewer:.0f} times fewer bytes" if fewer is not None else ""
        spread = {"best": round(min(gaps), 2), "worst": round(max(gaps), 2)}
        return [
            Row(
                BENCH,
                f"{self.regime.name}: {way.name}{bytes_reported}: gap",
                round(statistics.median(gaps), 2),
                "%",
                trials=len(gaps),
                spread=spread,
                settings={**self._settings(way), "loss_nats_per_byte": round(statistics.median(losses), 4)},
            )
        ]

    def _target_rows(self, way: Way, target: Target) -> list[Row]:
        gaps, fewer = self.gaps(way, target.against), self.fewer(way)
        if not gaps or (target.fewer and (fewer is None or fewer < target.fewer)):
            return []
        median = statistics.median(gaps)
        at = f" at {target.fewer:g} times fewer bytes" if target.fewer else ""
        return [
            Row(
                BENCH,
                f"{self.regime.name}: {way.name} over {target.against.name}{at}",
                round(median, 2),
                "%",
                target=f"<= {target.most:g}",
                met=median <= target.most,
                trials=len(gaps),
                spread={"best": round(min(gaps), 2), "worst": round(max(gaps), 2)},
                settings=self._settings(way),
            )
        ]

    def _settings(self, way: Way) -> dict[str, object]:
        return {**self.regime.numbers(), "rate": self.rate, "way": asdict(way), "machine": machine()}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.convergence", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--runs", type=Path, help="where finished trainings are kept; FILE.runs without it")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one seed")
    parser.add_argument("--regimes", default="L", help=f"by commas, of {', '.join(REGIMES)}")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="the others follow it")
    parser.add_argument("--steps", type=int, help="of each peer, instead of the regime's; schedules end there")
    parser.add_argument("--rate", type=float, help="the learning rate of all, instead of the reference's best of three")
    parser.add_argument(
        "--only", default="", help="ways whose name has one of these in it, by |; the others as far as they are there"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    options = _options(arguments)
    torch.set_num_threads(1)
    regimes = [REGIMES[name] for name in ("quick" if options.quick else options.regimes).split(",")]
    regimes = [replace(regime, num_steps=options.steps or regime.num_steps) for regime in regimes]
    seeds = range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))
    runs = Runs(options.runs or options.json.with_name(options.json.name + ".runs"))
    train_all(regimes, seeds, options.only, runs, options.rate)
    rows = list[Row]()
    for regime in regimes:
        rate = best_rate(runs, regime, seeds[0], options.rate)
        rows += Table(regime, rate, seeds, runs).rows() if rate is not None else []
    write_rows(rows, options.json)
    print_rows(rows, "loss at equal tokens")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
