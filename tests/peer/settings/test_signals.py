from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import trio

from peer.settings.signals import watch_signals

ROOT = Path(__file__).parents[3]
STUBBORN = """
import trio
from peer.settings.signals import watch_signals
async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_signals, lambda reason: print("leaving", flush=True))
        print("ready", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


async def test_first_signal_asks_to_leave_with_the_reason() -> None:
    reasons: list[str] = []
    left = trio.Event()

    def leave(reason: str) -> None:
        reasons.append(reason)
        left.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(watch_signals, leave)
        os.kill(os.getpid(), signal.SIGINT)
        with trio.fail_after(60):
            await left.wait()
        nursery.cancel_scope.cancel()
    assert reasons == ["asked to leave by SIGINT"]


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
