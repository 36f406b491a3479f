"""RESULTS.md is what its rows make, and a row that cannot be shown is named with what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.results import Row, write_rows
from tests.benchmarks.table import RESULTS_MD, ROWS, BadRowError, read_rows, table

ORIGIN = {
    "date": "2026-11-28",
    "commit": "87da790",
    "machine": "2 cores",
    "command": "python -m tests.benchmarks.recovery",
}


def _file(folder: Path, *rows: dict[str, object]) -> Path:
    path = folder / "recovery.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")
    return path


def _row(value: float | None = 2.0, **more: object) -> dict[str, object]:
    return {"bench": "recovery", "metric": "until all train", "value": value, "unit": "s", "origin": ORIGIN, **more}


def test_results_are_those_of_the_rows_on_file() -> None:
    expected = table(read_rows(sorted(ROWS.glob("*.jsonl"))))
    made_by = "run `python -m tests.benchmarks.table tests/benchmarks/results/*.jsonl`"
    assert RESULTS_MD.read_text(encoding="utf8") == expected, f"RESULTS.md is not current; {made_by}"


def test_a_row_of_a_benchmark_is_shown_once_it_has_an_origin(tmp_path: Path) -> None:
    row = Row(
        "recovery", "until all train", 2.0, "s", 4.0, 0.5, "<= 3", True, 3, {"best": 1.0, "worst": 2.5}, {"peers": 4}
    )
    write_rows([row], tmp_path / "rows.jsonl")
    (line,) = (tmp_path / "rows.jsonl").read_text().splitlines()
    shown = table(read_rows([_file(tmp_path, {**json.loads(line), "origin": ORIGIN})]))
    assert "## recovery\n\n`python -m tests.benchmarks.recovery`\n\n| what |" in shown
    cells = "until all train | 2 s (1 to 2.5) | 4, ratio 0.50 | <= 3: met | 2 cores | 2026-11-28 | 87da790"
    assert f"| {cells} |" in shown


def test_of_two_rows_about_the_same_the_newest_is_shown(tmp_path: Path) -> None:
    older = _row(9.0, origin={**ORIGIN, "date": "2026-11-20"})
    shown = table(read_rows([_file(tmp_path, _row(2.0), older)]))
    assert "| 2 s |" in shown
    assert "| 9 s |" not in shown


def test_rows_of_two_machines_stand_beside_one_another(tmp_path: Path) -> None:
    other = _row(9.0, origin={**ORIGIN, "machine": "16 cores"})
    shown = table(read_rows([_file(tmp_path, _row(2.0), other)]))
    assert "| 2 s |" in shown
    assert "| 9 s |" in shown


def test_a_range_without_a_median_is_shown_as_a_range(tmp_path: Path) -> None:
    shown = table(read_rows([_file(tmp_path, _row(None, spread={"best": 0.87, "worst": 0.81}, unit="share"))]))
    assert "| 0.81 to 0.87 |" in shown


@pytest.mark.parametrize(
    "bad",
    [
        {key: value for key, value in _row().items() if key != "origin"},
        _row(origin={**ORIGIN, "date": "2026-13-40"}),
        _row(origin={**ORIGIN, "commit": "main"}),
        _row(speed=3),
    ],
)
def test_a_row_that_cannot_be_shown_is_named_by_its_line(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(BadRowError, match=r"recovery\.jsonl, line 2: .*\n"):
        read_rows([_file(tmp_path, _row(), bad)])


def test_a_file_of_rows_that_is_no_text_or_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recovery.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadRowError, match=r"recovery\.jsonl, line 1: "):
        read_rows([path])
    path.unlink()
    with pytest.raises(BadRowError, match=r"recovery\.jsonl cannot be read: .*\n.*name another"):
        read_rows([path])
