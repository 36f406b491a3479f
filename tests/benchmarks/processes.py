"""Processes of a benchmark: each in a session of its own, its output in a file, none of them outliving the benchmark."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from peer.demo.processes import Running

_PR_SET_PDEATHSIG: Final = 1
_SHARED: Final = Path("/dev/shm")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Runs in the child, as a `preexec_fn`: the kernel kills it when who started it ends, however that is."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Children:
    """The processes that a benchmark started. Made by `open_children`."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._running: list[Running] = []

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Running:
        """Run a command in a new session; its output is appended to `<name>.log`."""
        log_file = self._log_dir / f"{name}.log"
        with log_file.open("ab") as log:
            begin_bytes = log.tell()
            # compiled once, as in an installation: who is started again and again should not pay for it each time
            flags = {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "", "POTLUCK_LOG": "info"}
            variables = {**os.environ, **flags, **environment}
            process = self.started(command, variables, log.fileno())
        running = Running(process=process, log_file=log_file, started_unix_s=time.time(), log_begin_bytes=begin_bytes)
        self._running.append(running)
        return running

    def started(self, command: Sequence[str], environment: Mapping[str, str], log_fd: int) -> subprocess.Popen[bytes]:
        """The process of `start`, with all of its environment."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def kill_all(self) -> None:
        """SIGKILL to all that still run, and to what they started."""
        for running in self._running:
            if running.exit_code() is None:
                kill_all_of(running)


@contextmanager
def open_children(log_dir: Path, make: Callable[[Path], Children] = Children) -> Iterator[Children]:
    """Processes that end with the block. SIGTERM ends the block, too."""
    log_dir.mkdir(parents=True, exist_ok=True)
    before = signal.signal(signal.SIGTERM, _leave)
    children = make(log_dir)
    try:
        yield children
    finally:
        children.kill_all()
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def family(running: Running) -> list[psutil.Process]:
    """The process and all that descend from it, itself first; empty when it is gone."""
    return family_of(running.process.pid)


def family_of(pid: int) -> list[psutil.Process]:
    """The same by process id."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(running: Running) -> float:
    """Processor seconds of the process alone so far: what a start costs on an idle machine. 0 when it is gone."""
    with suppress(psutil.Error):
        times = psutil.Process(running.process.pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def kill_family(pid: int) -> None:
    """SIGKILL to a process and all its descendants."""
    for process in family_of(pid):
        with suppress(psutil.Error):
            process.kill()


def child_named(running: Running, word: str) -> psutil.Process | None:
    """The newest descendant with this word in its command line."""
    found: psutil.Process | None = None
    for process in family(running)[1:]:
        with suppress(psutil.Error):
            if any(word in part for part in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found = process
    return found


def signal_all_of(running: Running, number: signal.Signals) -> None:
    """One signal to the process and all its descendants."""
    for process in family(running):
        with suppress(psutil.Error):
            process.send_signal(number)


def kill_all_of(running: Running) -> None:
    """SIGKILL to the process and all its descendants, whatever their groups; returns when it is reaped. Memory that they share by
    torch is taken away: a killed process leaves it behind for ever, and hivemind's averagers share whole vectors.
    """
    pids = [process.pid for process in family(running)]
    signal_all_of(running, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        running.process.wait(timeout=10.0)
    for pid in pids:
        for left in _SHARED.glob(f"torch_{pid}_*"):
            left.unlink(missing_ok=True)
