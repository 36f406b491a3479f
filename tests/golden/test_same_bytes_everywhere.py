"""Same commit id, same bytes: the whole committed path under every instruction set and thread count of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

EXPECTED = "tests/golden/committed_path.txt"

NUMPY_WITHOUT = {"default": "AVX2 FMA3 AVX512F AVX512_SKX", "avx2": "AVX512F AVX512_SKX", "avx512": ""}
"""What NumPy is to do without. It has vector code of its own, for sorting and partitioning above all."""


def _hash(capability: str, threads: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.committed_path", str(threads)],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability, "NPY_DISABLE_CPU_FEATURES": NUMPY_WITHOUT[capability]},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return done.stdout.strip()


def test_every_instruction_set_and_thread_count_commits_the_same_bytes() -> None:
    hashes = {
        (capability, threads): _hash(capability, threads)
        for capability, threads in (
            ("default", 1),
            ("default", 2),
            ("avx2", 1),
            ("avx2", 2),
            ("avx512", 1),
            ("avx512", 2),
        )
    }
    assert len(set(hashes.values())) == 1, hashes
    with open(EXPECTED, encoding="ascii") as golden:  # and the same as on the machine that wrote this file
        assert set(hashes.values()) == {golden.read().strip()}
