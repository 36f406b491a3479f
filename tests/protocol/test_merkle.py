from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError
from protocol.merkle import leaf_hash, merkle_root


def _leaves(count: int) -> list[bytes]:
    return [leaf_hash(bytes([i])) for i in range(count)]


def test_the_root_changes_with_any_leaf_with_their_order_and_with_their_number() -> None:
    for count in range(1, 12):
        leaves = _leaves(count)
        root = merkle_root(leaves)
        for position in range(count):
            changed = [*leaves[:position], leaf_hash(b"other"), *leaves[position + 1 :]]
            assert merkle_root(changed) != root
        assert merkle_root([*leaves, leaf_hash(b"more")]) != root
        if count > 1:
            assert merkle_root(leaves[::-1]) != root


def test_repeating_the_last_leaf_of_an_odd_level_is_another_tree() -> None:
    leaves = _leaves(3)
    assert merkle_root(leaves) != merkle_root([*leaves, leaves[-1]])


def test_an_inner_node_cannot_be_passed_off_as_a_leaf() -> None:
    a, b = _leaves(2)
    assert merkle_root([a, b]) != leaf_hash(a + b)


def test_no_leaves_have_no_root() -> None:
    with pytest.raises(LocalProtocolError):
        merkle_root([])
