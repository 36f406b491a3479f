"""`python -m tests.benchmarks.experts --json FILE [--quick] [--runs FILE]`: what runs of a trunk and experts promise, X1 to X9.

X1 to X8 are equalities, checked here in seconds on small models (`tests.benchmarks.expert_checks`). X9 trains: peers with an expert
each on documents that a router sent to it, against a dense model of equal inference cost at equal tokens of everybody, against
experts whose documents were assigned at random, and against a dense model that saw one domain alone; with two and then four domains,
each expert with as many tokens, three seeds. All but experts with a router read as much of each domain, and losses are means over
domains. A margin is a way's loss less the routed one's, in nats a byte, of the same seed and windows.

Every training that is finished is a line of the file of runs: what is there is not trained again, so that an interrupted benchmark
goes on where it was; `--seed 0`, then `--seed 1`, train one seed at a time. `--quick` trains a tenth of the steps with one seed: it
shows that all of it works. Its losses mean little, experts have hardly become different by then: X9's targets are for all steps alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from averaging.models.llama.config import LlamaConfig
from tests.benchmarks import expert_checks as checks
from tests.benchmarks.convergence import Runs
from tests.benchmarks.expert_training import Corpus, Regime, Training, Trial
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "experts"
REGIME: Final = Regime(
    "small",
    LlamaConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=4, ffn_dim=32, context_tokens=64, is_tied=False),
    expert_ffn_dim=128,
    num_steps=1000,
    batch_tokens=1024,
    local_steps=50,
    rate=8e-3,
)
WAYS: Final = ("routed", "dense", "random", "one domain")
NUM_DOMAINS: Final = (2, 4)


def trials_of(regime: Regime, seeds: Sequence[int]) -> Iterator[Trial]:
    """Seed by seed, the most telling pair of ways first, so that what is there early is comparable."""
    for seed in seeds:
        for ways in (WAYS[:2], WAYS[2:]):
            yield from (Trial(regime, way, num_domains, seed) for num_domains in NUM_DOMAINS for way in ways)


def train_all(trials: Sequence[Trial], runs: Runs) -> None:
    """Everything that is not in the file."""
    corpora: dict[int, Corpus] = {}
    for trial in trials:
        if runs.loss(trial) is not None:
            continue
        corpus = corpora.setdefault(trial.num_domains, Corpus(trial.num_domains))
        outcome = Training(trial, corpus).run()
        runs.add(trial, asdict(outcome))
        reported = f"{trial.num_domains} domains seed {trial.seed} {trial.way}: {outcome.loss:.4f} nats/byte"
        print(f"{reported}, {outcome.cpu_s:.0f} CPU s, {asdict(outcome)}", flush=True)


@dataclass(frozen=True)
class Table:
    """The recorded runs."""

    regime: Regime
    seeds: Sequence[int]
    runs: Runs

    def value(self, way: str, num_domains: int, seed: int, name: str = "loss") -> float | None:
        """A figure of one training; None before it was trained."""
        found = self.runs.figure(Trial(self.regime, way, num_domains, seed), name)
        return float(str(found)) if found is not None else None

    def margins(self, num_domains: int, way: str, name: str = "loss") -> list[float]:
        """A way's loss over the routed one's, of the seeds that both were trained with; with `name` of another figure of the way."""
        pairs = [(self.value(way, num_domains, s, name), self.value("routed", num_domains, s)) for s in self.seeds]
        return [other - own for other, own in pairs if other is not None and own is not None]

    def rows(self) -> list[Row]:
        """Losses, then margins with their targets."""
        rows = [row for num_domains in NUM_DOMAINS for way in WAYS for row in self._loss_rows(num_domains, way)]
        for num_domains in NUM_DOMAINS:
            rows += [row for way in WAYS[1:] for row in self._margin_rows(num_domains, way)]
        return rows + self._growth_rows() + [row for n in NUM_DOMAINS for row in self._merged_rows(n)]

    def _loss_rows(self, num_domains: int, way: str) -> list[Row]:
        losses = [loss for seed in self.seeds if (loss := self.value(way, num_domains, seed)) is not None]
        return self._row(f"X9 {num_domains} domains: {way}: held-out loss", losses)

    def _margin_rows(self, num_domains: int, way: str) -> list[Row]:
        margins = self.margins(num_domains, way)
        return self._row(f"X9 {num_domains} domains: {way} over routed", margins, least=0.0)

    def _growth_rows(self) -> list[Row]:
        two, four = (self.margins(num_domains, "dense") for num_domains in NUM_DOMAINS)
        growth = [later - earlier for earlier, later in zip(two, four, strict=False)]
        return self._row("X9 margin over dense: 4 domains less 2", growth, least=-1e-9)

    def _merged_rows(self, num_domains: int) -> list[Row]:
        rows = []
        for name, reported in (("merged", "merged, routers as made"), ("tuned", "merged, routers tuned")):
            rows += self._row(
                f"X9 {num_domains} domains: {reported} over routed", self.margins(num_domains, "routed", name)
            )
        return rows

    @property
    def is_short(self) -> bool:
        """Whether there were fewer steps than X9's targets are for."""
        return self.regime.num_steps < REGIME.num_steps

    def _target(self, least: float | None) -> str:
        if least is None:
            return ""
        target = f"> {least:g}" if least >= 0.0 else ">= 0"
        return f"{target} after {REGIME.num_steps} steps" if self.is_short else target

    def _row(self, metric: str, values: Sequence[float], least: float | None = None) -> list[Row]:
        if not values:
            return []
        worst = min(values) if least is not None else max(values)
        best = max(values) if least is not None else min(values)
        return [
            Row(
                BENCH,
                metric,
                round(statistics.median(values), 4),
                "nats/byte",
                target=self._target(least),
                met=None if least is None or self.is_short else worst > least,
                trials=len(values),
                spread={"best": round(best, 4), "worst": round(worst, 4)},
                settings={**Trial(self.regime, "routed", 0, 0).numbers(), "machine": machine()},
            )
        ]


