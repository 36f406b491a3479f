"""Which process runs the daemon of a state folder, and how another command asks it to leave."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from averaging.system.kept_file import kept_file
from protocol.errors import TemporaryError

PROCESS_FILE: Final = "process.json"
"""In the state folder of a running daemon: its process id and the time of its start. A killed daemon leaves it behind."""

_POLL_S: Final = 0.1
_SAME_START_S: Final = 1.0
"""Most difference of two readings of one process's start. Process ids are used again, seconds later at the earliest."""


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """A live process that runs a daemon."""

    pid: int


def running_here(state_dir: Path) -> AbstractContextManager[None]:
    """Record this process as the daemon of a state folder while the block runs. The caller holds the identity's lock.

    Raises:
        StorageError: the folder cannot be written.
    """
    record = {"pid": os.getpid(), "started_unix_s": psutil.Process().create_time()}
    return kept_file(state_dir / PROCESS_FILE, json.dumps(record) + "\n")


def running_daemon(state_dir: Path) -> RunningDaemon | None:
    """The daemon that runs from a state folder; None if none does. A record of another process's id is none. Blocks."""
    try:
        with (state_dir / PROCESS_FILE).open("rb") as file:
            found = json.loads(file.read(1000))
        pid, started_unix_s = found["pid"], found["started_unix_s"]
        if type(pid) is not int or pid <= 1:
            return None
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - float(started_unix_s)) < _SAME_START_S
        is_alive = process.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, TypeError, KeyError, psutil.Error):
        return None
    return RunningDaemon(pid) if is_same and is_alive else None


def end_daemon(state_dir: Path, running: RunningDaemon, kind: str, within_s: float) -> None:
    """Ask the daemon of a state folder to leave, and wait until it has. `kind` is "peer" or "host". Blocks.

    Raises:
        TemporaryError: it is still leaving after `within_s`.
    """
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    until_s = time.monotonic() + within_s
    while running_daemon(state_dir) == running:
        if time.monotonic() > until_s:
            raise TemporaryError(
                f"the {kind} is still leaving after {within_s:.0f} s",
                f"a {kind} that has left",
                "see: potluck logs -f",
            )
        time.sleep(_POLL_S)
