"""The worlds in which the contract of Trainer is checked: one worker process with a tiny model, two that share one replica, two
islands, and the simulated trainer.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest
import torch
import trio
from trio.testing import MockClock

from averaging.arithmetic.genesis import genesis_anchor
from averaging.network.seams.clocks import Timers
from averaging.network.seams.interfaces import Snapshot, Trainer
from peer.training import training_process
from peer.training.islands import island_trainer
from peer.training.islands.island import Island, Offer
from peer.training.islands.island_group import IslandGroup
from peer.training.islands.island_trainer import IslandTrainer, mean_and_ways
from peer.training.islands.open_trainer import plan_of_world
from peer.training.plan.layout import Layout, Mesh, World
from peer.training.trainer import WorkerTrainer, open_worker_trainer
from peer.training.training_plan import TrainingPlan
from peer.training.unit_trainer import UnitTrainer
from protocol.tensors.model_config import model_schema
from tests.forked import open_forked
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan
from tests.simulation.trainer import STEP_TOKENS, SimulatedTrainer
from tests.simulation.virtual_time import Process

WITHIN_S = 500.0
"""A worker gives way to everything else on the machine; on a busy one its steps are slow."""
SIMULATED_ELEMENTS = 48
SIMULATED_TOKENS_PER_S = 1000.0


class TrainerWorld(Protocol):
    """A trainer that has just loaded `anchor_N` and trains."""

    trainer: Trainer
    anchor_N: torch.Tensor
    step_tokens: int
    num_islands: int
    rounding: float
    """By how much theta may differ from what it should be."""

    def position(self, snapshot: Snapshot) -> int:
        """Local steps that were taken, by all islands, until this snapshot of this trainer."""
        ...

    def still(self) -> AbstractAsyncContextManager[None]:
        """No more training here than the snapshots of this form themselves wait for."""
        ...

    async def moved(self, first_step: int, stop_step: int) -> torch.Tensor:
        """By how much training moved theta in these steps, while `still`; asked last, for it may take time."""
        ...

    async def lose_work(self) -> None:
        """The worker dies and is back at the anchor when this returns."""
        ...


Check = Callable[[TrainerWorld], Awaitable[None]]


class OneTrainer:
    """A trainer with one replica, whose data position counts its steps."""

    num_islands = 1
    rounding = 0.0

    def position(self, snapshot: Snapshot) -> int:
        return snapshot.next_step


class SimulatedWorld(OneTrainer):
    step_tokens = STEP_TOKENS

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._trainer = self._new_trainer(first_step=7)
        self.trainer: Trainer = self._trainer
        self.anchor_N = torch.linspace(-1.0, 1.0, SIMULATED_ELEMENTS)

    def _new_trainer(self, first_step: int) -> SimulatedTrainer:
        return SimulatedTrainer(SIMULATED_ELEMENTS, SIMULATED_TOKENS_PER_S, first_step, Process(), self._timers)

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Virtual time, and with it training, moves only where a check waits."""
        yield

    async def moved(self, first_step: int, stop_step: int) -> torch.Tensor:
        """The shift that a second trainer makes in the one step for which a snapshot waits, from zero and so without any rounding."""
        assert stop_step == first_step + 1
        twin = self._new_trainer(first_step)
        snapshot = await twin.snapshot()
        assert snapshot.next_step == stop_step
        return snapshot.theta_N

    async def lose_work(self) -> None:
        self._trainer.lose_work()


class WorkerWorld(OneTrainer):
    step_tokens = BATCH_TOKENS

    def __init__(self, trainer: WorkerTrainer, anchor_N: torch.Tensor) -> None:
        self._trainer = trainer
        self.trainer: Trainer = UnitTrainer(trainer, 0)
        self.anchor_N = anchor_N

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        await self._trainer.pause()
        yield
        await self._trainer.resume()

    async def moved(self, first_step: int, stop_step: int) -> torch.Tensor:
        assert stop_step == first_step
        return torch.zeros_like(self.anchor_N)

    async def lose_work(self) -> None:
        restarts = self._trainer.progress().restarts
        os.kill(self._trainer.worker_pids[-1], signal.SIGKILL)
        while self._trainer.progress().restarts == restarts or self._trainer.progress().state == "restarting":
            await trio.sleep(0.02)

    async def renew(self) -> None:
        """After any earlier check: at the anchor, and training."""
        await self._trainer.set_anchor(self.anchor_N)
        await self._trainer.resume()

    async def rest(self) -> None:
        """Until the next check: the checks of other worlds need the processor."""
        await self._trainer.pause()


