"""The coordinator killed at each SQL statement and file operation: the state before or the state after, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.recovery_swarm import BENCH
from tests.benchmarks.results import Row, always, at_most
from tests.coordinator.crash_points import StoryResult


def rows(results: Sequence[StoryResult], settings: dict[str, object]) -> list[Row]:
    """The share of points that left the state before or after, and how long a start on what a kill left takes."""
    reported = {
        **settings,
        "points": {result.name: result.points for result in results},
        "problems": [f"{result.name}: {problem}" for result in results for problem in result.problems],
    }
    fine = [
        number < result.before + result.after and not result.problems
        for result in results
        for number in range(result.points)
    ]
    metric = "coordinator killed at a point of its writing"
    return [
        always(BENCH, f"{metric}: the state before or after", fine, reported),
        at_most(
            BENCH, f"{metric}: slowest start, imports apart", [r.slowest_restart_s for r in results], 5.0, settings
        ),
    ]
