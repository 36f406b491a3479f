"""A base is packed into shards of bfloat16, in order, whatever the length of its parts."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from averaging.data.packing.base_shards import MOST_BASE_SHARDS, BaseWeights, base_shard_values, write_base
from protocol.errors import ConfigError

VALUES = np.arange(1, 5001, dtype=np.uint16)


@pytest.mark.parametrize("cuts", [[], [1, 2, 4999], [2048, 4096], [100, 100, 3000]])
def test_shards_hold_the_values_in_order(tmp_path: Path, cuts: list[int]) -> None:
    entries = write_base(BaseWeights(len(VALUES), iter(np.split(VALUES, cuts))), tmp_path, 4096)
    assert [entry.num_tokens for entry in entries] == [2048, 2048, 904]
    assert all((entry.split, entry.num_bytes) == ("base", 2 * entry.num_tokens) for entry in entries)
    data = [(tmp_path / entry.sha256).read_bytes() for entry in entries]
    assert [sha256(part).hexdigest() for part in data] == [entry.sha256 for entry in entries]
    assert np.array_equal(np.frombuffer(b"".join(data), dtype="<u2"), VALUES)


@pytest.mark.parametrize("named", [4999, 5001])
def test_another_number_of_values_than_the_model_has_is_refused(tmp_path: Path, named: int) -> None:
    with pytest.raises(ConfigError, match=f"a base of 5000 values; expected {named}"):
        write_base(BaseWeights(named, iter([VALUES])), tmp_path, 4096)


def test_a_large_base_has_longer_shards_than_the_text() -> None:
    assert base_shard_values(1000, 4096) == 2048
    assert -(-(8 << 30) // base_shard_values(8 << 30, 4096)) <= MOST_BASE_SHARDS
