"""The trainings of the table, chapter by chapter. Later chapters take the rates that were best in earlier ones.

Chapters: "rates", the synchronous references; "outer", plain mean and Nesterov over inner and outer rates; "sparse", what a sparse
codec with feedback costs and why; "table", members, local steps and codecs; "streaming".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from protocol.rounds.messages.record import OuterStep
from tests.benchmarks.convergence import Runs
from tests.benchmarks.convergence_ways import MEAN, SYNC, SYNC_MUON, Ramp, Trial, Way
from tests.benchmarks.learning.sizes import Size

CHAPTERS: Final = ("rates", "outer", "sparse", "table", "streaming")
OPTIMIZERS: Final = ("adamw", "muon")
MEMBERS: Final = (1, 4, 8)
LOCAL_STEPS: Final = (20, 50, 100)
SWEPT_MEMBERS: Final = 4
"""Of the chapters that sweep."""

SWEPT_STEPS: Final = 20
BETA: Final = 0.95
STRONG: Final = 0.8
"""Momentum from which inner rates are swept lower."""

MOST_WIDENED: Final = 3
"""Rates by which a sweep grows at most; with three to begin with they span a factor of 32."""

OUTER_STEPS: Final = (
    MEAN,
    OuterStep("mean", 1.5, 0.0),
    OuterStep("nesterov", 0.7, 0.9),
    OuterStep("nesterov", 0.4, 0.9),
    OuterStep("nesterov", 0.2, 0.9),
    OuterStep("nesterov", 0.7, 0.5),
)
SPARSE_OUTER: Final = (MEAN, *(OuterStep("mean", rate, 0.0) for rate in (1.5, 2.0, 3.0)))
BETAS: Final = (0.8, 0.95, 1.0)
CODECS: Final = ("fp32", "int8", "e3m0", "topk")
STREAMED: Final = ("int8", "e3m0")


def rounds(optimizer: str, local_steps: int, codec: str = "fp32", outer: OuterStep = MEAN, beta: float = BETA) -> Way:
    """Even rounds; feedback goes with the sparse codec alone. Its means are as a run of four members has them."""
    is_sparse = codec == "topk"
    return Way(
        "",
        ramp=Ramp(local_steps),
        codec=codec,
        result="top6" if is_sparse else "",
        beta=beta if is_sparse else 0.0,
        outer=outer,
        optimizer=optimizer,
    )


def name_of(way: Way) -> str:
    """A way in words, such as "Muon, rounds of 20 steps, int8, nesterov 0.7/0.9"."""
    optimizer = {"adamw": "AdamW", "muon": "Muon"}[way.optimizer]
    if way.kind == "sync":
        return f"{optimizer}, synchronous"
    outer = f"nesterov {way.outer.learning_rate:g}/{way.outer.momentum:g}"
    if way.outer.kind == "mean":
        outer = "mean" if way.outer.learning_rate == 1.0 else f"mean x {way.outer.learning_rate:g}"
    parts = [optimizer, f"rounds of {way.ramp.last} step{'s' * (way.ramp.last != 1)}", way.codec, outer]
    parts += [f"feedback {way.beta:g}"] if way.beta else []
    parts += [f"tables in {way.tables}"] if way.tables else []
    parts += [f"weight decay {way.weight_decay:g}"] if way.weight_decay != Way("").weight_decay else []
    parts += [f"streaming in {way.num_fragments}, {way.delay} late"] if way.num_fragments > 1 else []
    return ", ".join(parts)


@dataclass(frozen=True)
class TablePlan:
    """The trainings of one size and seed, as far as what is trained already tells them."""

    size: Size
    seed: int
    runs: Runs

    def trials(self, chapters: Sequence[str]) -> Iterator[Trial]:
        """Each once, in order. An unfinished chapter leaves out what depends on it."""
        each = {
            "rates": self._rates,
            "outer": self._outer,
            "sparse": self._sparse,
            "table": self._table,
            "streaming": self._streaming,
        }
        seen = set[str]()
        for chapter in CHAPTERS:
            for trial in each[chapter]() if chapter in chapters else ():
                if trial.key not in seen:
                    seen.add(trial.key)
                    yield trial

    def loss(self, trial: Trial) -> float | None:
        """Of a finished training."""
        return self.runs.loss(trial)

    def best(self, trials: Iterable[Trial]) -> Trial | None:
        """The finished one with the least loss."""
        found = [(loss, trial.rate, trial) for trial in trials if (loss := self.loss(trial)) is not None]
        return min(found, key=lambda each: each[:2])[2] if found else None

    def reference(self, optimizer: str) -> Trial | None:
        """Synchronous training at its best rate."""
        return self.best(self._synchronous(optimizer))

    def of_rates(self, way: Way, members: int = SWEPT_MEMBERS, rates: Sequence[float] = ()) -> list[Trial]:
        """A way at the size's inner rates, or at these."""
        regime = self.size.regime(members)
        return [Trial(regime, way, self.seed, rate) for rate in rates or self.size.rates]

    def swept(self, way: Way, rates: Sequence[float] = ()) -> list[Trial]:
        """A way at these inner rates, then at half the lowest or twice the highest while that one is the best of all."""
        trials = self.of_rates(way, rates=rates)
        for _ in range(MOST_WIDENED):
            best = self.best(trials)
            if best is None or any(self.loss(trial) is None for trial in trials):
                break
            low, high = min(trial.rate for trial in trials), max(trial.rate for trial in trials)
            if low < best.rate < high:
                break
            trials += self.of_rates(way, rates=(low / 2 if best.rate == low else high * 2,))
        return trials

    def outer_steps(self, optimizer: str) -> list[Trial]:
        """The sweep of the chapter "outer". Momentum makes steps longer, so strong momentum is tried at lower inner rates."""
        low, middle, high = self.size.rates
        found = list[Trial]()
        for outer in OUTER_STEPS:
            rates = (low / 2, low, middle) if outer.momentum >= STRONG else (low, middle, high)
            found += self.swept(rounds(optimizer, SWEPT_STEPS, outer=outer), rates)
        return found

    def sparse_ways(self, optimizer: str) -> list[Trial]:
        """The sweep of the chapter "sparse"."""
        plain = rounds(optimizer, SWEPT_STEPS, "topk")
        ways = [
            *(rounds(optimizer, SWEPT_STEPS, "topk", outer) for outer in SPARSE_OUTER),
            *(rounds(optimizer, SWEPT_STEPS, "topk", beta=beta) for beta in BETAS),
            replace(plain, tables="fp32"),
            replace(plain, tables="fp32", outer=OuterStep("mean", 2.0, 0.0)),
            replace(plain, weight_decay=0.0),
        ]
        low, middle, _ = self.size.rates
        return [trial for way in dict.fromkeys(ways) for trial in self.swept(way, (low, middle))]

    def _synchronous(self, optimizer: str) -> list[Trial]:
        return self.swept(SYNC if optimizer == "adamw" else SYNC_MUON)

    def _rates(self) -> Iterator[Trial]:
        for optimizer in OPTIMIZERS:
            yield from self._synchronous(optimizer)

    def _outer(self) -> Iterator[Trial]:
        for optimizer in OPTIMIZERS:
            yield from self.outer_steps(optimizer)

    def _sparse(self) -> Iterator[Trial]:
        for optimizer in OPTIMIZERS:
            yield from self.sparse_ways(optimizer)

    def _table(self) -> Iterator[Trial]:
        for optimizer in OPTIMIZERS:
            for members in MEMBERS:
                for local_steps in LOCAL_STEPS:
                    for codec in CODECS:
                        yield from self.in_table(optimizer, members, local_steps, codec)

    def in_table(self, optimizer: str, members: int, local_steps: int, codec: str) -> list[Trial]:
        """One place of the table: the mean, and where values are exact Nesterov too, each as it was best in its sweep."""
        if codec == "topk":
            fair = (trial for trial in self.sparse_ways(optimizer) if trial.way.weight_decay == Way("").weight_decay)
            chosen = [self.best(fair)]
        else:
            swept = self.outer_steps(optimizer)
            kinds = ("mean", "nesterov") if codec == "fp32" else ("mean",)
            chosen = [self.best(trial for trial in swept if trial.way.outer.kind == kind) for kind in kinds]
        regime = self.size.regime(members)
        found = list[Trial]()
        for best in chosen:
            if best is not None:
                way = replace(best.way, ramp=Ramp(local_steps))
                way = way if codec == "topk" else replace(way, codec=codec)
                found.append(Trial(regime, way, self.seed, best.rate))
        return found

    def _streaming(self) -> Iterator[Trial]:
        for optimizer in OPTIMIZERS:
            for codec in STREAMED:
                for trial in self.in_table(optimizer, 8, 50, codec):
                    yield replace(trial, way=replace(trial.way, num_fragments=4, delay=5))
