"""Merkle trees over BLAKE3: one short root stands for a long list of chunks.

Leaves and inner nodes are hashed under different keys, so that no inner node can be passed off as a leaf (as with the prefixes of
RFC 6962, section 2.1). A node without a neighbour is promoted unchanged.

BLAKE3 (github.com/BLAKE3-team/BLAKE3-specs) is as strong as SHA-256 and several times as fast, since it uses vector instructions
inside one message. A round hashes the encodings of each value four times and its state once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import Root

_LEAF_KEY: Final = b"potluck merkle leaf".ljust(32, b"\0")
_NODE_KEY: Final = b"potluck merkle node".ljust(32, b"\0")


def leaf_hash(*parts: bytes | memoryview) -> bytes:
    """The 32-byte hash of one leaf's content, which may lie in several parts."""
    first, *rest = parts or (b"",)
    hasher = blake3(first, key=_LEAF_KEY)
    for part in rest:
        hasher.update(part)
    return hasher.digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The 32-byte hash of an inner node over its two children; the root of a tree of two leaves."""
    return blake3(left + right, key=_NODE_KEY).digest()


@dataclass(frozen=True, slots=True)
class MerkleTree:
    """A whole tree, for callers that need several ranges of it.

    Attributes:
        levels: hashes of 32 bytes in order, from the leaves to the root alone.
    """

    levels: tuple[Sequence[bytes], ...]

    @classmethod
    def over(cls, leaves: Sequence[bytes]) -> MerkleTree:
        """The tree over leaf hashes (32 bytes each), in order.

        Raises:
            LocalProtocolError: no leaves; an empty list has no root.
        """
        if not leaves:
            raise LocalProtocolError("a Merkle root over no leaves", "at least one leaf")
        levels: list[Sequence[bytes]] = [leaves]
        while len(levels[-1]) > 1:
            levels.append(_above(levels[-1]))
        return cls(tuple(levels))

    @property
    def root(self) -> Root:
        """The hash at the top."""
        return Root(self.levels[-1][0])

    def path(self, first: int, stop: int) -> tuple[bytes, ...]:
        """The hashes that `range_root` needs besides the leaf hashes [first, stop): at most two a level, left and right of the
        range, from the leaves upwards.
        """
        path: list[bytes] = []
        for level in self.levels[:-1]:
            if first % 2:
                path.append(level[first - 1])
            if stop % 2 and stop < len(level):
                path.append(level[stop])
            first, stop = first // 2, -(-stop // 2)
        return tuple(path)


def merkle_root(leaves: Sequence[bytes]) -> Root:
    """The root over leaf hashes (32 bytes each), in order. Raises as `MerkleTree.over` does."""
    return MerkleTree.over(leaves).root


def range_root(num_leaves: int, first: int, leaves: Sequence[bytes], path: Sequence[bytes]) -> Root:
    """The root over `num_leaves` leaf hashes, from `leaves`, which begin at `first`, and the `path` for all others.

    Raises:
        RemoteProtocolError: an empty range, one beyond the leaves, or a path of another length.
    """
    return _climbed(num_leaves, first, leaves, path, first)[0]


def path_of_one(
    num_leaves: int, first: int, leaves: Sequence[bytes], path: Sequence[bytes], leaf: int
) -> tuple[bytes, ...]:
    """The path of one leaf, as `MerkleTree.path` has it, from the hashes of a range and the path of that range.

    Args:
        num_leaves, first, leaves, path: as in `range_root`.
        leaf: its number, in the range.

    Raises:
        RemoteProtocolError: as `range_root`, or a leaf outside the range.
    """
    if not first <= leaf < first + len(leaves):
        raise RemoteProtocolError(f"leaf {leaf}", f"one of [{first}, {first + len(leaves)})")
    return tuple(_climbed(num_leaves, first, leaves, path, leaf)[1])


def _climbed(
    num_leaves: int, first: int, leaves: Sequence[bytes], path: Sequence[bytes], leaf: int
) -> tuple[Root, list[bytes]]:
    """The root above a range, and the neighbours of one leaf's line on the way there."""
    if not 0 <= first < first + len(leaves) <= num_leaves:
        found = f"leaves [{first}, {first + len(leaves)})"
        raise RemoteProtocolError(found, f"a range of {num_leaves}")
    level, left, stop, beside = list(leaves), list(path), first + len(leaves), list[bytes]()
    while num_leaves > 1:
        if first % 2:
            level.insert(0, _taken(left))
            first -= 1
        if stop % 2 and stop < num_leaves:
            level.append(_taken(left))
            stop += 1
        if (leaf ^ 1) < num_leaves:
            beside.append(level[(leaf ^ 1) - first])
        level, first, stop, num_leaves = _above(level), first // 2, -(-stop // 2), -(-num_leaves // 2)
        leaf //= 2
    if left:
        raise RemoteProtocolError(f"{len(path)} hashes of a path", f"{len(path) - len(left)}")
    return Root(level[0]), beside


def _taken(path: list[bytes]) -> bytes:
    if not path:
        raise RemoteProtocolError("a path that ends too early", "the hashes next to the range")
    return path.pop(0)


def _above(level: Sequence[bytes]) -> list[bytes]:
    """The next level of a tree: pairs hashed, the last node promoted if it has no neighbour."""
    paired = [node_hash(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return [*paired, *level[len(level) & ~1 :]]
