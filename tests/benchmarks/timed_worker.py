"""`python -m tests.benchmarks.timed_worker CHANNEL_FD MEMORY_FD`: the training process, which writes down how long it trained.

The worker is the real one. Its steps are timed, and its waits after them as far as its slowdown asks for these: such a peer stands for
one whose steps take that long. Everything else, snapshots, shifts, loads and whatever else it is told to do between two steps, is time
in which it does not train.

With STEP_VARIABLE a step takes so long on the wall, as one on a graphics card does: the real step, and then a wait for what is left of
that time. The daemon's work at the same time can make such a step longer only by keeping it from its next step.

With SLEEP_VARIABLE nothing is computed: a step moves a hundredth of the parameters a little and sleeps for so long, and obeys nobody
before its end, as a step of one micro-batch does. So large models train on a small machine. An evaluation takes a third of a step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

import peer.worker
from peer.training.local_training import Counters, LocalTrainer
from peer.training.worker_channel import Command, Reply
from peer.worker import Worker

TIMES_VARIABLE: Final = "TRAINING_TIMES"
"""Environment of a timed worker: the file to write to. Variables that begin with POTLUCK_ are kept from training processes."""

STEP_VARIABLE: Final = "TRAINING_STEP_S"
"""Environment of a timed worker: seconds that a step takes, its wait included. None: as the slowdown says."""

SLEEP_VARIABLE: Final = "TRAINING_SLEEP_S"
"""Environment of a timed worker: seconds that a step sleeps instead of computing. None: it computes."""

MOVED_SHARE: Final = 100
"""A sleeping step moves one parameter in so many, each time others."""

MOVED_BY: Final = 1e-3
"""Standard deviation of such a move."""


@dataclass(frozen=True, slots=True)
class Trained:
    """At the end of a step with its wait: the Unix time, for how many seconds the process has trained until then, and how many orders
    of its daemon it has obeyed, such as snapshots, shifts and evaluations.
    """

    unix_s: float
    trained_s: float
    num_orders: int = 0


class TrainingTimes:
    """Adds up, and appends a line for each step."""

    def __init__(self, file: Path, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._file = file
        self._clock_s = clock_s
        self._trained_s = 0.0
        self._num_orders = 0

    def order(self, obey: Callable[[], Reply]) -> Reply:
        """No training."""
        self._num_orders += 1
        return obey()

    def step(self, step: Callable[[], Counters]) -> Counters:
        """Training."""
        begin_s = self._clock_s()
        counters = step()
        self._trained_s += self._clock_s() - begin_s
        return counters

    def idle(self, idle: Callable[[], bool], idle_s: float) -> bool:
        """Waiting, of which so much is asked for: orders that take longer than that are no training."""
        begin_s = self._clock_s()
        goes_on = idle()
        self._trained_s += max(0.0, min(self._clock_s() - begin_s, idle_s))
        with self._file.open("a", encoding="ascii") as file:
            file.write(json.dumps(asdict(Trained(time.time(), self._trained_s, self._num_orders))) + "\n")
        return goes_on


def read_times(file: Path) -> list[Trained]:
    """All lines that are whole, oldest first; none where there is no file yet."""
    lines = file.read_text(encoding="ascii").splitlines(keepends=True) if file.exists() else []
    return [Trained(**json.loads(line)) for line in lines if line.endswith("\n")]


def trained_share(times: list[Trained], begin_unix_s: float, end_unix_s: float) -> float | None:
    """Share of the time that the process trained, between the first and the last step that ended in this window of one process life;
    None with fewer than two.
    """
    inside = [one for one in times if begin_unix_s <= one.unix_s <= end_unix_s]
    if len(inside) < 2 or inside[-1].trained_s < inside[0].trained_s:
        return None
    return (inside[-1].trained_s - inside[0].trained_s) / (inside[-1].unix_s - inside[0].unix_s)


def mean_step_s(times: list[Trained], begin_unix_s: float, end_unix_s: float) -> float | None:
    """Seconds from the end of a step to the end of the next, over those that ended in this window; None with fewer than two."""
    ends_s = [one.unix_s for one in times if begin_unix_s <= one.unix_s <= end_unix_s]
    return (ends_s[-1] - ends_s[0]) / (len(ends_s) - 1) if len(ends_s) > 1 else None


def undisturbed(times: list[Trained], begin_unix_s: float, end_unix_s: float) -> list[Trained]:
    """Each step that ended in this window; none where the process obeyed an order between the first and the last."""
    inside = [one for one in times if begin_unix_s <= one.unix_s <= end_unix_s]
    return inside if inside and inside[0].num_orders == inside[-1].num_orders else []


def install(times: TrainingTimes, paced_s: float | None) -> None:
    """Time every step and every wait of this process's worker; with `paced_s` a step and its wait take so long together."""
    step, idle, do = LocalTrainer.step, Worker._idle, Worker._do
    began_s = 0.0

    def timed_step(trainer: LocalTrainer, goes_on: Callable[[], bool]) -> Counters:
        nonlocal began_s
        began_s = time.perf_counter()
        return times.step(lambda: step(trainer, goes_on))

    def timed_idle(worker: Worker, idle_s: float) -> bool:
        asked_s = idle_s if paced_s is None else began_s + paced_s - time.perf_counter()
        return times.idle(lambda: idle(worker, asked_s), asked_s)

    def counted_do(worker: Worker, command: Command) -> Reply:
        return times.order(lambda: do(worker, command))

    setattr(LocalTrainer, "step", timed_step)  # noqa: B010 - mypy takes no plain assignment
    setattr(Worker, "_idle", timed_idle)  # noqa: B010
    setattr(Worker, "_do", counted_do)  # noqa: B010


def sleep_through(step_s: float) -> None:
    """Steps of this process sleep from now on. To be called before `install`."""
    generator = torch.Generator().manual_seed(os.getpid())

    def step(trainer: LocalTrainer, goes_on: Callable[[], bool]) -> None:
        until_s = time.perf_counter() + step_s
        for parameter in trainer.parameters:
            part_n = torch.chunk(parameter.data.view(-1), MOVED_SHARE)
            moved_n = part_n[trainer.counters.step % len(part_n)]
            moved_n.add_(torch.randn(moved_n.shape, generator=generator), alpha=MOVED_BY)
        before, num_tokens = trainer.counters, trainer.plan.inner.batch_tokens
        trainer.counters = replace(
            before,
            step=before.step + 1,
            ready=tuple(ready + num_tokens for ready in before.ready),
            tokens_trained=before.tokens_trained + num_tokens,
            loss_nats=1.0,
        )
        time.sleep(max(0.0, until_s - time.perf_counter()))

    def evaluate(trainer: LocalTrainer, anchors: Sequence[torch.Tensor], expert: int | None = None) -> float:
        time.sleep(step_s / 3)
        return 1.0

    def find_micro_batch(trainer: LocalTrainer) -> int:
        trainer.micro_batch = trainer.sequences_per_step
        return trainer.micro_batch

    setattr(LocalTrainer, "step", step)  # noqa: B010
    setattr(LocalTrainer, "evaluate", evaluate)  # noqa: B010
    setattr(LocalTrainer, "find_micro_batch", find_micro_batch)  # noqa: B010


if __name__ == "__main__":
    reported, asleep = os.environ.get(STEP_VARIABLE), os.environ.get(SLEEP_VARIABLE)
    if asleep is not None:
        sleep_through(float(asleep))
    install(TrainingTimes(Path(os.environ[TIMES_VARIABLE])), None if reported is None else float(reported))
    sys.exit(peer.worker.main())
