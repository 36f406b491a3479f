"""`potluck` commands as processes of their own that are forked off one that has imported what they need.

Python's start and the imports are most of the work of a command that says one line, 0.3 to 0.9 CPU seconds, and 2 to 5 of a daemon's
start. A command has its own memory, environment, output and exit code, as if a shell had started it. If the process has imported
peer.worker too, a peer's first training process is forked off the peer; those that follow one that died are started as ever.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from peer.training.worker_process import WorkerProcess

ROOT = Path(__file__).parents[1]
LIMIT_S = 500.0
WORKER = "peer.worker"
NUM_FILES_OF_A_WORKER = 2
"""Its channel and its memory; a command comes with three files."""

_ASKING = threading.Lock()
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
                ended = select.poll()  # not `select.select`, which takes no descriptor above 1,023
                ended.register(ends, select.POLLIN)
                ended.poll(timeout * 1_000)
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
    """The other end of a process that forks; made by `open_forked`. One at a time asks it, from any thread."""

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

    def start_worker(self, memory_fd: int) -> WorkerProcess:
        """As peer/training/worker_process.py's, where the process has imported peer.worker."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = _ask(self._control, {}, theirs.fileno(), memory_fd)
        return WorkerProcess(cast("subprocess.Popen[bytes]", ForkedProcess(self._control, int(pid))), ours)


def _ask(control: socket.socket, question: Mapping[str, int], *files: int) -> str:
    with _ASKING:
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
        reported = _code_of(question["pid"]) if "pid" in question else str(_fork(control, files))
        control.send(json.dumps(reported).encode())


def _code_of(pid: int) -> str:
    """Empty while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return str(os.waitstatus_to_exitcode(status)) if ended else ""


def _fork(control: socket.socket, files: Sequence[int]) -> int:
    pid = os.fork()
    if not pid:
        control.close()
        if len(files) == NUM_FILES_OF_A_WORKER:
            _be_worker(*files)
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
    if WORKER in sys.modules:
        _fork_first_worker()
    exec(before, {})  # noqa: S102 - a test's own words
    importlib.import_module("potluck").main()


class _Child:
    """A process that this one forked off; as a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int | None:
        """Its exit code."""
        return self._waited(0)

    def kill(self) -> None:
        """SIGKILL. Its number is its own until its code was asked for."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode


def _fork_first_worker() -> None:
    """The next training process of this one, which has no threads yet, has its imports done, too."""
    starting: Any = importlib.import_module("peer.training.worker_process")
    start_worker = starting.start_worker

    def fork_worker(memory_fd: int) -> object:
        starting.start_worker = start_worker
        ours, theirs = socket.socketpair()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pid = os.fork()
        if not pid:
            ours.close()
            _be_worker(theirs.detach(), memory_fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return starting.WorkerProcess(_Child(pid), ours)

    starting.start_worker = fork_worker


def _be_worker(channel_fd: int, memory_fd: int) -> None:
    """Work, and leave."""
    code = 1
    try:
        for name in [name for name in os.environ if name.startswith("POTLUCK_")]:
            del os.environ[name]
        sys.argv = [WORKER, str(channel_fd), str(memory_fd)]
        code = importlib.import_module(WORKER).main()
    except BaseException:  # noqa: BLE001 - it must never return into its parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for module in (*PRELOADED, *sys.argv[2:]):
        importlib.import_module(module)
    gc.freeze()  # or each command would look through all of it when it ends, and copy the memory for that
    _serve(socket.socket(fileno=int(sys.argv[1])))