class CountedIslands(UnitTrainer):
    """Remembers how many steps the islands had taken at each snapshot."""

    def __init__(self, trainer: IslandTrainer, plans: Sequence[TrainingPlan]) -> None:
        super().__init__(trainer, 0)
        self._plans = plans
        self._told: list[int] = []
        self._taken: list[tuple[Snapshot, int]] = []

    def tell(self, offers: Sequence[Offer]) -> torch.Tensor:
        """In the place of `mean_and_ways`."""
        self._told = [offer.next_step for offer in offers]
        return mean_and_ways(offers)

    async def snapshot(self) -> Snapshot:
        taken = await super().snapshot()
        steps = [(told - plan.first_step) // plan.stride for told, plan in zip(self._told, self._plans, strict=True)]
        self._taken.append((taken, sum(steps)))
        return taken

    def steps_at(self, snapshot: Snapshot) -> int:
        (steps,) = [steps for taken, steps in self._taken if taken is snapshot]
        return steps


class IslandsWorld:
    step_tokens = BATCH_TOKENS
    num_islands = 2
    rounding = 1e-6
    """Each island moves to the mean by a sum in float32."""

    def __init__(self, trainer: IslandTrainer, islands: Sequence[Island], counted: CountedIslands) -> None:
        self._trainer, self._islands, self._counted = trainer, islands, counted
        self.trainer: Trainer = counted
        self.anchor_N = genesis_anchor(model_schema(MODEL), 1)

    def position(self, snapshot: Snapshot) -> int:
        return self._counted.steps_at(snapshot)

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        await self._trainer.pause()
        yield
        await self._trainer.resume()

    async def moved(self, first_step: int, stop_step: int) -> torch.Tensor:
        assert stop_step == first_step
        return torch.zeros_like(self.anchor_N)

    async def lose_work(self) -> None:
        restarts = self._trainer.progress().restarts
        for island in self._islands:
            assert island.worker_pid is not None
            os.kill(island.worker_pid, signal.SIGKILL)
        while self._trainer.progress().restarts < restarts + self.num_islands:
            await trio.sleep(0.02)
        for island in self._islands:
            await island.until_ready()

    async def renew(self) -> None:
        """After any earlier check: at the anchor, and training."""
        await self._trainer.set_anchor(self.anchor_N)
        await self._trainer.resume()

    async def rest(self) -> None:
        """Until the next check: the checks of other worlds need the processor."""
        await self._trainer.pause()


async def _checked(check: Check, world: TrainerWorld) -> None:
    with trio.fail_after(WITHIN_S):
        if isinstance(world, WorkerWorld | IslandsWorld):
            await world.renew()
        await world.trainer.load(world.anchor_N, schedule_tokens=0)
        await check(world)
        if isinstance(world, WorkerWorld | IslandsWorld):
            await world.rest()


def run_simulated(check: Check) -> None:
    """Run a check in a fresh simulated world, in virtual time of this thread alone: the real world's goes on beside it."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await _checked(check, SimulatedWorld(Timers(nursery)))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


@asynccontextmanager
async def _worker_world(folder: Path, num_ranks: int) -> AsyncIterator[TrainerWorld]:
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    plan = training_plan(folder, mesh=Mesh(shard=num_ranks))
    async with open_worker_trainer(plan, anchor_N, devices=("cpu",) * num_ranks) as trainer:
        yield WorkerWorld(trainer, anchor_N)


@asynccontextmanager
async def _islands_world(folder: Path) -> AsyncIterator[TrainerWorld]:
    layout = Layout(worlds=(World(devices=("cpu",)), World(devices=("cpu",))))
    plans = [plan_of_world(training_plan(folder), layout, number) for number in range(2)]
    islands = [Island(plan, genesis_anchor(model_schema(MODEL), 1)) for plan in plans]
    group = IslandGroup(islands)
    trainer = IslandTrainer(group, 1)
    counted = CountedIslands(trainer, plans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(island_trainer, "mean_and_ways", counted.tell)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.supervise)
            for island in islands:
                await island.until_ready()
            yield IslandsWorld(trainer, islands, counted)
            nursery.cancel_scope.cancel()
    group.close()


def open_worker_world(folder: Path, num_ranks: int = 1) -> AbstractContextManager[Callable[[Check], None]]:
    """One worker process for many checks, or several that share its replica."""
    return _opened(partial(_worker_world, folder, num_ranks))


def open_islands_world(folder: Path) -> AbstractContextManager[Callable[[Check], None]]:
    """Two islands for many checks."""
    return _opened(partial(_islands_world, folder))


@contextmanager
def forked_workers() -> Iterator[None]:
    """In the block all training processes are forked off one: imports are most of the work of one."""
    with open_forked("peer.worker", "torch.distributed.fsdp") as forked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_process, "start_worker", forked.start_worker)
        yield


@contextmanager
def _opened(open_world: Callable[[], AbstractAsyncContextManager[TrainerWorld]]) -> Iterator[Callable[[Check], None]]:
    """One world for many checks: trio runs in a thread of its own."""
    ready: queue.Queue[tuple[trio.lowlevel.TrioToken, TrainerWorld] | BaseException] = queue.Queue()
    stop = trio.Event()

    async def main() -> None:
        async with open_world() as world:
            ready.put((trio.lowlevel.current_trio_token(), world))
            await stop.wait()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            ready.put(error)
            raise

    thread = threading.Thread(target=run, name="worker world")
    thread.start()
    outcome = ready.get(timeout=300)
    if isinstance(outcome, BaseException):
        raise outcome
    token, world = outcome
    try:
        yield lambda check: trio.from_thread.run(partial(_checked, check, world), trio_token=token)
    finally:
        trio.from_thread.run_sync(stop.set, trio_token=token)
        thread.join(timeout=300)
