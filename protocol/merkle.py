"""Merkle trees over SHA-256: one short root stands for a long list of chunks.

Leaves and inner nodes are hashed under different prefixes, so that no inner node can be passed off as a leaf (RFC 6962, section
2.1). A node without a neighbour is promoted unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from protocol.errors import LocalProtocolError
from protocol.ids import Root


def leaf_hash(*parts: bytes | memoryview) -> bytes:
    """The 32-byte hash of one leaf's content, which may lie in several parts."""
    hasher = sha256(b"\0")
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def merkle_root(leaves: Sequence[bytes]) -> Root:
    """The root over leaf hashes (32 bytes each), in order.

    Raises:
        LocalProtocolError: no leaves; an empty list has no root.
    """
    if not leaves:
        raise LocalProtocolError("a Merkle root over no leaves", "at least one leaf")
    level = list(leaves)
    while len(level) > 1:
        paired = [sha256(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        level = paired + level[len(level) & ~1 :]
    return Root(level[0])
