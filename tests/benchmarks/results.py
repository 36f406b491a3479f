"""A benchmark's report: one row a figure, as a JSON line for machines and in a table for people."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        bench: the benchmark's module name.
        metric: what was measured, a short sentence.
        value: the median over the trials, or a share from 0 to 1; None when nothing could be measured.
        baseline: the same figure of whatever it is compared with, None without one; `ratio` is value / baseline.
        target: what the figure is to keep, such as "<= 0.5"; "" without one.
        met: whether the worst trial keeps the target; None without one.
        trials: how many measurements are behind it.
        spread: "best" and "worst" of them.
        settings: everything that the figure depends on.
    """

    bench: str
    metric: str
    value: float | None
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    trials: int = 0
    spread: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


def at_most(
    bench: str, metric: str, values: Sequence[float], limit: float | None, settings: Mapping[str, object]
) -> Row:
    """Seconds, the less the better: median, best and worst; the target is kept when the worst trial keeps it."""
    target = "" if limit is None else f"<= {limit:g}"
    if not values:
        return Row(bench, metric, None, "s", target=target, settings=settings)
    best, worst = min(values), max(values)
    return Row(
        bench,
        metric,
        round(statistics.median(values), 3),
        "s",
        target=target,
        met=None if limit is None else worst <= limit,
        trials=len(values),
        spread={"best": round(best, 3), "worst": round(worst, 3)},
        settings=settings,
    )


def always(bench: str, metric: str, outcomes: Sequence[bool], settings: Mapping[str, object]) -> Row:
    """A promise that every trial has to keep: the share of trials that kept it."""
    if not outcomes:
        return Row(bench, metric, None, "share", target="= 1", settings=settings)
    share = sum(outcomes) / len(outcomes)
    spread = {"best": float(max(outcomes)), "worst": float(min(outcomes))}
    return Row(bench, metric, share, "share", None, None, "= 1", share == 1.0, len(outcomes), spread, settings)


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """One JSON object per line, whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf8")
    os.replace(temporary, path)


def print_rows(rows: Sequence[Row], title: str) -> None:
    """The rows as a table; long settings are only in the JSON."""
    table = Table(title=title)
    for heading in ("metric", "median", "best", "worst", "unit", "target", "met", "trials", "baseline"):
        table.add_column(heading, justify="left" if heading in ("metric", "unit") else "right")
    for row in rows:
        met = "" if row.met is None else "[green]yes" if row.met else "[red]no"
        cells = (row.value, row.spread.get("best"), row.spread.get("worst"))
        numbers = ["-" if cell is None else f"{cell:g}" for cell in cells]
        baseline = "" if row.baseline is None else f"{row.baseline:g}"
        table.add_row(row.metric, *numbers, row.unit, row.target, met, str(row.trials), baseline)
    Console(width=None if Console().is_terminal else 150).print(table)


def machine() -> dict[str, object]:
    """The machine, how busy it is at this moment, and how its kernel paces TCP."""
    about: dict[str, object] = {"cpus": os.cpu_count(), "load": [round(load, 2) for load in os.getloadavg()]}
    with suppress(OSError):  # another system's kernel tells it elsewhere
        about["tcp"] = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    return about