def check_rows() -> list[Row]:
    """X1 to X8 and the bytes."""
    is_same, num_untouched = checks.x6_removed()
    by_grams, by_embeddings = checks.x8_hashes("grams"), checks.x8_hashes("embeddings")
    killed = checks.x7_killed()
    rows = [
        _at_most("X1 each unit's round against float64, numbers that float32 holds", checks.x1_oracle(is_exact=True), 1e-12),
        _at_most("X1 the same, any numbers, over the largest", checks.x1_oracle(is_exact=False), 1e-6),
        _holds("X1 tensors of those that do not hold an expert stay", checks.x1_others_stay()),
        _holds("X2 an expert that everybody holds is plain DiLoCo, bit by bit", checks.x2_one_group()),
        _at_most("X3 two groups fed identical data", checks.x3_same_data(), 1e-10),
        _holds("X4 momenta and the next round after a restart, bit by bit", checks.x4_restart()),
        _at_most("X5 merged and forced, or alone, against the holder's logits", checks.x5_forced(), 1e-5),
        _at_most("X5 a mixture of one expert against the wider dense model", checks.x5_dense(), 1e-5),
        _holds(f"X6 {num_untouched} tokens sent elsewhere, bit by bit without an expert", is_same and num_untouched > 99),
        _holds("X7 all holders of an expert killed in mid-round", not any(killed), len(killed)),
        _holds("X8 one assignment in 4 kinds of process", len(set(by_grams)) == 1, len(by_grams)),
        _holds("X8 the same by embeddings", len(set(by_embeddings)) == 1, len(by_embeddings)),
    ]  # fmt: skip
    codecs = ("fp32", "int8", "e3m0")
    rows += [_bytes_row(codec, num_experts) for codec in codecs for num_experts in (2, 8)]
    return rows + [_wire_row(codec, num_experts) for codec in codecs for num_experts in (2, 4)]


def _at_most(metric: str, value: float, limit: float) -> Row:
    return Row(BENCH, metric, value, "", target=f"<= {limit:g}", met=value <= limit, trials=1)


def _holds(metric: str, outcome: bool, trials: int = 1) -> Row:
    return Row(BENCH, metric, float(outcome), "share", target="= 1", met=outcome, trials=trials)


def _bytes_row(codec: str, num_experts: int) -> Row:
    """Met when a peer sends its share of the whole model's bytes, to 1%."""
    metric = f"bytes a peer and round, as encoded, {num_experts} experts, {codec}, over the whole model's"
    return _share_row(metric, *checks.bytes_shares(codec, num_experts))


def _wire_row(codec: str, num_experts: int) -> Row:
    """The same of what crosses the network, of the trunk among all four peers and of each expert between its two holders."""
    metric = f"bytes a peer and round, on the wire, {num_experts} experts, {codec}, over the whole model's"
    return _share_row(metric, *checks.wire_shares(codec, num_experts))


def _share_row(metric: str, sent: float, share: float) -> Row:
    is_met = abs(sent / share - 1.0) <= 0.01
    return Row(
        BENCH, metric, round(sent, 5), "share", round(share, 5), round(sent / share, 5), "ratio 1 +- 0.01", is_met, 1
    )


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.experts", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--runs", type=Path, help="where finished trainings are kept; FILE.runs without it")
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, one seed")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument(
        "--seed", type=int, help="train this one alone; rows are of all seeds that the file of runs has"
    )
    parser.add_argument("--steps", type=int, help="of each peer, instead of the regime's")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    options = _options(arguments)
    torch.set_num_threads(1)
    regime = replace(REGIME, num_steps=REGIME.num_steps // 10) if options.quick else REGIME
    if options.steps:
        regime = replace(regime, num_steps=options.steps)
    seeds = range(1 if options.quick else options.seeds)
    runs = Runs(options.runs or options.json.with_name(options.json.name + ".runs"))
    train_all(list(trials_of(regime, seeds if options.seed is None else (options.seed,))), runs)
    rows = check_rows() + Table(regime, seeds, runs).rows()
    write_rows(rows, options.json)
    print_rows(rows, "experts")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
