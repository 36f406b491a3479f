"""Real `potluck` processes for tests: started, read while they run, ended by id."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.forked import Forked, ForkedProcess

ROOT = Path(__file__).parents[2]
WAIT_LIMIT_S = 500.0
WITHIN_S = 300.0
LOOK_EVERY_S = 0.1
LOOPBACK = ("--listen-host", "127.0.0.1")
PEER_FLAGS = (*LOOPBACK, "--device", "cpu", "--num-threads", "1")


def environment() -> Mapping[str, str]:
    """The environment that a command finds."""
    # A configuration folder of the person who runs the tests must not matter.
    return {
        **os.environ,
        "POTLUCK_PEER_SCREEN": "plain",
        "POTLUCK_LOG": "info",
        "PYTHONUNBUFFERED": "1",
        "XDG_CONFIG_HOME": os.devnull,
    }


@dataclass(frozen=True)
class Running:
    """A running command and the files that it writes to."""

    process: ForkedProcess
    out: Path
    err: Path

    def said(self) -> str:
        return self.out.read_text(errors="replace") + self.err.read_text(errors="replace")

    def wait_for(self, pattern: str, times: int = 1) -> str:
        """The `times`-th match of `pattern` in what it said so far or says soon; its group when there is one."""
        deadline_s = time.monotonic() + WAIT_LIMIT_S
        while time.monotonic() < deadline_s:
            found = re.findall(pattern, self.said())
            if len(found) >= times:
                return str(found[times - 1])
            if self.process.poll() is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=0.05)
        raise AssertionError(f"no {pattern} in:\n{self.said()[-3000:]}")

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.said()))

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def freeze_p2pd(self) -> psutil.Process:
        """Stop its p2pd, so that leaving cleanly takes seconds; the p2pd."""
        (p2pd,) = [child for child in psutil.Process(self.process.pid).children() if child.name() == "p2pd"]
        p2pd.suspend()
        return p2pd

    def exit_code(self) -> int:
        return self.process.wait(timeout=WAIT_LIMIT_S)


def wait_until(what: str, is_so: Callable[[], bool], *running: Running) -> None:
    """Looks again and again; all of `running` must stay alive meanwhile."""
    deadline_s = time.monotonic() + WITHIN_S
    while not is_so():
        reported = "\n".join(f"== {one.out.name}\n{one.said()[-2000:]}" for one in running)
        assert time.monotonic() < deadline_s, f"not within {WITHIN_S:.0f} s: {what}\n{reported}"
        assert all(one.process.poll() is None for one in running), f"ended before: {what}\n{reported}"
        with suppress(subprocess.TimeoutExpired):
            running[0].process.wait(timeout=LOOK_EVERY_S)


@contextmanager
def running_potluck(folder: Path, name: str, *arguments: str, forked: Forked, before: str = "") -> Iterator[Running]:
    """A command in a session of its own, which is killed at the end if it still runs; its imports were done before. `before`:
    statements that make its process another one than its release is, such as with less patience.
    """
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = forked.start(arguments, ROOT, environment(), out_file.fileno(), err_file.fileno(), before)
    try:
        yield Running(process, out, err)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def run_of_two(
    folder: Path,
    forked: Forked,
    meanwhile: Callable[[Running], object] | None = None,
    flags_b: Sequence[str] = (),
) -> None:
    """Host the run.toml in `folder` for two peers, "a" and "b", to its end; state folders by these names and "host". `meanwhile` is
    done with "a" once they were started. `flags_b` are more flags of "b".
    """
    hosting = ("host", str(folder / "run.toml"), "--state-dir", str(folder / "host"), *LOOPBACK)
    with ExitStack() as stack:
        host = stack.enter_context(running_potluck(folder, "host process", *hosting, forked=forked))
        invite = host.wait_for(r"(potluck1:\S+)\n")
        joining = {
            name: ("join", invite, "--state-dir", str(folder / name), *PEER_FLAGS, *flags)
            for name, flags in (("a", ()), ("b", flags_b))
        }
        peers = [
            stack.enter_context(running_potluck(folder, f"peer {name}", *arguments, forked=forked))
            for name, arguments in joining.items()
        ]
        if meanwhile is not None:
            meanwhile(peers[0])
        for peer in peers:
            assert peer.exit_code() == 0, peer.said()
        said = host.said() + "".join(peer.said() for peer in peers)
    assert "Traceback" not in said
