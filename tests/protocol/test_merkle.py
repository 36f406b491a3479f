from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.merkle import MerkleTree, leaf_hash, merkle_root, node_hash, path_of_one, range_root


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


# --- a range of leaves --------------------------------------------------------------------------------------------------------


def _ranges(count: int) -> list[tuple[int, int]]:
    return [(first, stop) for first in range(count) for stop in range(first + 1, count + 1)]


def test_any_range_and_its_path_make_the_root_of_all_in_two_hashes_a_level() -> None:
    for count in range(1, 20):
        leaves = _leaves(count)
        for first, stop in _ranges(count):
            path = MerkleTree.over(leaves).path(first, stop)
            assert len(path) <= 2 * (count - 1).bit_length()
            assert range_root(count, first, leaves[first:stop], path) == merkle_root(leaves)
    assert MerkleTree.over(leaves).path(0, len(leaves)) == ()


def test_another_leaf_another_place_or_another_path_makes_another_root() -> None:
    leaves = _leaves(11)
    root = merkle_root(leaves)
    for first, stop in _ranges(11):
        part, path = leaves[first:stop], MerkleTree.over(leaves).path(first, stop)
        for position in range(len(part)):
            changed = [*part[:position], leaf_hash(b"other"), *part[position + 1 :]]
            assert range_root(11, first, changed, path) != root
        for position in range(len(path)):
            changed = [*path[:position], leaf_hash(b"other"), *path[position + 1 :]]
            assert range_root(11, first, part, changed) != root


def test_a_path_of_another_length_and_a_range_beyond_the_leaves_are_refused() -> None:
    leaves = _leaves(11)
    path = MerkleTree.over(leaves).path(3, 6)
    for wrong in (path[:-1], (*path, leaves[0])):
        with pytest.raises(RemoteProtocolError, match="path"):
            range_root(11, 3, leaves[3:6], wrong)
    for first, part in ((9, leaves[:3]), (-1, leaves[:3]), (3, [])):
        with pytest.raises(RemoteProtocolError, match="a range of 11"):
            range_root(11, first, part, path)


def test_a_node_of_two_leaves_is_the_root_of_their_tree() -> None:
    leaves = [leaf_hash(b"a"), leaf_hash(b"b")]
    assert node_hash(*leaves) == merkle_root(leaves)


def test_the_path_of_one_leaf_follows_from_those_of_any_range_that_holds_it() -> None:
    for count in range(1, 20):
        leaves = _leaves(count)
        tree = MerkleTree.over(leaves)
        for first, stop in _ranges(count):
            path = tree.path(first, stop)
            for leaf in range(first, stop):
                found = path_of_one(count, first, leaves[first:stop], path, leaf)
                assert found == tree.path(leaf, leaf + 1)
                assert range_root(count, leaf, [leaves[leaf]], found) == tree.root


def test_a_leaf_outside_the_range_has_no_path_in_it() -> None:
    leaves = _leaves(7)
    for leaf in (1, 5):
        with pytest.raises(RemoteProtocolError, match=rf"leaf {leaf}; expected one of \[2, 5\)"):
            path_of_one(7, 2, leaves[2:5], MerkleTree.over(leaves).path(2, 5), leaf)
