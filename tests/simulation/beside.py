"""Simulated worlds in processes of their own, played beside the other tests where there are many.

A world takes virtual time and one processor; tests of real processes wait for much of theirs, and most others need a single processor.
So the worlds are begun first, at the lowest priority, and asked for last: nothing of them depends on how long they take.

Each is forked off one of two processes, an order of sets each, that have imported what they all need: that takes as long as some
worlds. `python -m tests.simulation.beside` is one of the two.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tests.benchmarks.processes import die_with_parent

HASH_SEEDS: Final = ("1", "2")
"""One process for each: whatever hangs on the order of sets shows."""

LIMIT_S: Final = 800.0
"""From when a test asks for it: how long a play may still take."""

LOWEST_PRIORITY: Final = 19
_HERE: Final = "tests.simulation.beside"
_PRELOADED: Final = ("tests.simulation.__main__", "tests.simulation.cases")


@dataclass(frozen=True, slots=True)
class Play:
    """`main` of this module with these arguments, which prints JSON; `hash_seed`: one of the orders of sets."""

    module: str
    arguments: tuple[str, ...]
    hash_seed: str = HASH_SEEDS[0]


class Beside:
    """Plays that run already; `close` it."""

    def __init__(self) -> None:
        self._futures: dict[Play, Future[str]] = {}
        self._players = {hash_seed: _Player(hash_seed) for hash_seed in HASH_SEEDS}

    def start(self, plays: Iterable[Play]) -> None:
        """Begin these, as many at a time as there are processes for."""
        for play in plays:
            if play not in self._futures:
                self._futures[play] = self._players[play.hash_seed].begin(play)

    def output(self, *plays: Play) -> list[str]:
        """The output of each of these, begun before or not; they no longer stand back for anything.

        Raises:
            AssertionError: one printed nothing; with its complaint.
            TimeoutError: one took too long.
        """
        self.start(plays)
        for player in self._players.values():
            player.stand_back_no_longer()
        return [self._futures[play].result(timeout=LIMIT_S) for play in plays]

    def close(self) -> None:
        """Nothing of them runs on."""
        for player in self._players.values():
            player.close()


class _Player:
    """One process that plays what it is given, one play after another; it starts with the first."""

    def __init__(self, hash_seed: str) -> None:
        self._environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        self._process: subprocess.Popen[str] | None = None
        self._is_awaited = False
        self._is_closed = False
        self._pool = ThreadPoolExecutor(1)

    def begin(self, play: Play) -> Future[str]:
        """Its output, once it has ended."""
        return self._pool.submit(self._play, play)

    def stand_back_no_longer(self) -> None:
        """From now on somebody waits."""
        self._is_awaited = True
        if self._process is not None:
            _set_priority(self._process.pid, 0)

    def close(self) -> None:
        """It ends, and with it what it plays."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._process is not None:
            with self._process as process:
                process.kill()

    def _play(self, play: Play) -> str:
        process = self._process = self._process or self._started()
        if self._is_closed:
            process.kill()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([play.module, *play.arguments]) + "\n")
        process.stdin.flush()
        reported = process.stdout.readline()
        assert reported, f"{play}: the process that plays ended with {process.wait()}"
        printed, complaint = json.loads(reported)
        assert printed, f"{play}: {complaint}"
        return str(printed)

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", _HERE],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        if not self._is_awaited:
            _set_priority(process.pid, LOWEST_PRIORITY)
        return process


def _set_priority(pid: int, nice: int) -> None:
    """Of a session: Linux shares out time between sessions first, and only then by the priorities within each."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, nice)
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")


def _serve() -> None:
    """Play what each line of standard input names, and tell what it printed and what it complained of, a line each."""
    reported_to, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as complaint:
            pid = os.fork()
            if not pid:
                _perform(module, arguments, printed, complaint)
            os.waitpid(pid, 0)
            print(json.dumps([_said(printed), _said(complaint)]), file=reported_to, flush=True)


def _perform(module: str, arguments: list[str], printed: IO[str], complaint: IO[str]) -> None:
    """Be one play; it leaves by itself."""
    die_with_parent()
    os.dup2(complaint.fileno(), sys.stderr.fileno())
    has_ended = False
    try:
        with redirect_stdout(printed):
            importlib.import_module(module).main(arguments)
        printed.flush()
        has_ended = True
    finally:
        if not has_ended:
            traceback.print_exc()
        os._exit(0)


def _said(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


if __name__ == "__main__":
    for name in _PRELOADED:
        importlib.import_module(name)
    _serve()
