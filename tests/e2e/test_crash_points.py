"""The coordinator may be killed at any SQL statement and any file operation."""

from __future__ import annotations

from pathlib import Path

from tests.coordinator.crash_points import kill_everywhere

AT_LEAST_POINTS = 40
EVERY = 11
"""All of them take two minutes; the benchmark of recovery goes to each."""


def test_coordinator_killed_at_any_statement_or_file_operation_starts_again_before_or_after(tmp_path: Path) -> None:
    results = kill_everywhere(tmp_path, EVERY)
    assert [problem for result in results for problem in result.problems] == []
    assert all(result.before + result.after == result.points for result in results)
    assert all(result.points > 0 for result in results)
    assert sum(result.points for result in results) >= AT_LEAST_POINTS
