"""Memory that was freed goes back to the system, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from averaging.system import freed_memory

_PIECES = """
from pathlib import Path
from averaging.system.freed_memory import give_back_freed

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

pieces = [bytes([1]) * 5000 for _ in range(8000)]
behind = [bytes([2]) * 5000]
before = resident_mb()
del pieces
freed = resident_mb()
give_back_freed()
print(before - freed, freed - resident_mb(), len(behind))
"""


def test_small_pieces_go_back_though_one_behind_them_stays() -> None:
    done = subprocess.run([sys.executable, "-c", _PIECES], check=True, capture_output=True, text=True)
    by_itself_mb, given_back_mb, _ = map(float, done.stdout.split())
    assert by_itself_mb < 5.0
    assert given_back_mb > 30.0 or freed_memory._TRIM is None


def test_a_c_library_that_cannot_do_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "_TRIM", None)
    freed_memory.give_back_freed()
