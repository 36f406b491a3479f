"""Freed memory stays with the process, so that its next use costs no page faults."""

from __future__ import annotations

import subprocess
import sys

_FAULTS = """
import resource
from peer.heap import keep_freed_memory

if {is_kept}:
    assert keep_freed_memory()

def use():
    pieces = [bytearray(1 << 20) for _ in range(3)]
    for piece in pieces:
        piece[::4096] = bytes(len(piece) // 4096)

for _ in range(3):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(*, is_kept: bool) -> int:
    code = _FAULTS.format(is_kept=is_kept)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


def test_pieces_of_a_megabyte_are_used_again_without_page_faults() -> None:
    assert _page_faults(is_kept=False) > 5000  # else this says nothing
    assert _page_faults(is_kept=True) < 500
