"""The two worlds in which the contract of Trainer is checked: one worker process with a tiny model, and the simulated trainer."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import trio
from trio.testing import MockClock

from averaging.arithmetic.genesis import genesis_anchor
from averaging.network.seams.clocks import Timers
from averaging.network.seams.interfaces import Trainer
from peer.training.trainer import WorkerTrainer, open_worker_trainer
from peer.training.unit_trainer import UnitTrainer
from protocol.tensors.model_config import model_schema
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


class SimulatedWorld:
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


class WorkerWorld:
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
        restarts, pid = self._trainer.progress().restarts, self._trainer.worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while self._trainer.progress().restarts == restarts or self._trainer.progress().state == "restarting":
            await trio.sleep(0.02)

    async def renew(self) -> None:
        """After any earlier check: at the anchor, and training."""
        await self._trainer.set_anchor(self.anchor_N)
        await self._trainer.resume()


async def _checked(check: Check, world: TrainerWorld) -> None:
    with trio.fail_after(WITHIN_S):
        if isinstance(world, WorkerWorld):
            await world.renew()
        await world.trainer.load(world.anchor_N, schedule_tokens=0)
        await check(world)


def run_simulated(check: Check) -> None:
    """Run a check in a fresh simulated world, in virtual time of this thread alone: the real world's goes on beside it."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await _checked(check, SimulatedWorld(Timers(nursery)))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


@contextmanager
def open_worker_world(folder: Path) -> Iterator[Callable[[Check], None]]:
    """One worker process for many checks: trio runs in a thread of its own."""
    ready: queue.Queue[tuple[trio.lowlevel.TrioToken, WorkerWorld] | BaseException] = queue.Queue()
    stop = trio.Event()

    async def main() -> None:
        anchor_N = genesis_anchor(model_schema(MODEL), 1)
        async with open_worker_trainer(training_plan(folder), anchor_N) as trainer:
            ready.put((trio.lowlevel.current_trio_token(), WorkerWorld(trainer, anchor_N)))
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
