"""Tests of peer/machine/memory.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.machine.memory import LOOKS_A_WALK, Family, memory_of_family


def test_memory_counts_the_processes_that_we_started() -> None:
    alone_bytes = memory_of_family()
    code = "import sys; block = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        assert memory_of_family() > alone_bytes + (48 << 20)
        child.stdin.close()


@pytest.mark.parametrize("is_listed", [True, False])
def test_what_a_child_started_counts_whether_or_not_the_system_lists_children(
    is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlisted(_: Path) -> Iterator[Path]:
        raise FileNotFoundError("no list of tasks")

    if not is_listed:
        monkeypatch.setattr(Path, "iterdir", unlisted)
    block = "block = bytearray(64 << 20); print('up', flush=True); import sys; sys.stdin.read()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {block!r}])"
    alone_bytes = memory_of_family()
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"up\n"
        assert memory_of_family() > alone_bytes + (64 << 20)
        child.stdin.close()


def test_who_is_started_later_is_found_after_some_looks_and_at_the_next_one_after_somebody_ended() -> None:
    family = Family()
    code = "import sys; block = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"

    def start() -> subprocess.Popen[bytes]:
        child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    def looks(least_bytes: int) -> int:
        return next(number for number in range(99) if family.memory_bytes() > least_bytes)

    alone_bytes = family.memory_bytes()
    with start() as first:
        assert looks(alone_bytes + (48 << 20)) == LOOKS_A_WALK - 1
        with start() as second:
            first.kill()
            first.wait()
            assert looks(alone_bytes + (48 << 20)) == 1
            second.kill()


def test_a_family_that_is_gone_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert memory_of_family(child.pid) == 0


# In a process of its own, because the allocator of this one may still hold memory of earlier tests.
PEAK = """
import subprocess, sys
from peer.machine.memory import forget_own_peak, memory_use, own_peak_bytes
before = memory_use().own_bytes
forget_own_peak()
block = bytearray(b"x" * (64 << 20))
del block
use = memory_use()
code = "from peer.machine.memory import own_peak_bytes; print(own_peak_bytes())"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
print(before, use.own_bytes, use.own_peak_bytes, child.stdout.strip(), own_peak_bytes())
"""


def test_a_peak_outlives_what_was_given_back_and_is_not_the_parents() -> None:
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=300, check=True)
    before, now, peak, childs_peak, peak_later = map(int, done.stdout.split())
    assert peak > before + (48 << 20)
    assert peak >= now > 0
    assert childs_peak < peak_later
