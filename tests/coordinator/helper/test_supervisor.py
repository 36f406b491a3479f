from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import psutil
import structlog.testing
import trio
import trio.testing

from coordinator.helper.helper_core import FIRST_PAUSE_S, KEPT_FOR_S
from coordinator.helper.supervisor import (
    LOOK_EVERY_S,
    OUTPUT_NAME,
    HelperContext,
    free_port,
    keep_helper,
)
from tests import ports
from tests.virtual import VirtualClock


@dataclass
class FakeProcess:
    """A helper that ends when it is asked to."""

    pid: int = 1
    returncode: int | None = None
    stdin: None = None

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.returncode = 0

    def kill(self) -> None:
        self.returncode = self.returncode or 0

    def wait(self) -> int:
        return self.returncode or 0


@dataclass
class Scene:
    """A supervisor's deeds, and the world that it sees."""

    folder: Path
    are_hidden: list[bool] = field(default_factory=list)
    is_over: bool = False
    started: list[tuple[float, tuple[str, ...], FakeProcess]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def context(self) -> HelperContext:
        return HelperContext(
            folder=self.folder,
            listen_host="127.0.0.1",
            announce_host="",
            first_port=0,
            clock=VirtualClock(),
            are_hidden=lambda: self.are_hidden,
            is_over=lambda: self.is_over,
            issue_invite=self.issue,
            say=self.said.append,
            start=self.start,
        )

    async def issue(self) -> str:
        return "potluck1:once"

    def start(self, arguments: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        process = FakeProcess()
        self.started.append((trio.current_time(), tuple(arguments), process))
        return cast("subprocess.Popen[bytes]", process)


async def test_a_helper_is_started_when_it_is_needed_again_when_it_ended_and_stopped_when_it_is_not(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    scene = Scene(tmp_path / "helper")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_helper, scene.context())
        await trio.sleep(60)
        assert not scene.started
        scene.are_hidden = [True, True]
        await trio.sleep(2 * LOOK_EVERY_S)
        ((_, arguments, first),) = scene.started
        assert "potluck1:once" in arguments
        assert "--no-helper" in scene.said[0]
        (scene.folder / "runs").mkdir()
        first.returncode = 70
        await trio.sleep(FIRST_PAUSE_S + 3 * LOOK_EVERY_S)
        _, (_, again, second) = scene.started
        assert "potluck1:once" not in again
        scene.are_hidden = [False, False]
        await trio.sleep(KEPT_FOR_S + 2 * LOOK_EVERY_S)
        assert second.returncode == 0
        scene.are_hidden = [True, True]
        await trio.sleep(2 * LOOK_EVERY_S)
        third = scene.started[2][2]
        assert third.poll() is None
        nursery.cancel_scope.cancel()
    assert third.returncode == 0


async def test_a_helper_of_a_complete_run_is_left_to_end_and_never_started_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    scene = Scene(tmp_path / "helper", are_hidden=[True, True])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_helper, scene.context())
        await trio.sleep(2 * LOOK_EVERY_S)
        ((_, _, helper),) = scene.started
        scene.is_over, scene.are_hidden = True, []
        await trio.sleep(2 * KEPT_FOR_S)
        assert helper.poll() is None
        helper.returncode, scene.are_hidden = 0, [True, True]
        with structlog.testing.capture_logs() as logs:
            await trio.sleep(2 * KEPT_FOR_S)
        nursery.cancel_scope.cancel()
    assert len(scene.started) == len(scene.said) == 1
    assert [(line["event"], line["log_level"]) for line in logs] == [("helper_ended", "info")]


def test_a_helper_takes_the_wanted_port_unless_it_or_the_next_is_in_use() -> None:
    wanted = ports.free_port(num_in_a_row=2)
    assert free_port("127.0.0.1", wanted) == wanted
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", wanted + 1))
        assert free_port("127.0.0.1", wanted) != wanted


def test_a_helper_dies_with_its_host(tmp_path: Path) -> None:
    host = (
        "import signal, sys; from coordinator.helper.supervisor import start_process; "
        "print(start_process(('--version',), open(sys.argv[1], 'wb')).pid, flush=True); signal.pause()"
    )
    # A program named potluck that never ends stands in the way of the real one.
    (tmp_path / "potluck.py").write_text("import signal; signal.pause()")
    output = tmp_path / OUTPUT_NAME
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}", "PATH": ""}
    with subprocess.Popen(
        [sys.executable, "-c", host, str(output)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        helper = psutil.Process(int(process.stdout.readline()))
        process.kill()
    deadline_s = time.monotonic() + 60
    while helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        psutil.wait_procs([helper], timeout=0.1)
