"""A stage on two cards as real processes: the end of one is the end of both, and the lane goes on from its snapshot as if nothing
had been.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import structlog
import torch
import trio

from peer.pipeline.stage.process_work import ProcessWork
from peer.pipeline.stage.stage_channel import StageReply
from peer.pipeline.stage.stage_process import StageProcess, StageProcessDied, open_stage_process
from peer.training import training_process
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.layout import Mesh, World
from peer.training.plan.plan_core import plan_words
from peer.training.worker_channel import Area
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.tensors.stage_schema import stage_schema
from tests.contract.rank_doom import DOOM_VARIABLE, How, RankDoom
from tests.contract.rank_doom import Point as DoomPoint
from tests.forked import open_forked
from tests.peer.whole_snapshot import decode_snapshot
from tests.peer.worker_world import PIPELINE, Asker, anchor, stage_plan, stage_worker

WITHIN_S = 500.0
"""A busy machine gives little of its time. How fast processes are back is not judged here."""


class _Unheard:
    """Reports of the process, for nobody."""

    def stepped(self, reply: StageReply) -> None:
        """As StageListener."""

    def passed(self, at: Point, work: Pass, reply: StageReply) -> None:
        """As StageListener."""

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """As StageListener."""


@pytest.fixture(scope="module")
def doom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that dooms; ranks are forked off one process."""
    file = tmp_path_factory.mktemp("doom") / "doom"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DOOM_VARIABLE, str(file))
        with open_forked("tests.contract.doomed_stage", "peer.training.ranks.ranked_replica") as forked:
            patch.setattr(training_process, "start_worker", forked.start_worker)
            yield file


@dataclass
class Lane:
    """A lane of two stages: the first on one card in this process, the last one on two cards."""

    first: Asker
    process: StageProcess
    folder: Path
    work: ProcessWork

    async def open(self) -> None:
        """Both stages at the anchor, the last one with the process that is there now."""
        while not self.process.is_ready:
            await trio.sleep(0.01)
        plan = stage_plan(self.folder, 1)
        self.work = ProcessWork(self.process, 7, lambda: (anchor(plan), 0), _Unheard())
        await self.work.open()

    async def step(self, number: int) -> None:
        """An inner step. Raises as the process's orders."""
        at, there = Point(0, number), {"step": number}
        for batch in range(PIPELINE.micro_batches):
            message = self.first.ask("run_pass", **there, micro_batch=batch)[1]
            await self.work.arrived(message, 0, at, Pass(batch, False))
            await self.work.run_pass(0, at, Pass(batch, False))
            gradient = await self.work.run_pass(0, at, Pass(batch, True))
            assert gradient is not None
            back = {**there, "micro_batch": batch, "is_backward": True}
            self.first.ask("arrived", gradient, **back)
            self.first.ask("run_pass", **back)
        square = float.fromhex(self.first.ask("square")[0].square) + await self.work.square()
        self.first.ask("take_step", **there, whole_square=square.hex())
        assert await self.work.take_step(at, square)

    async def step_to_snapshot(self, number: int) -> tuple[bytes, bytes]:
        """An inner step, and the snapshots after it."""
        await self.step(number)
        return await self.snapshots()

    async def snapshots(self) -> tuple[bytes, bytes]:
        """Of both stages."""
        return self.first.snapshot(), await (await self.work.snapshot())()

    async def go_back(self, snapshots: tuple[bytes, bytes]) -> None:
        """Both stages continue from here."""
        self.first.restore(snapshots[0])
        await self.work.restore(snapshots[1])


@contextmanager
def _first(folder: Path) -> Iterator[Asker]:
    with stage_worker(stage_plan(folder, 0)) as asker:
        asker.vectors.write(Area.IN, anchor(stage_plan(folder, 0)))
        asker.ask("open", lane=7)
        yield asker


@asynccontextmanager
async def _lane(folder: Path, mesh: Mesh) -> AsyncIterator[Lane]:
    plan = stage_plan(folder, 1, mesh=mesh)
    with trio.fail_after(WITHIN_S), _first(folder) as first:
        async with open_stage_process(
            plan, devices=("cpu", "cpu"), without=lambda left: World(devices=left)
        ) as process:
            lane = Lane(first, process, folder, ProcessWork(process, 7, lambda: (anchor(plan), 0), _Unheard()))
            await lane.open()
            yield lane


TWO, IN_ROWS = Mesh(copies=2), Mesh(shard=2)
_ENDS: list[tuple[int, DoomPoint, How]] = [
    (1, "backward", "kill"),
    (0, "optimizer", "freeze"),
    (1, "step", "freeze"),
    (0, "step", "kill"),
]
_ENDS_IN_ROWS: list[tuple[int, DoomPoint, How]] = [*_ENDS[:2], (1, "snapshot", "kill")]


