"""Measures of other parameters in the real training process, and its death while they are copied."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import trio

from averaging.arithmetic.genesis import genesis_anchor
from peer.training import training_process
from peer.training.trainer import WorkerTrainer, open_worker_trainer
from protocol.tensors.model_config import model_schema
from tests.anchors import reads
from tests.forked import Forked, open_forked
from tests.peer.training_world import MODEL, training_plan

WITHIN_S = 300.0


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    with open_forked("peer.worker") as forked:
        yield forked


@pytest.fixture(autouse=True)
def _started_by_a_fork(forked: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_process, "start_worker", forked.start_worker)


async def _process_died(trainer: WorkerTrainer) -> None:
    restarts, pid = trainer.progress().restarts, trainer.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while trainer.progress().restarts == restarts:
        await trio.sleep(0.01)


async def _until_ready(trainer: WorkerTrainer) -> None:
    while trainer.progress().state not in ("training", "paused"):
        await trio.sleep(0.01)


@pytest.mark.parametrize("is_back_at_the_end", [False, True])
async def test_a_process_that_dies_while_an_evaluation_is_copied_comes_back_at_the_anchor_and_measures_what_was_copied(
    tmp_path: Path, is_back_at_the_end: bool
) -> None:
    plan = training_plan(tmp_path, num_fragments=1, is_paused=True)
    units = plan.units
    anchor_N = torch.cat([genesis_anchor(schema, 1) for schema in units.schemas])
    anchors = [anchor_N[begin:stop] for begin, stop in units.spans]
    measured = [values_n * 0.5 for values_n in anchors]
    async with open_worker_trainer(plan, anchor_N) as trainer:
        with trio.fail_after(WITHIN_S):
            (expected,) = (await trainer.evaluate(reads(*measured))).nats
            await trainer.snapshot(unit=1)  # one unit's values then lie in a second place

            async def read(rooms: Sequence[torch.Tensor]) -> None:
                for room_n, values_n in zip(rooms, measured, strict=True):
                    half = len(values_n) // 2
                    room_n[:half] = values_n[:half]
                await _process_died(trainer)
                if is_back_at_the_end:
                    await _until_ready(trainer)
                for room_n, values_n in zip(rooms, measured, strict=True):
                    half = len(values_n) // 2
                    room_n[half:] = values_n[half:]

            assert (await trainer.evaluate(read)).nats == (expected,)
            await _until_ready(trainer)
            for unit, values_n in enumerate(anchors):
                assert torch.equal((await trainer.snapshot(unit=unit)).theta_N, values_n), "it begins at the anchor"
