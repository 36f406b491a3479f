"""The layout of shards: lengths, and what is not such a shard."""

from __future__ import annotations

import numpy as np
import pytest

from averaging.data.shard_form import ShardForm, packed_shard

FORMS = [ShardForm(size, counts, starts) for size in (2, 4) for counts in (False, True) for starts in (False, True)]  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_length_tells_the_number_of_tokens(form: ShardForm) -> None:
    for num_tokens in [*range(40), 4095, 4096, 1 << 20]:
        assert form.num_tokens(form.num_bytes(num_tokens)) == num_tokens
        assert form.most_tokens(form.num_bytes(num_tokens)) <= num_tokens
        assert form.num_bytes(max(0, form.most_tokens(4096 + num_tokens))) <= 4096 + num_tokens


def test_a_length_between_two_shards_is_none() -> None:
    assert ShardForm().num_tokens(3) is None
    assert ShardForm(2, True).num_tokens(2) is None
    assert ShardForm(2, True, True).num_tokens(3) is None


def test_planes_follow_the_tokens_and_the_first_token_has_the_lowest_bit() -> None:
    tokens, ones = np.array([1, 513], dtype=np.uint16), np.array([True, False])
    assert packed_shard(tokens, [], 2) == b"\x01\x00\x01\x02"
    assert packed_shard(tokens, [ones, ~ones], 2) == b"\x01\x00\x01\x02\x01\x02"