@pytest.mark.parametrize(
    ("mesh", "ends"), [(TWO, _ENDS), (IN_ROWS, _ENDS_IN_ROWS)], ids=["each has all of it", "each has rows of it"]
)
async def test_a_lane_goes_on_as_if_nothing_had_been_when_a_card_of_a_stage_ends_at_any_point(
    tmp_path: Path, doom: Path, mesh: Mesh, ends: list[tuple[int, DoomPoint, How]]
) -> None:
    async with _lane(tmp_path, mesh) as lane:
        await lane.step(0)
        kept = await lane.snapshots()
        undisturbed = await lane.step_to_snapshot(1)
        for lives, (rank, point, how) in enumerate(ends, start=1):
            await lane.go_back(kept)
            pids = lane.process.pids
            RankDoom(rank, point, how).announce(doom)
            with pytest.raises(StageProcessDied):
                await lane.step_to_snapshot(1)
            while lane.process.restarts < lives:
                await trio.sleep(0.01)
            assert not any(map(psutil.pid_exists, pids)), "both are gone before a new life begins"
            await lane.open()
            await lane.go_back(kept)
            assert await lane.step_to_snapshot(1) == undisturbed


@pytest.mark.parametrize("mesh", [TWO, IN_ROWS], ids=["each has all of it", "each has rows of it"])
async def test_cards_that_are_back_hold_the_stage_from_the_end_of_a_round_on_and_the_lane_does_not_see_it(
    tmp_path: Path, doom: Path, mesh: Mesh
) -> None:
    plan, both = stage_plan(tmp_path, 1), World(devices=("cpu", "cpu"), mesh=mesh)
    schema = stage_schema(plan.stages, 1)
    with trio.fail_after(WITHIN_S), _first(tmp_path) as first:
        async with open_stage_process(plan) as process:
            lane = Lane(first, process, tmp_path, ProcessWork(process, 7, lambda: (anchor(plan), 0), _Unheard()))
            await lane.open()
            process.regroup(both, now=False)
            _, before = await lane.step_to_snapshot(0)
            assert len(process.pids) == 1, "the round is not over"
            share_N = await lane.work.theta()
            await lane.work.adopt(share_N * 0.5)
            after = await (await lane.work.snapshot())()
            assert len(process.pids) == 2
            own, others = decode_snapshot(before, schema), decode_snapshot(after, schema)
            assert torch.equal(others.theta_N, share_N * 0.5)
            assert all(torch.equal(one, other) for one, other in zip(own.moments, others.moments, strict=True))
            await lane.step(1)
            process.regroup(World(devices=("cpu",)), now=True)
            while process.restarts < 2:
                await trio.sleep(0.01)
            with pytest.raises(StageProcessDied):
                await lane.step(2)
            assert len(process.pids) == 1, "a peer without a seat waits for no round"


_FULL: list[tuple[int, DoomPoint]] = [(1, "backward"), (0, "optimizer"), (1, "snapshot")]


@pytest.mark.parametrize(
    ("mesh", "ends"), [(TWO, _FULL[:1]), (IN_ROWS, _FULL)], ids=["each has all of it", "each has rows of it"]
)
async def test_memory_that_runs_out_on_one_card_at_any_point_moves_both_to_the_next_plan_and_the_lane_goes_on(
    tmp_path: Path, doom: Path, mesh: Mesh, ends: list[tuple[int, DoomPoint]]
) -> None:
    schema, plans = stage_schema(stage_plan(tmp_path, 1).stages, 1), list[CardPlan]()
    with structlog.testing.capture_logs() as logs:
        async with _lane(tmp_path, mesh) as lane:
            await lane.step(0)
            kept = await lane.snapshots()
            _, undisturbed = await lane.step_to_snapshot(1)
            for lives, (rank, point) in enumerate(ends, start=1):
                await lane.go_back(kept)
                RankDoom(rank, point, "memory").announce(doom)
                with pytest.raises(StageProcessDied):
                    await lane.step_to_snapshot(1)
                while lane.process.restarts < lives:
                    await trio.sleep(0.01)
                await lane.open()
                await lane.go_back(kept)
                _, again = await lane.step_to_snapshot(1)
                own, others = decode_snapshot(undisturbed, schema), decode_snapshot(again, schema)
                torch.testing.assert_close(others.theta_N, own.theta_N, rtol=1e-5, atol=1e-7)
                states = lane.process.cards(100.0, 1000)
                (found,) = {state.report.plan for state in states if state.report is not None}
                plans.append(found)
    lowest = ("full", "none")  # values that lie in the machine's memory already are not moved there
    assert [(plan.checkpointing, plan.offload) for plan in plans] == [("selective", "none"), lowest, lowest][
        : len(ends)
    ]
    reasons = [line["reason"] for line in logs if line["event"] == "stage_process_died"]
    goes_on = zip(ends, plans, strict=True)
    assert reasons == [f"card {rank}: out of memory; going on with {plan_words(plan)}" for (rank, _), plan in goes_on]
    assert [(state.rank, state.tokens_per_s) for state in states] == [(0, 50.0), (1, 50.0)]
