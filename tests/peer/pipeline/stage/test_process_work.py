"""A seat's computation in its process: a snapshot is written beside the next passes. A thread is in the process's place."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import trio
import trio.testing

from peer.pipeline.stage import stage_trainer
from peer.pipeline.stage.process_work import ProcessWork
from peer.pipeline.stage.stage_channel import StageReply
from peer.pipeline.stage.stage_process import StageProcess, StageProcessDied, open_stage_process
from peer.pipeline.stage.stage_snapshot import Written
from peer.training import training_process
from peer.training.plan.layout import World
from peer.training.replica.bridge import Bridge
from protocol.errors import LocalProtocolError
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from tests.peer.worker_world import ENDS_WITHIN_S, Starts, anchor, stage_plan

START = Point(0, 0)


class _Unheard:
    """Reports of the process, for nobody."""

    def stepped(self, reply: StageReply) -> None:
        """As StageListener."""

    def passed(self, at: Point, work: Pass, reply: StageReply) -> None:
        """As StageListener."""

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """As StageListener."""


class Writer:
    """Holds the threads that write snapshots, or has them fail."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.failure: Exception | None = None

    def bridge(self, device: torch.device) -> Bridge:
        """As on a card: beside training."""
        writer = self

        class Held(Bridge):
            def _write(self, *given: Any) -> None:
                assert writer.may_write.wait(ENDS_WITHIN_S)
                if writer.failure is not None:
                    raise writer.failure
                super()._write(*given)

        return Held(device, is_beside=True)


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    found = Writer()
    monkeypatch.setattr(training_process, "start_worker", Starts())
    monkeypatch.setattr(stage_trainer, "Bridge", found.bridge)
    return found


async def _seat(process: StageProcess, folder: Path, restarts: int = 0) -> ProcessWork:
    with trio.fail_after(ENDS_WITHIN_S):
        while not process.is_ready or process.restarts < restarts:
            await trio.sleep(0.01)
    work = ProcessWork(process, 7, lambda: (anchor(stage_plan(folder, 0)), 0), _Unheard())
    await work.open()
    return work


async def test_a_pass_is_answered_while_a_snapshot_is_written_which_is_that_of_its_step_boundary(
    tmp_path: Path, writer: Writer
) -> None:
    plan, found = stage_plan(tmp_path, 0), list[bytes]()

    async def wait(written: Written) -> None:
        found.append(await written())

    async with open_stage_process(plan) as process:
        work = await _seat(process, tmp_path)
        before = await (await work.snapshot())()
        writer.may_write.clear()
        written = await work.snapshot()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, written)
            assert await work.run_pass(0, START, Pass(0, False))
            await work.adopt(torch.zeros_like(anchor(plan)))
            assert not (await work.theta()).any()
            assert not found
            writer.may_write.set()
        assert found == [before]
        assert await (await work.snapshot())() != before
        await work.restore(before)
        assert await (await work.snapshot())() == before


async def test_a_process_that_dies_while_a_snapshot_is_written_has_lost_that_one_only(
    tmp_path: Path, writer: Writer
) -> None:
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        work = await _seat(process, tmp_path)
        before = await (await work.snapshot())()
        await work.adopt(torch.ones_like(anchor(stage_plan(tmp_path, 0))))
        writer.may_write.clear()
        written = await work.snapshot()

        async def lose() -> None:
            with pytest.raises(StageProcessDied):
                await written()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            await work.run_pass(0, START, Pass(0, False))
            process.kill()
        writer.may_write.set()
        work = await _seat(process, tmp_path, restarts=1)
        with pytest.raises(StageProcessDied):
            await written()
        await work.restore(before)
        assert await (await work.snapshot())() == before


@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_lane_that_goes_back_before_or_amid_the_commit_while_other_cards_take_the_stage_over_continues_on_them(
    tmp_path: Path, writer: Writer, is_committed: bool
) -> None:
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        work = await _seat(process, tmp_path)
        before, anchor_N = await (await work.snapshot())(), torch.ones_like(anchor(stage_plan(tmp_path, 0)))
        await work.adopt(anchor_N)
        process.regroup(World(devices=("cpu",)), now=False)
        await work.theta()
        async with trio.open_nursery() as nursery:
            if is_committed:
                nursery.start_soon(work.adopt, anchor_N)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        with trio.fail_after(ENDS_WITHIN_S):
            await work.restore(before)
        assert process.restarts == 1
        assert await (await work.snapshot())() == before
        assert await work.run_pass(0, START, Pass(0, False))


async def test_a_seat_waits_for_processes_on_other_cards_also_if_the_system_cannot_start_them_at_once(
    tmp_path: Path, writer: Writer
) -> None:
    starts = cast("Starts", training_process.start_worker)
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        work = await _seat(process, tmp_path)
        starts.refusals = 1
        process.regroup(World(devices=("cpu",)), now=False)
        theta_N = await work.theta()
        with trio.fail_after(ENDS_WITHIN_S):
            await work.adopt(theta_N)
        assert starts.refusals == 0
        assert torch.equal(await work.theta(), theta_N)


async def test_a_snapshot_that_cannot_be_written_is_lost_with_the_reason(tmp_path: Path, writer: Writer) -> None:
    writer.failure = RuntimeError("the card does not answer")
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        work = await _seat(process, tmp_path)
        with pytest.raises(LocalProtocolError, match="was not written: the card does not answer"):
            await (await work.snapshot())()
