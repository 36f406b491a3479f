"""Rows of pipeline runs beside their oracles: whole peers of synced steps, and lanes, against those who do the same undivided.

Synced steps are those of whole peers on the network in memory, in virtual time: owner, replicas, streams, sums and rounds as in a run,
with a replica that is killed, and replies that are dropped. A ledger beside them knows which micro-batches each sum holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch
import trio
import trio.testing

from averaging.codecs.boundary import BoundaryCodec
from peer.models.decoder import Decoder
from protocol.ids import PeerId
from protocol.pipeline.schedule import SCHEDULES, Pass
from protocol.pipeline.stage_machine import LaneConfig, Point
from tests.benchmarks.results import Row
from tests.peer.lane_world import (
    INNER,
    MICRO_BATCH_TOKENS,
    LaneWorld,
    crossed_model,
    lane_config,
    run_data_peers,
    run_lanes,
)
from tests.peer.stage_world import whole_model
from tests.peer.synced_swarm import OWNER, SyncedSwarm, open_synced

BENCH: Final = "pipeline"
MICRO_BATCHES: Final = 4
"""Of a step; a power of two, since the stages divide by it after the codec and the oracle before."""

SYNCED_INNER: Final = INNER.model_copy(update={"learning_rate": 0.001})
"""The rate of most runs: AdamW makes steps of its whole size of gradients that are rounding errors, the larger the farther apart."""

REPLIES_LOST: Final = 0.2


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


@dataclass(frozen=True)
class Setting:
    """One way to disturb synced steps.

    Attributes:
        killed: stages of which one replica dies in mid-backward, in a trial each; None for nobody.
        limit: of the largest difference to one process.
    """

    name: str
    killed: tuple[int | None, ...]
    replies_lost: float
    codec: BoundaryCodec
    dtype: torch.dtype
    limit: float


_DISTURBED: Final[tuple[tuple[str, tuple[int | None, ...], float, tuple[BoundaryCodec, ...]], ...]] = (
    ("synced: 3 stages x 2 replicas, one killed in mid-backward", (0, 1, 2), 0.0, ("fp64", "fp32")),
    ("synced: 20% of replies dropped after the work was done", (None, None, None), REPLIES_LOST, ("fp64", "fp32")),
    ("synced: int8 between stages, one killed", (0, 1, 2), 0.0, ("int8",)),
)
SETTINGS: Final = tuple(
    Setting(f"{name}, {str(dtype).removeprefix('torch.')}", killed, lost, codec, dtype, limit)
    for name, killed, lost, codecs in _DISTURBED
    for codec, dtype, limit in zip(
        codecs, (torch.float64, torch.float32), (1e-5 if "int8" in codecs else 1e-10, 1e-5), strict=False
    )
)


@dataclass(frozen=True)
class Trial:
    """What came of synced steps."""

    theta_N: torch.Tensor
    lost: int
    twice: int
    killed: int
    dropped: int


def synced_rows(steps: int) -> Iterator[list[Row]]:
    """So many synced steps as one round of whole peers, against one process with the same batches."""
    config = replace(
        lane_config(inner_steps=steps, suspect_after_s=4.0),
        num_micro_batches=MICRO_BATCHES,
        step_tokens=MICRO_BATCHES * MICRO_BATCH_TOKENS,
    )
    for setting in SETTINGS:
        yield _synced(setting, config)


def _synced(setting: Setting, config: LaneConfig) -> list[Row]:
    models = partial(_whole, setting)
    expected_N = run_data_peers(
        1, 1, config.inner_steps, models=models, micro_batches=MICRO_BATCHES, inner=SYNCED_INNER
    )
    trials = [_trial(setting, config, stage, seed) for seed, stage in enumerate(setting.killed)]
    settings: dict[str, object] = {
        "steps": config.inner_steps,
        "micro_batches": MICRO_BATCHES,
        "codec": setting.codec,
        "killed": [trial.killed for trial in trials],
        "replies_dropped": [trial.dropped for trial in trials],
    }
    off = [float((trial.theta_N - expected_N).abs().max()) for trial in trials]
    figures = (
        ("", off, setting.limit, "largest difference"),
        (": lost", [float(trial.lost) for trial in trials], 0.0, "micro-batches"),
        (": counted twice", [float(trial.twice) for trial in trials], 0.0, "micro-batches"),
    )
    return [no_more_than(setting.name + what, found, limit, unit, settings) for what, found, limit, unit in figures]


def _whole(setting: Setting) -> Decoder:
    if setting.codec == "int8":
        return crossed_model("int8", "int8", setting.dtype)
    return whole_model(setting.dtype)


def _trial(setting: Setting, config: LaneConfig, stage: int | None, seed: int) -> Trial:
    found: list[Trial] = []
    draw, dropped = random.Random(seed), [0]

    def comes(_reply: object) -> int:
        is_lost = draw.random() < setting.replies_lost
        dropped[0] += is_lost
        return int(not is_lost)

    async def run() -> None:
        codecs = (setting.codec, setting.codec)
        async with open_synced(config, codecs=codecs, dtype=setting.dtype, inner=SYNCED_INNER, seed=seed) as world:
            world.comes = comes
            if stage is not None:
                world.about = _kill_at(world, stage, config.inner_steps // 2)
            theta_N = await world.rounds.anchor(0)
            ledger = world.ledger
            removed = sum(len(commit.removed) for commit in world.owner.commits)
            found.append(Trial(theta_N, len(ledger.lost) + removed, len(ledger.twice), len(world.killed), dropped[0]))

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.0))
    return found[0]


def _kill_at(world: SyncedSwarm, stage: int, step: int) -> Callable[[PeerId, int, Point, Pass], None]:
    """The first replica of the stage, not the owner, that is about to go backward in this step."""

    def about(peer: PeerId, place: int, at: Point, work: Pass) -> None:
        is_it = (place, at, work.is_backward) == (stage, Point(0, step), True)
        if is_it and peer != OWNER and not world.killed:
            world.kill(peer)

    return about


def oracle_rows(*, is_quick: bool) -> Iterator[list[Row]]:
    """All of them."""
    yield lane_rows(1 if is_quick else 2)
    yield from synced_rows(4 if is_quick else 20)
