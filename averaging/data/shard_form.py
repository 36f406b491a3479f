"""The bytes of a shard of text: its tokens, and then a bit for each token where the data set says more about them.

Tokens are little-endian, two or four bytes each. A plane of bits follows for the tokens that count, and one for the first tokens of
documents, if the data set has them. The first token has the lowest bit of the first byte; bits after the last token are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from averaging.data.tokenizer import Bits, Tokens

TokenBytes = Literal[2, 4]


@dataclass(frozen=True, slots=True)
class ShardForm:
    """The layout of a data set's shards of text.

    Attributes:
        token_bytes: of one token.
        has_counts: whether a plane says which tokens count in a loss.
        has_starts: whether a plane says which tokens begin a document.
    """

    token_bytes: TokenBytes = 2
    has_counts: bool = False
    has_starts: bool = False

    @property
    def num_planes(self) -> int:
        """Bits beside each token."""
        return self.has_counts + self.has_starts

    def num_bytes(self, num_tokens: int) -> int:
        """Length of a shard of so many tokens."""
        return num_tokens * self.token_bytes + self.num_planes * self.plane_bytes(num_tokens)

    def plane_bytes(self, num_tokens: int) -> int:
        """Length of a plane of so many bits."""
        return -(-num_tokens // 8)

    def most_tokens(self, num_bytes: int) -> int:
        """The most tokens of a shard of at most so many bytes."""
        return (num_bytes - self.num_planes) * 8 // (8 * self.token_bytes + self.num_planes)

    def num_tokens(self, num_bytes: int) -> int | None:
        """Tokens of a shard of exactly so many bytes; None if there is no such shard."""
        found = max(0, self.most_tokens(num_bytes))
        while self.num_bytes(found) < num_bytes:
            found += 1
        return found if self.num_bytes(found) == num_bytes else None


def packed_shard(tokens: Tokens, planes: Sequence[Bits], token_bytes: TokenBytes) -> bytes:
    """The bytes of a shard, with these planes in the order of `ShardForm`."""
    parts = [tokens.astype(f"<u{token_bytes}").tobytes()]
    parts += [np.packbits(plane, bitorder="little").tobytes() for plane in planes]
    return b"".join(parts)
