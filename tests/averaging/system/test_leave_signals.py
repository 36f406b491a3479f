from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from averaging.system.leave_signals import watch_signals

ROOT = Path(__file__).parents[3]
STUBBORN = """
import trio
from averaging.system.leave_signals import watch_signals
async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_signals, lambda reason: print("leaving", flush=True))
        print("ready", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.fixture(autouse=True)
def _own_hangups() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


async def _heard(numbers: Sequence[signal.Signals]) -> list[str]:
    """The reasons to leave after these signals, one after another."""
    reasons: list[str] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_signals, reasons.append)
        for number in numbers:
            os.kill(os.getpid(), number)
            await wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    return reasons


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_first_signal_asks_to_leave_with_the_reason(number: signal.Signals) -> None:
    (reason,) = await _heard([number])
    assert reason.startswith("asked to leave by ")
    assert number.name not in reason


async def test_hangup_of_a_shell_and_its_terminal_is_one_goodbye() -> None:
    hangup, stop = signal.SIGHUP, signal.SIGTERM
    assert await _heard([hangup, hangup, stop, hangup]) == ["asked to leave by its terminal, which was closed"]
    assert signal.getsignal(hangup) is signal.SIG_IGN, "one that comes during the end must not change the exit code"


async def test_hangup_under_nohup_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert await _heard([signal.SIGHUP, signal.SIGTERM]) == ["asked to leave by `potluck stop` or the system"]


async def test_second_request_after_a_hangup_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    await _heard([signal.SIGHUP, signal.SIGTERM])
    assert codes == []
    await _heard([signal.SIGHUP, signal.SIGTERM, signal.SIGTERM])
    assert codes == [130]


def test_second_signal_leaves_at_once_with_130() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == b"leaving\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=100) == 130
