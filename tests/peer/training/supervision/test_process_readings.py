"""Readings of processes that run, wait for a processor, wait for something else, and are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest
import trio

from peer.training.supervision.process_readings import is_stopped, runnable_s

WAIT_LIMIT_S = 300.0
SPIN = "while True: pass"
ASLEEP = "import sys; print('here', flush=True); sys.stdin.read()"


@contextmanager
def _running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program, on the first processor of this process."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        try:
            yield process
        finally:
            process.kill()


def _processor_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def _until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_LIMIT_S):
        while not is_so():
            await trio.sleep(0.02)


async def _until_runnable(pid: int, for_s: float) -> None:
    end_s = runnable_s(pid) + for_s
    await _until(lambda: runnable_s(pid) >= end_s)


async def test_a_process_that_waits_for_a_processor_is_runnable_for_longer_than_it_runs() -> None:
    with _running(SPIN) as one, _running(SPIN) as other:
        pids = (one.pid, other.pid)
        await _until(lambda: min(runnable_s(pid) - _processor_s(pid) for pid in pids) >= 0.2)


@pytest.mark.parametrize("is_frozen", [False, True], ids=["waits for its input", "is stopped"])
async def test_a_process_that_does_not_want_a_processor_is_not_runnable_beside_one_that_does(is_frozen: bool) -> None:
    with _running(ASLEEP) as quiet, _running(SPIN) as busy:
        assert quiet.stdout is not None
        assert quiet.stdout.readline() == b"here\n"
        if is_frozen:
            quiet.send_signal(signal.SIGSTOP)
        await _until_runnable(busy.pid, 0.1)  # by then it has done what was left to do
        await _until(lambda: is_stopped(quiet.pid) is is_frozen)
        before_s = runnable_s(quiet.pid)
        await _until_runnable(busy.pid, 0.2)
        assert runnable_s(quiet.pid) - before_s < 0.05


async def test_a_process_that_is_gone_is_neither_runnable_nor_stopped() -> None:
    with _running(ASLEEP) as process:
        process.kill()
        process.wait()
        assert (runnable_s(process.pid), is_stopped(process.pid)) == (0.0, False)
