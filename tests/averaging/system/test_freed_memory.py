"""Memory that was freed goes back to the system, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from averaging.system import freed_memory

_RESIDENT = """
from pathlib import Path
from averaging.system import freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
"""
_PIECES = """
pieces = [bytes([1]) * 5000 for _ in range(8000)]
behind = [bytes([2]) * 5000]
before = resident_mb()
del pieces
freed = resident_mb()
freed_memory.give_back_freed()
print(before - freed, freed - resident_mb())
"""
_BLOCKS = """
import sys

if "at once" in sys.argv:
    freed_memory.give_back_large_blocks()
first = bytes([1]) * (24 << 20)
del first
blocks, behind = [], []
for _ in range(4):
    blocks.append(bytes([1]) * (12 << 20))
    behind.append(bytes([2]) * 5000)
before = resident_mb()
del blocks
print(before - resident_mb())
"""


def _told(program: str, *arguments: str) -> Sequence[float]:
    command = [sys.executable, "-c", _RESIDENT + program, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(each) for each in done.stdout.split()]


def test_small_pieces_go_back_though_one_behind_them_stays() -> None:
    by_itself_mb, given_back_mb = _told(_PIECES)
    assert by_itself_mb < 5.0
    assert given_back_mb > 30.0 or freed_memory._GLIBC is None


def test_large_blocks_go_back_when_they_are_freed() -> None:
    (by_itself_mb,) = _told(_BLOCKS)
    (at_once_mb,) = _told(_BLOCKS, "at once")
    assert by_itself_mb < 30.0 or freed_memory._GLIBC is None
    assert at_once_mb > 45.0


def test_a_c_library_that_cannot_do_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_GLIBC", None)
    freed_memory.give_back_freed()
    freed_memory.give_back_large_blocks()
