"""Rows of the table: each way's loss over the reference's, in percent, at the best of the inner rates it was trained with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from tests.benchmarks.convergence import Runs
from tests.benchmarks.convergence_training import data_parallel_bytes
from tests.benchmarks.convergence_ways import SYNC, Trial, Way
from tests.benchmarks.learning.sizes import Size
from tests.benchmarks.learning.table_plan import CHAPTERS, TablePlan, name_of
from tests.benchmarks.results import Row, machine

BENCH: Final = "learning"
TARGET_MEMBERS: Final = 8
TARGETS: Final = {"3M": 2.0, "30M": 1.0, "136M": 1.0}
"""Sizes that have targets, and the factor of their percents: a small model may lose twice as much."""

FEWER_BYTES: Final = ((100.0, 1.0), (400.0, 2.0))
"""At so many times fewer bytes than the reference, so many percent over it at most."""


@dataclass(frozen=True)
class Standing:
    """A way with so many members: its gaps by seed, in percent, and the reference's bytes over its own."""

    way: Way
    members: int
    gaps: tuple[float, ...]
    losses: tuple[float, ...]
    rates: tuple[float, ...]
    fewer: float | None
    traces: tuple[object, ...]

    @property
    def gap(self) -> float:
        """The median over the seeds."""
        return statistics.median(self.gaps)


def standings(plans: Sequence[TablePlan], against: str = "adamw") -> list[Standing]:
    """Every way that was trained with a seed of which the reference was, too; the plans differ in their seeds alone."""
    found: dict[tuple[Way, int], list[Trial]] = {}
    references = {plan.seed: plan.reference(against) for plan in plans}
    for plan in plans:
        if references[plan.seed] is None:
            continue
        by_way: dict[tuple[Way, int], list[Trial]] = {}
        for trial in plan.trials(CHAPTERS):
            members = 0 if trial.way.kind == "sync" else trial.regime.num_peers
            by_way.setdefault((trial.way, members), []).append(trial)
        for key, trials in by_way.items():
            best = plan.best(trials)
            if best is not None:
                found.setdefault(key, []).append(best)
    runs = plans[0].runs
    return [_standing(runs, way, members, trials, references) for (way, members), trials in found.items()]


def _standing(
    runs: Runs, way: Way, members: int, trials: Sequence[Trial], references: dict[int, Trial | None]
) -> Standing:
    losses = [runs.loss(trial) or 0.0 for trial in trials]
    others = [runs.loss(other) or 0.0 for trial in trials if (other := references[trial.seed]) is not None]
    sent = statistics.mean(runs.bytes_sent(trial) for trial in trials)
    return Standing(
        way,
        members,
        tuple(100.0 * (loss / other - 1.0) for loss, other in zip(losses, others, strict=True)),
        tuple(losses),
        tuple(trial.rate for trial in trials),
        data_parallel_bytes(trials[0].regime) / sent if sent and members else None,
        tuple(runs.figure(trial, "trace") for trial in trials),
    )


def rows_of(size: Size, plans: Sequence[TablePlan]) -> list[Row]:
    """A row for each way beside the reference, then the targets of sizes that have them."""
    found = standings(plans)
    rows = [_row(size, each) for each in found if each.way != SYNC]
    return [*rows, *_target_rows(size, found, standings(plans, "muon"))] if size.name in TARGETS else rows


def _row(size: Size, each: Standing) -> Row:
    members = f", {each.members} member{'s' * (each.members != 1)}" if each.members else ""
    fewer = f", {each.fewer:.0f} times fewer bytes" if each.fewer is not None else ""
    return _percent(
        f"{size.name}{members}: {name_of(each.way)}{fewer}; loss over synchronous AdamW",
        each,
        {"trace": each.traces},
    )


def _percent(metric: str, each: Standing, more: dict[str, object], target: float | None = None) -> Row:
    settings: dict[str, object] = {
        "inner_rates": each.rates,
        "losses_nats_per_byte": [round(loss, 4) for loss in each.losses],
        "way": asdict(each.way),
        "machine": machine(),
    }
    return Row(
        BENCH,
        metric,
        round(each.gap, 2),
        "%",
        target="" if target is None else f"<= {target:g}",
        met=None if target is None else each.gap <= target,
        trials=len(each.gaps),
        spread={"best": round(min(each.gaps), 2), "worst": round(max(each.gaps), 2)} if len(each.gaps) > 1 else {},
        settings=settings | more,
    )


def _target_rows(size: Size, found: Sequence[Standing], over_muon: Sequence[Standing]) -> list[Row]:
    """Only of the targets that something was trained for."""
    factor, rows = TARGETS[size.name], list[Row]()

    def add(words: str, candidates: Sequence[Standing], most: float) -> None:
        if candidates:
            best = min(candidates, key=lambda each: each.gap)
            rows.append(_percent(f"{size.name}, target: {words}", best, {"name": name_of(best.way)}, factor * most))

    of_eight = [each for each in found if each.members == TARGET_MEMBERS]
    for least, most in FEWER_BYTES:
        far = [each for each in of_eight if each.fewer is not None and each.fewer >= least]
        add(f"{least:g} times fewer bytes, over synchronous AdamW", far, most)
    add("Muon in e3m0 over synchronous AdamW", [each for each in of_eight if _is_muon_e3m0(each)], 0.0)
    with_muon = [each for each in over_muon if each.members == TARGET_MEMBERS and _is_muon_e3m0(each)]
    add("Muon in e3m0 over synchronous Muon", with_muon, 2.0)
    add("topk over int8 on the same rounds", _over(of_eight, found, "topk", "int8", TARGET_MEMBERS), 0.0)
    add("8 members over 1 with the same batch", _over(of_eight, found, "fp32", "fp32", 1), 2.0)
    return rows


def _is_muon_e3m0(each: Standing) -> bool:
    return each.way.optimizer == "muon" and each.way.codec == "e3m0"


def _over(
    own: Sequence[Standing], others: Sequence[Standing], codec: str, against: str, members: int
) -> list[Standing]:
    """Those in a codec, with their gaps over the best in another one: the same optimizer and rounds, so many members."""
    found = []
    for each in own:
        alike = [
            other
            for other in others
            if (other.way.codec, other.members) == (against, members)
            and (other.way.optimizer, other.way.ramp) == (each.way.optimizer, each.way.ramp)
            and len(other.losses) == len(each.losses)
        ]
        if each.way.codec == codec and alike:
            best = min(alike, key=lambda other: other.gap)
            gaps = [100.0 * (own / other - 1.0) for own, other in zip(each.losses, best.losses, strict=True)]
            found.append(
                Standing(each.way, each.members, tuple(gaps), each.losses, each.rates, each.fewer, each.traces)
            )
    return found
