"""Distinct types for the things that are named on the wire.

Hashes are 32 raw bytes everywhere inside the program; `short` is for people only.
"""

from __future__ import annotations

from typing import Final, NewType

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58 ("12D3KooW..."): the hash form of an Ed25519 public key."""

UnitName = NewType("UnitName", str)
"""The name of a unit, a set of tensors averaged together: "fragment-0"."""

RunId = NewType("RunId", bytes)
"""32 bytes: the fingerprint of the run's signed manifest."""

CommitId = NewType("CommitId", bytes)
"""32 bytes: hash(parent commit id, commit record bytes). The genesis id is the hash of the start record."""

Root = NewType("Root", bytes)
"""32 bytes: a Merkle root, of a contribution, of a slice's result or of a unit's state."""

PROTOCOL_VERSION: Final = 2
"""Version of everything that two strangers must agree on. Peers with another version are refused before they join."""

READABLE_VERSIONS: Final = frozenset((1, PROTOCOL_VERSION))
"""Versions of stored statements that are still read: manifests, start records, bans and certificates."""

HASH_BYTES: Final = 32


def short(value: bytes | str) -> str:
    """A short form for logs and screens: 8 hex digits of a hash, or the last 6 letters of a peer id."""
    return value[:4].hex() if isinstance(value, bytes) else value[-6:]
