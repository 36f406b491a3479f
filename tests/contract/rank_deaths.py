"""The deaths of ranks: two of one replica as real processes, of which one ends at a point of its work (rank_doom.py), and both are
back after it.

All of them, for people: `python -m tests.contract.rank_deaths`. The tests show the fewest that differ in kind.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import psutil
import pytest
import trio

from averaging.arithmetic.genesis import genesis_anchor
from peer.training import training_process
from peer.training.local_training import LocalTrainer
from peer.training.plan.layout import Mesh
from peer.training.trainer import WorkerTrainer, open_worker_trainer
from peer.training.training_plan import TrainingPlan
from peer.training.worker_errors import WorkerDied
from protocol.tensors.model_config import model_schema
from tests.anchors import reads
from tests.contract.rank_doom import DOOM_VARIABLE, HOWS, POINTS, How, Point, RankDoom
from tests.forked import open_forked
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan

WITHIN_S = 500.0
"""A busy machine gives little of its time. How fast processes are back is not judged here."""

ANCHOR_N = genesis_anchor(model_schema(MODEL), 1)


@contextmanager
def doomed_ranks(folder: Path) -> Iterator[Path]:
    """In the block ranks are forked off one process, and end where the file that is given says so."""
    file = folder / "doom"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DOOM_VARIABLE, str(file))
        with open_forked("tests.contract.doomed_worker", "peer.training.ranks.ranked_replica") as forked:
            patch.setattr(training_process, "start_worker", forked.start_worker)
            yield file


def plan_of_two(folder: Path, **changes: object) -> TrainingPlan:
    """Of steps of several micro-batches."""
    return training_plan(folder, **{"mesh": Mesh(shard=2), "micro_batch": 1, **changes})


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds after a rank ended: until all were gone, and until all trained again. `worked_s` are processor seconds of the new
    ranks until then, which other programs do not make longer.
    """

    gone_s: float
    training_s: float
    worked_s: float


@dataclass
class Ranks:
    """A trainer of two ranks that has trained, and the file by which they are doomed."""

    trainer: WorkerTrainer
    plan: TrainingPlan
    doom: Path

    async def until_tokens(self, at_least: int = 1) -> None:
        """So many tokens are ready."""
        while self.trainer.progress().tokens_ready < at_least:
            await trio.sleep(0.01)

    async def strike(self, rank: int, point: Point, how: How) -> Recovery:
        """A rank ends at a point, and all are back after it."""
        pids, restarts = self.trainer.worker_pids, self.trainer.progress().restarts
        RankDoom(rank, point, how).announce(self.doom)
        await self._come_to(point)
        struck_s = trio.current_time()
        while self.trainer.progress().restarts == restarts:
            await trio.sleep(0.01)
        assert not any(map(psutil.pid_exists, pids)), "all ranks are gone before a new life begins"
        gone_s = trio.current_time()
        while self.trainer.progress().state != "training":
            await trio.sleep(0.01)
        assert self.trainer.progress().restarts == restarts + 1
        training_s = trio.current_time() - struck_s
        times = [psutil.Process(pid).cpu_times() for pid in self.trainer.worker_pids]
        return Recovery(gone_s - struck_s, training_s, sum(each.user + each.system for each in times))

    async def _come_to(self, point: Point) -> None:
        """Until a rank has come to the point and ended there; a command brings it to those outside of steps."""
        async with trio.open_nursery() as nursery:
            if point == "evaluation":
                nursery.start_soon(_without_answer, self.trainer.evaluate, reads(ANCHOR_N))
            elif point == "snapshot":
                nursery.start_soon(_without_answer, self.trainer.snapshot)
            while self.doom.exists():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def assert_anew(self) -> None:
        """A new life began at the anchor, after the last step that was told, and every step counts once."""
        trainer, plan = self.trainer, self.plan
        await self.until_tokens()
        await trainer.pause()
        snapshot = await trainer.snapshot()
        await trainer.resume()
        assert snapshot.tokens == snapshot.num_steps * BATCH_TOKENS > 0
        assert trainer.progress().tokens_trained == snapshot.next_step * BATCH_TOKENS
        first_step = snapshot.next_step - snapshot.num_steps
        reference = LocalTrainer(plan.model_copy(update={"mesh": Mesh(), "first_step": first_step}))
        reference.load(ANCHOR_N, 0)
        for _ in range(snapshot.num_steps):
            reference.step()
        assert float((snapshot.theta_N - reference.theta()).abs().mean()) < 0.02 * plan.inner.learning_rate


async def _without_answer(command: Callable[..., Awaitable[object]], *given: object) -> None:
    with suppress(WorkerDied):
        await command(*given)


@asynccontextmanager
async def training_ranks(plan: TrainingPlan, doom: Path) -> AsyncIterator[Ranks]:
    """Two ranks that have trained."""
    with trio.fail_after(WITHIN_S):
        async with open_worker_trainer(plan, ANCHOR_N, devices=("cpu", "cpu")) as trainer:
            ranks = Ranks(trainer, plan, doom)
            await ranks.until_tokens()
            yield ranks


async def all_deaths(
    folder: Path, doom: Path, told: Callable[[int, How, Point, Recovery], None], points: Sequence[Point] = POINTS
) -> None:
    """Strike each rank at each of these points in each way, and tell of each."""
    for how, rank, point in product(HOWS, (0, 1), points):
        async with training_ranks(plan_of_two(folder), doom) as ranks:
            found = await ranks.strike(rank, point, how)
            await ranks.until_tokens()
            if how != "memory":  # then by another plan, whose rounding is another
                await ranks.assert_anew()
        told(rank, how, point, found)


def _tell(rank: int, how: How, point: Point, found: Recovery) -> None:
    print(
        f"rank {rank}, {how}, {point}: both gone after {found.gone_s:.2f} s, anew after {found.training_s:.2f}; "
        f"{found.worked_s:.2f} processor seconds",
        flush=True,
    )


def main() -> None:
    """Strike each rank at each point in each way."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name, doomed_ranks(Path(name)) as doom:
        trio.run(all_deaths, Path(name), doom, _tell)


if __name__ == "__main__":
    main()
