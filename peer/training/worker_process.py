"""Starts the training process. It starts early, because it and the daemon both import for seconds.

Imports nothing heavy: the front door starts the first worker before it loads the daemon.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from averaging.system.child_python import CHILD_FOLDER, child_environment, python_command
from peer.machine.rocm import rocm_environment

NICENESS: Final = 10
"""Of a training process: the volunteer's own programs take priority."""

TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGHUP)
"""The signals of a terminal, which reach all processes that were started in it."""

WORKER_MODULE = "peer.worker"
"""The module run as the training process. A benchmark replaces it with a wrapper."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A running `peer.worker` that waits for its plan at the other end of `channel`. It ends when the channel is closed."""

    process: subprocess.Popen[bytes]
    channel: socket.socket


class EarlyWorker:
    """The first worker of a peer and the shared memory that goes with it. Created by `early_worker`."""

    def __init__(self) -> None:
        self.memory_fd = shared_memory()
        try:
            self._worker: WorkerProcess | None = start_worker(self.memory_fd)
        except OSError:
            os.close(self.memory_fd)
            raise

    def take(self) -> WorkerProcess | None:
        """The process, once. The caller then owns it and the memory."""
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        """End the process if it was not taken."""
        worker = self.take()
        if worker is not None:
            worker.channel.close()
            worker.process.kill()
            worker.process.wait()
            os.close(self.memory_fd)


@contextmanager
def early_worker() -> Iterator[EarlyWorker | None]:
    """A worker that imports while the block runs; None if it cannot be started, which its user must report."""
    try:
        early = EarlyWorker()
    except OSError:
        yield None
        return
    try:
        yield early
    finally:
        early.close()


def start_worker(memory_fd: int) -> WorkerProcess:
    """Start a worker on this memory.

    Raises:
        OSError: the system cannot create a process.
    """
    ours, theirs = socket.socketpair()
    command = python_command("-m", WORKER_MODULE, str(theirs.fileno()), str(memory_fd))
    # The daemon handles them. The worker inherits blocked signals until it can ignore them itself after its imports.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_SIGNALS)
    try:
        process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(), memory_fd),
            stdin=subprocess.DEVNULL,
            env=_environment(),
            cwd=CHILD_FOLDER,
        )
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return WorkerProcess(process, ours)


def shared_memory() -> int:
    """An open file without a name, in memory if the system can do that."""
    if sys.platform == "linux":
        return os.memfd_create("potluck", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


_QUIET_PROFILER: Final = "6"
"""Above all levels of torch's profiler, which otherwise writes its starts and stops to the peer's screen."""


def _environment() -> dict[str, str]:
    """An environment without our secrets, with limits on library threads and what the card needs."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("POTLUCK_")}
    quiet = {"KINETO_LOG_LEVEL": kept.get("KINETO_LOG_LEVEL", _QUIET_PROFILER)}
    return {**child_environment(kept), "OMP_WAIT_POLICY": "PASSIVE", **quiet, **rocm_environment()}
