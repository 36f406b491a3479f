"""Rows of pipeline runs beside their oracles: lanes, one of whose members dies in one row, against data peers that do the same
undivided, in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from protocol.pipeline.schedule import SCHEDULES
from tests.benchmarks.results import Row
from tests.peer.lane_world import (
    LaneWorld,
    lane_config,
    run_data_peers,
    run_lanes,
)

BENCH: Final = "pipeline"


def no_more_than(metric: str, values: list[float], limit: float, unit: str, settings: dict[str, object]) -> Row:
    """The worst of some figures that are to stay below a limit."""
    worst = max(values)
    spread = {"best": min(values), "worst": worst}
    return Row(BENCH, metric, worst, unit, None, None, f"<= {limit:g}", worst <= limit, len(values), spread, settings)


def no_less_than(metric: str, values: list[float], limit: float, settings: dict[str, object]) -> Row:
    """The worst of some shares that are to reach a limit."""
    worst = min(values)
    spread = {"best": max(values), "worst": worst}
    return Row(
        BENCH, metric, worst, "share", None, None, f">= {limit:g}", worst >= limit, len(values), spread, settings
    )


def lane_rows(rounds: int) -> list[Row]:
    """Two lanes of three stages against two data peers, H = 5; and with a member that dies in mid-backward."""
    expected_N = run_data_peers(2, rounds, 5)
    off, off_killed = [], []
    for schedule in SCHEDULES:
        config = lane_config(schedule=schedule)
        whole_N = run_lanes([LaneWorld(0, config), LaneWorld(1, config)], rounds)
        killed = LaneWorld(0, config, spares=1)
        killed.kill_when = partial(_dies, killed)
        killed_N = run_lanes([killed, LaneWorld(1, config)], rounds)
        off.append(float((whole_N - expected_N).abs().max()))
        off_killed.append(float((killed_N - expected_N).abs().max()))
    settings: dict[str, object] = {"stages": 3, "inner_steps": 5, "rounds": rounds, "dtype": "float64"}
    return [
        no_more_than("lanes: 2 x 3 stages against 2 data peers", off, 1e-10, "largest difference", settings),
        no_more_than("... one member killed in mid-backward, a spare", off_killed, 1e-10, "largest difference", settings),
    ]  # fmt: skip


def _dies(world: LaneWorld, stage: int, order: object) -> bool:
    return stage == 1 and world.num_killed == 0 and "is_backward=True" in str(order) and "step=3" in str(order)


def oracle_rows(*, is_quick: bool) -> Iterator[list[Row]]:
    """All of them."""
    yield lane_rows(1 if is_quick else 2)
