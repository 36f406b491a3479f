"""The demo's real processes: `python -m potluck host|join`, each in its own process group, output in a log file."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from averaging.system.child_python import CHILD_FOLDER, child_environment, python_command
from averaging.system.hangup import ending_as_ctrl_c_does
from protocol.errors import MachineError

LEAVE_PATIENCE_S: Final = 15.0
_INVITE = re.compile(r"potluck1:[A-Za-z0-9+_]+")


@dataclass(frozen=True, slots=True)
class Running:
    """One started process.

    Attributes:
        started_unix_s: its start, for comparison with times in other processes' reports.
        log_file: its standard output and error.
        log_begin_bytes: size of that file at the start. Earlier bytes come from a previous process of the same name.
    """

    process: subprocess.Popen[bytes]
    log_file: Path
    started_unix_s: float
    log_begin_bytes: int = 0

    def exit_code(self) -> int | None:
        """The exit code, None while it runs; negative for a signal."""
        return self.process.poll()

    def kill_group(self) -> None:
        """SIGKILL to the process and its whole group, without a chance to say goodbye."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()

    def ask_to_leave(self) -> None:
        """Send one SIGINT, like a person's Ctrl-C."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def output(self) -> str:
        """All output so far."""
        with self.log_file.open("rb") as log:
            log.seek(self.log_begin_bytes)
            return log.read().decode("utf8", errors="replace")


class ProcessGroup:
    """The processes that the demo owns. None outlives `open_processes`."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._running: list[Running] = []

    def start(self, name: str, arguments: Sequence[str]) -> Running:
        """Run `potluck ARGUMENTS` in a new session; output is appended to `<name>.log`."""
        log_file = self._log_dir / f"{name}.log"
        environment: Mapping[str, str] = {
            **child_environment(),
            "PYTHONUNBUFFERED": "1",
            "POTLUCK_PEER_SCREEN": "plain",
        }
        with log_file.open("ab") as log:
            begin_bytes = log.tell()
            process = subprocess.Popen(
                python_command("-m", "potluck", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=CHILD_FOLDER,
                start_new_session=True,
            )
        running = Running(process=process, log_file=log_file, started_unix_s=time.time(), log_begin_bytes=begin_bytes)
        self._running.append(running)
        return running

    def stop_all(self) -> None:
        """Ask all to leave, wait a little, then kill the rest. A second Ctrl-C shortens the wait."""
        for running in self._running:
            running.ask_to_leave()
        deadline_s = time.monotonic() + LEAVE_PATIENCE_S
        try:
            for running in self._running:
                with suppress(subprocess.TimeoutExpired):
                    running.process.wait(timeout=max(0.0, deadline_s - time.monotonic()))
        finally:
            for running in self._running:
                if running.exit_code() is None:
                    running.kill_group()


@contextmanager
def open_processes(log_dir: Path) -> Iterator[ProcessGroup]:
    """A group of processes that ends with the block in any case. SIGTERM and SIGHUP (a closed terminal) end it like Ctrl-C. Only
    for the main thread.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    group = ProcessGroup(log_dir)
    with ending_as_ctrl_c_does():
        try:
            yield group
        finally:
            group.stop_all()


def wait_for_invite(host: Running, limit_s: float) -> str:
    """The invite that the host prints when it is ready.

    Raises:
        MachineError: the host ended or printed none within `limit_s`.
    """
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        match = _INVITE.search(host.output())
        if match:
            return match.group(0)
        if host.exit_code() is not None:
            break
        time.sleep(0.1)
    found = f"the host ended with exit code {host.exit_code()}" if host.exit_code() is not None else "no invite yet"
    raise MachineError(f"{found}: {last_line(host)}", f"an invite within {limit_s:.0f} s", f"read {host.log_file}")


def last_line(running: Running) -> str:
    """The last line of its output."""
    lines = running.output().strip().splitlines()
    return lines[-1] if lines else "it said nothing"
