"""Bounds that every message checks when it is made."""

from __future__ import annotations

from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES

MAX_TOKENS: Final = 1 << 53
"""Exact as a float64, and more than any run counts."""


def require(is_fine: bool, found: str, expected: str) -> None:
    """Raise RemoteProtocolError unless `is_fine`."""
    if not is_fine:
        raise RemoteProtocolError(found, expected, "the message was dropped")


def require_hash(name: str, value: bytes) -> None:
    """32 bytes."""
    require(len(value) == HASH_BYTES, f"{name} of {len(value)} bytes", f"{HASH_BYTES} bytes")


def require_tokens(tokens: int) -> None:
    """A count of tokens."""
    require(0 <= tokens <= MAX_TOKENS, f"{tokens} tokens", "0 to 2^53")
