"""`python -m tests.benchmarks.timed_worker CHANNEL_FD MEMORY_FD`: the training process, which writes down how long it trained.

The worker is the real one. Its steps are timed, and its waits after them as far as its slowdown asks for these: such a peer stands for
one whose steps take that long. Everything else, snapshots, shifts, loads and whatever else it is told to do between two steps, is time
in which it does not train.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import peer.worker
from peer.local_training import LocalTrainer
from peer.worker import Worker

TIMES_VARIABLE: Final = "TRAINING_TIMES"
"""Environment of a timed worker: the file to write to. What begins with POTLUCK_ is kept from training processes."""


@dataclass(frozen=True, slots=True)
class Trained:
    """At the end of a step with its wait: the Unix time, and for how many seconds the process has trained until then."""

    unix_s: float
    trained_s: float


class TrainingTimes:
    """Adds up, and appends a line for each step."""

    def __init__(self, file: Path, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._file = file
        self._clock_s = clock_s
        self._trained_s = 0.0

    def step(self, step: Callable[[], None]) -> None:
        """Training."""
        begin_s = self._clock_s()
        step()
        self._trained_s += self._clock_s() - begin_s

    def idle(self, idle: Callable[[], bool], idle_s: float) -> bool:
        """Waiting, of which so much is asked for: orders that take longer than that are no training."""
        begin_s = self._clock_s()
        goes_on = idle()
        self._trained_s += max(0.0, min(self._clock_s() - begin_s, idle_s))
        with self._file.open("a", encoding="ascii") as file:
            file.write(json.dumps(asdict(Trained(time.time(), self._trained_s))) + "\n")
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


def install(times: TrainingTimes) -> None:
    """Time every step and every wait of this process's worker."""
    step, idle = LocalTrainer.step, Worker._idle

    def timed_step(trainer: LocalTrainer, goes_on: Callable[[], bool]) -> None:
        times.step(lambda: step(trainer, goes_on))

    def timed_idle(worker: Worker, idle_s: float) -> bool:
        return times.idle(lambda: idle(worker, idle_s), idle_s)

    setattr(LocalTrainer, "step", timed_step)  # noqa: B010 - mypy takes no plain assignment
    setattr(Worker, "_idle", timed_idle)  # noqa: B010


if __name__ == "__main__":
    install(TrainingTimes(Path(os.environ[TIMES_VARIABLE])))
    sys.exit(peer.worker.main())
