"""Same commit id, same bytes: the whole committed path under every instruction set and thread count of this machine, and with the
compiled codecs as without them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from averaging.arithmetic import batched_codec as chunk_runs
from averaging.arithmetic import weighted_mean
from averaging.arithmetic.outer import mean
from averaging.codecs import sparse
from averaging.codecs.compiled import BLOCKS, CompiledBlocks
from tests.golden.committed_path import hash_in_runs, kinds_hash
from tests.instruction_sets import is_wide, without

EXPECTED = "tests/golden/committed_path.txt"
"""Of chunk by chunk, and of runs."""

COMPILED = (chunk_runs, mean, sparse, weighted_mean)
"""The program that asks the library."""

NUMPY_WITHOUT = {"default": without(), "avx2": without(is_wide), "avx512": without(lambda _: False)}
"""The features that NumPy is to do without. It has vector code of its own, for sorting and partitioning above all."""


NUM_THREADS = ("1", "2")


def _hashes(capability: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.committed_path", *NUM_THREADS],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability, **NUMPY_WITHOUT[capability]},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    return done.stdout.split()


def _expected() -> Sequence[str]:
    """The same as on the machine that wrote this file."""
    with open(EXPECTED, encoding="ascii") as golden:
        return golden.read().split()


class _Seen:
    """The library, and which of its functions took what they were given."""

    def __init__(self, blocks: CompiledBlocks) -> None:
        self._blocks = blocks
        self.took = set[str]()

    def __getattr__(self, name: str) -> Callable[..., object]:
        function = getattr(self._blocks, name)

        def called(*arguments: object) -> object:
            done = function(*arguments)
            if done is not None and done is not False:
                self.took.add(name)
            return done

        return called


def test_every_instruction_set_and_thread_count_commits_the_same_bytes() -> None:
    hashes = {capability: _hashes(capability) for capability in NUMPY_WITHOUT}
    assert {capability: found[::2] for capability, found in hashes.items()} == {
        capability: [_expected()[0]] * len(NUM_THREADS) for capability in NUMPY_WITHOUT
    }
    assert {kinds for found in hashes.values() for kinds in found[1::2]} == {kinds_hash()}


def test_the_compiled_codecs_commit_the_bytes_of_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert BLOCKS is not None, "install again with a C compiler: make install"
    seen = _Seen(BLOCKS)
    for module in COMPILED:
        monkeypatch.setattr(module, "BLOCKS", seen)
    compiled = hash_in_runs()
    assert seen.took == {"encode", "decode", "add", "step", "largest"}
    for module in COMPILED:
        monkeypatch.setattr(module, "BLOCKS", None)
    assert (compiled, hash_in_runs()) == (_expected()[1],) * 2
