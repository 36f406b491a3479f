"""Same commit id, same bytes: the whole committed path under every instruction set and thread count of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.instruction_sets import is_wide, without

EXPECTED = "tests/golden/committed_path.txt"

NUMPY_WITHOUT = {"default": without(), "avx2": without(is_wide), "avx512": without(lambda _: False)}
"""What NumPy is to do without. It has vector code of its own, for sorting and partitioning above all."""


NUM_THREADS = ("1", "2")


def _hashes(capability: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.committed_path", *NUM_THREADS],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability, **NUMPY_WITHOUT[capability]},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.split()


def test_every_instruction_set_and_thread_count_commits_the_same_bytes() -> None:
    hashes = {capability: _hashes(capability) for capability in NUMPY_WITHOUT}
    with open(EXPECTED, encoding="ascii") as golden:  # the same as on the machine that wrote this file
        expected = golden.read().strip()
    assert hashes == {capability: [expected] * len(NUM_THREADS) for capability in NUMPY_WITHOUT}
