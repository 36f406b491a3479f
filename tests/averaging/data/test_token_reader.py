"""Windows of packed text over the ends of shards: tokens, what counts, and where documents begin."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from averaging.data.shard_form import packed_shard
from averaging.data.token_reader import TokenReader
from protocol.errors import StorageError

RANDOM = np.random.default_rng(1)
TOKENS = RANDOM.integers(0, 60_000, 101).astype(np.uint16)
COUNTED = RANDOM.random(101) < 0.4
BEGINS = RANDOM.random(101) < 0.1
CUTS = [0, 13, 30, 31, 101]


def _reader(folder: Path) -> TokenReader:
    paths = []
    for begin, stop in pairwise(CUTS):
        part = slice(begin, stop)
        paths.append(folder / str(begin))
        paths[-1].write_bytes(packed_shard(TOKENS[part], [COUNTED[part], BEGINS[part]], 2))
    return TokenReader(paths, 2, has_counts=True, has_starts=True)


def test_every_window_reads_what_was_packed(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    assert reader.num_tokens == 101
    for start in range(101):
        for length in range(1, min(40, 102 - start)):
            part = slice(start, start + length)
            assert np.array_equal(reader.read(start, length), TOKENS[part])
            assert np.array_equal(reader.counted(start, length), COUNTED[part])
            assert np.array_equal(reader.begins(start, length), BEGINS[part])


def test_the_first_token_of_a_document_is_no_target_and_the_others_are_as_they_count(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    assert np.array_equal(reader.targets_counted(0, 101), (COUNTED & ~BEGINS)[1:])
    assert reader.num_counted([0, 50], 20) == int((COUNTED & ~BEGINS)[[*range(1, 20), *range(51, 70)]].sum())


def test_a_window_begins_with_its_document_unless_that_is_a_window_away(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    for start, found in enumerate(reader.aligned(range(101), 8)):
        before = [place for place in range(max(0, start - 7), start + 1) if BEGINS[place]]
        assert found == (before[-1] if before else start)


def test_without_planes_all_counts_and_windows_stay(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(TOKENS.tobytes())
    reader = TokenReader([tmp_path / "plain"])
    assert not reader.is_marked
    assert reader.targets_counted(5, 10).all()
    assert reader.aligned([3, 40], 8) == (3, 40)


def test_a_shard_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(bytes(5))
    with pytest.raises(StorageError, match="cut has 5 bytes"):
        TokenReader([tmp_path / "cut"], 2, has_counts=True, has_starts=True)
