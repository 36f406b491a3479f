"""RESULTS.md from rows on file: `python -m tests.benchmarks.table tests/benchmarks/results/*.jsonl` writes it.

A benchmark writes its rows with `--json FILE` (`results.write_rows`). A figure that is to stand in RESULTS.md gets an `origin` beside
the fields of a row: when it was measured, at which commit, on which machine and by which command. Of rows with the same benchmark,
machine and metric the newest one is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

RESULTS_MD: Final = Path(__file__).with_name("RESULTS.md")
ROWS: Final = Path(__file__).with_name("results")

HEAD: Final = """\
# Results

The newest figure of everything that is measured, one chapter a benchmark. Older figures, and changes that were tried and left out, are
in [LOG.md](LOG.md). `python -m tests.benchmarks.table tests/benchmarks/results/*.jsonl` makes this file; edit the rows.

A value is the median of its trials, with the range in brackets; a range alone has no known median. "Against" is the same figure of
what it is compared with, and its ratio is value over baseline. The worst trial must meet an aim, unless the aim says median. The
commit is the one that recorded the figure. Shares of the bound are the shortest possible time over the measured one.

Machines: "2 cores" is a virtual machine whose cores all peers share; "16 cores" is one beside an H200. Loads of other programs are not
known for older figures, so differences below a tenth mean little.
"""


class Origin(BaseModel):
    """The source of a figure: the day, the commit, the machine in words, the command from the repository's root."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    commit: str = Field(pattern=r"^[0-9a-f]{7,40}$")
    machine: str = Field(min_length=1)
    command: str = Field(min_length=1)


class FiledRow(BaseModel):
    """One line of a file of rows: the fields of `results.Row`, and its origin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bench: str
    metric: str
    value: float | None
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    trials: int = 0
    spread: dict[str, float] = {}
    settings: dict[str, object] = {}
    origin: Origin


class BadRowError(Exception):
    """A line of a file of rows cannot be shown; the message names the line, what is wrong with it, and what to do."""


def read_rows(paths: Iterable[Path]) -> list[FiledRow]:
    """All rows of the files, in their order.

    Raises:
        BadRowError: a file cannot be read, or a line is no row, lacks its origin, or names a day that is none.
    """
    rows = []
    for path in paths:
        for number, line in enumerate(_bytes_of(path).splitlines(), start=1):
            try:
                row = FiledRow.model_validate_json(line)
                date.fromisoformat(row.origin.date)
            except (ValidationError, ValueError) as error:
                expected = (
                    "expected a row as a benchmark writes it, with an origin of date, commit, machine and command"
                )
                raise BadRowError(f"{path.name}, line {number}: {error}\n{expected}; mend that line") from error
            rows.append(row)
    return rows


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRowError(f"{path} cannot be read: {error.strerror}\nexpected a file of rows; name another") from error


def newest(rows: Sequence[FiledRow]) -> list[FiledRow]:
    """Of rows about the same thing on the same machine the one measured last, at the place of the first of them."""
    last: dict[tuple[str, str, str], FiledRow] = {}
    for row in rows:
        key = (row.bench, row.metric, row.origin.machine)
        if key not in last or last[key].origin.date <= row.origin.date:
            last[key] = row
    return list(last.values())


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _value(row: FiledRow) -> str:
    unit = "" if row.unit in ("share", "ratio", "") else f" {row.unit}"
    if not {"best", "worst"} <= row.spread.keys():
        return _number(row.value) + unit
    low, high = sorted((row.spread["best"], row.spread["worst"]))
    ends = f"{_number(low)} to {_number(high)}"
    return f"{ends}{unit}" if row.value is None else f"{_number(row.value)}{unit} ({ends})"


def _baseline(row: FiledRow) -> str:
    if row.baseline is None:
        return ""
    ratio = "" if row.ratio is None else f", ratio {row.ratio:.2f}" if row.ratio >= 0.1 else f", ratio {row.ratio:.2g}"
    return f"{_number(row.baseline)}{ratio}"


def _aim(row: FiledRow) -> str:
    met = {True: ": met", False: ": missed", None: ""}[row.met]
    return (row.target + met).strip(": ")


def table(rows: Sequence[FiledRow]) -> str:
    """RESULTS.md of these rows: a chapter a benchmark by name, a table a command in it."""
    parts = [HEAD]
    shown = sorted(newest(rows), key=lambda row: row.bench)
    for bench, of_bench in groupby(shown, key=lambda row: row.bench):
        parts.append(f"## {bench}\n")
        for command, of_command in groupby(of_bench, key=lambda row: row.origin.command):
            lines = [
                f"`{command}`\n",
                "| what | value | against | aim | machine | date | commit |",
                "|---|---|---|---|---|---|---|",
            ]
            for row in of_command:
                where = f"{row.origin.machine} | {row.origin.date} | {row.origin.commit}"
                lines.append(f"| {row.metric} | {_value(row)} | {_baseline(row)} | {_aim(row)} | {where} |")
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main(arguments: Sequence[str]) -> int:
    """Write RESULTS.md from the files named; 3 where one of them holds something else."""
    paths = sorted(Path(argument) for argument in arguments) or sorted(ROWS.glob("*.jsonl"))
    try:
        text = table(read_rows(paths))
    except BadRowError as error:
        print(error, file=sys.stderr)
        return 3
    temporary = RESULTS_MD.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf8")
    os.replace(temporary, RESULTS_MD)
    print(f"{RESULTS_MD}: {text.count(chr(10))} lines of {len(paths)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
