"""Tests of peer/settings/exit.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from peer.settings.exit import EXIT_CODES, exit_code_lines, exit_code_table, watch_signals
from protocol.errors import PotluckError

README = Path(__file__).parents[3] / "README.md"


def _tree(kind: type[PotluckError]) -> Iterator[type[PotluckError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def test_every_error_of_the_tree_has_a_documented_code() -> None:
    assert {kind.exit_code for kind in _tree(PotluckError)} <= set(EXIT_CODES)


def test_every_code_has_a_cause_and_a_cure() -> None:
    assert all(row.cause and row.cure for row in EXIT_CODES.values())


def test_table_has_a_line_for_each_code() -> None:
    assert exit_code_lines().count("\n\n") == len(EXIT_CODES) - 1


def test_readme_shows_the_table_as_it_is() -> None:
    assert exit_code_table() in README.read_text(encoding="utf8")


ROOT = Path(__file__).parents[3]
STUBBORN = """
import trio
from peer.settings.exit import watch_signals
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
        with trio.fail_after(5):
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
        assert child.wait(timeout=10) == 130
