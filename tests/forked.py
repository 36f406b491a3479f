"""`potluck` commands as processes of their own that are forked off one that has imported what they need.

Python's start and the imports are most of the work of a command that says one line, 0.3 to 0.9 CPU seconds, and 2 to 5 of a daemon's
start. A command has its own memory, environment, output and exit code, as if a shell had started it.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
LIMIT_S = 100.0
PRELOADED = (
    "typer",
    "typer.rich_utils",
    "pydantic",
    "pydantic_settings",
    "structlog",
    "cryptography.x509",
    "platformdirs",
)
"""The slow ones of others. None starts a thread."""


class ForkedProcess:
    """A process that `Forked` started; as a `subprocess.Popen`."""

    def __init__(self, control: socket.socket, pid: int) -> None:
        self._control = control
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        if self.returncode is None:
            code = _ask(self._control, {"pid": self.pid})
            self.returncode = int(code) if code else None
        return self.returncode

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.poll() is None:
            ends = os.pidfd_open(self.pid)
            try:
                select.select([ends], [], [], timeout)
            finally:
                os.close(ends)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(["potluck"], timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Nobody else has its number: it is a zombie until somebody asks for its code."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forked:
    """The other end of a process that forks; made by `open_forked`."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def run(
        self, *arguments: str, cwd: Path, environment: Mapping[str, str], before: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; `before`: statements that make its process a stranger.

        Raises:
            subprocess.TimeoutExpired: it does not end.
        """
        with _text() as out, _text() as err:
            process = self.start(arguments, cwd, environment, out.fileno(), err.fileno(), before)
            try:
                code = process.wait()
            finally:
                process.kill()
            said = [_said(file) for file in (out, err)]
        return subprocess.CompletedProcess(arguments, code, *said)

    def start(
        self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], out: int, err: int, before: str = ""
    ) -> ForkedProcess:
        """Start one command, in a session of its own, with these files as standard output and standard error."""
        with tempfile.TemporaryFile("w+") as asked:
            json.dump([arguments, str(cwd), dict(environment), before], asked)
            asked.flush()
            pid = _ask(self._control, {}, asked.fileno(), out, err)
        return ForkedProcess(self._control, int(pid))


def _ask(control: socket.socket, question: Mapping[str, int], *files: int) -> str:
    socket.send_fds(control, [json.dumps(question).encode()], files)
    return str(json.loads(control.recv(64)))


def _text() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf8", newline="")


def _said(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextmanager
def open_forked(*preloaded: str) -> Iterator[Forked]:
    """Start the process, which imports these modules once for all its commands; it ends with the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(theirs.fileno()), *preloaded],
            cwd=ROOT,
            # grpc reads it when it is imported, which may be here, before a command's own words.
            env={**os.environ, "PYTHONUNBUFFERED": "1", "GRPC_VERBOSITY": "NONE"},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    with process, ours:
        ours.settimeout(LIMIT_S)
        try:
            yield Forked(ours)
        finally:
            process.kill()


def _serve(control: socket.socket) -> None:
    """Fork for each that is asked for, tell its process id, and its exit code to those who ask; until the other end is closed."""
    while True:
        asked, files, _, _ = socket.recv_fds(control, 64, 3)
        if not asked:
            return
        question = json.loads(asked)
        control.send(json.dumps(_code_of(question["pid"]) if question else str(_fork(control, files))).encode())


def _code_of(pid: int) -> str:
    """Empty while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return str(os.waitstatus_to_exitcode(status)) if ended else ""


def _fork(control: socket.socket, files: Sequence[int]) -> int:
    pid = os.fork()
    if not pid:
        control.close()
        _become(*files)
    for file in files:
        os.close(file)
    return pid


def _become(asked: int, out: int, err: int) -> None:
    """Be the command; it leaves by itself."""
    os.setsid()
    with open(asked, encoding="utf8") as file:
        file.seek(0)
        arguments, cwd, environment, before = json.load(file)
    for here, there in ((out, 1), (err, 2)):
        os.dup2(here, there)
        os.close(here)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["potluck", *arguments]
    exec(before, {})  # noqa: S102 - a test's own words
    importlib.import_module("potluck").main()


if __name__ == "__main__":
    for module in (*PRELOADED, *sys.argv[2:]):
        importlib.import_module(module)
    _serve(socket.socket(fileno=int(sys.argv[1])))
