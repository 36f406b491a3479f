"""Simulated worlds in processes of their own, played beside the other tests where there are many.

A world takes virtual time and one processor; tests of real processes wait for much of theirs, and most others need a single processor.
So the worlds are begun first, at the lowest priority, and asked for last: nothing of them depends on how long they take.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.processes import die_with_parent

NUM_PROCESSES: Final = 2
LIMIT_S: Final = 400.0
"""From when a test asks for it: how long a play may still take."""

LOWEST_PRIORITY: Final = 19


@dataclass(frozen=True, slots=True)
class Play:
    """`python -m` with these arguments, which prints JSON; `hash_seed`: an order of sets."""

    arguments: tuple[str, ...]
    hash_seed: str = "0"


class Beside:
    """Plays that run already; `close` it."""

    def __init__(self) -> None:
        self._futures: dict[Play, Future[str]] = {}
        self._running: set[subprocess.Popen[str]] = set()
        self._is_awaited = False
        self._is_closed = False
        self._pool = ThreadPoolExecutor(NUM_PROCESSES)

    def start(self, plays: Iterable[Play]) -> None:
        """Begin these, as many at a time as there are processes for."""
        for play in plays:
            if play not in self._futures:
                self._futures[play] = self._pool.submit(self._run, play)

    def output(self, *plays: Play) -> list[str]:
        """What each of these printed, begun before or not; they no longer stand back for anything.

        Raises:
            AssertionError: one printed nothing; with its complaint.
            TimeoutError: one took too long.
        """
        self._is_awaited = True
        self.start(plays)
        for process in list(self._running):
            _set_priority(process.pid, 0)
        return [self._futures[play].result(timeout=LIMIT_S) for play in plays]

    def close(self) -> None:
        """Nothing of them runs on."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in list(self._running):
            process.kill()

    def _run(self, play: Play) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": play.hash_seed}
        process = subprocess.Popen(
            [sys.executable, "-m", *play.arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._running.add(process)
        if not self._is_awaited:
            _set_priority(process.pid, LOWEST_PRIORITY)
        if self._is_closed:
            process.kill()
        with process:
            printed, complaint = process.communicate()
        self._running.discard(process)
        assert printed, complaint
        return printed


def _set_priority(pid: int, nice: int) -> None:
    """Of a session: Linux shares out time between sessions first, and only then by the priorities within each."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")
