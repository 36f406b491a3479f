"""Starting the training process: early, because it imports for seconds what the daemon imports for seconds, too.

Nothing heavy is imported here: the front door starts the first one before it loads the daemon.
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

WORKER_MODULE = "peer.worker"
"""What is run as the training process; a benchmark sets another one around it."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A running `peer.worker` that waits for its plan at the other end of `channel`; it ends when that is closed."""

    process: subprocess.Popen[bytes]
    channel: socket.socket


class EarlyWorker:
    """The first worker of a peer and the memory that it shares with whoever takes it. Made by `early_worker`."""

    def __init__(self) -> None:
        self.memory_fd = shared_memory()
        try:
            self._worker: WorkerProcess | None = start_worker(self.memory_fd)
        except OSError:
            os.close(self.memory_fd)
            raise

    def take(self) -> WorkerProcess | None:
        """The process, once; it and the memory are the taker's from then on."""
        worker, self._worker = self._worker, None
        return worker

    def close(self) -> None:
        """End it if nobody took it."""
        worker = self.take()
        if worker is not None:
            worker.channel.close()
            worker.process.kill()
            worker.process.wait()
            os.close(self.memory_fd)


@contextmanager
def early_worker() -> Iterator[EarlyWorker | None]:
    """A worker that imports while the block goes on; None where none can be started, which is for its user to say."""
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
        OSError: the system gives no process.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", WORKER_MODULE, str(theirs.fileno()), str(memory_fd)]
    # Ctrl-C is the daemon's to answer. Until the worker can say so itself, while it imports, it inherits that the signal waits.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(), memory_fd), stdin=subprocess.DEVNULL, env=_environment()
        )
    except OSError:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    return WorkerProcess(process, ours)


def shared_memory() -> int:
    """An open file without a name: in memory where the system can do that."""
    if sys.platform == "linux":
        return os.memfd_create("potluck", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _environment() -> dict[str, str]:
    """The worker needs neither our secrets nor a second set of busy threads."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("POTLUCK_")}
    return {**kept, "OMP_WAIT_POLICY": "PASSIVE"}
