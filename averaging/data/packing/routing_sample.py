"""The documents on which experts are compared: some of those that are trained on, the same ones in whatever order they come.

Of each the first window is measured with every expert; who has the lowest loss tells where documents like it belong
(averaging/data/packing/reassignment_core.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from averaging.data.packing.document_routing import ReadTexts, document_prefixes
from averaging.data.tokenizer import Tokenizer, Tokens
from protocol.errors import ConfigError

SAMPLE_WINDOWS: Final = 256
"""Enough for some dozens an expert; measuring them costs an expert about as much as its held-out loss."""

MOST_TOKENS: Final = 256
"""That are predicted in a window: what a router sees of a document is not much more."""


@dataclass(frozen=True)
class RoutingSample:
    """D documents: the prefix of each, by which it is routed, its first window, W tokens, and, where losses told it, whose it is."""

    prefixes: Sequence[bytes]
    windows: Sequence[Tokens]
    owners: Sequence[int] = ()

    @property
    def window_tokens(self) -> int:
        """W."""
        return len(self.windows[0])


def window_tokens(context_tokens: int) -> int:
    """W, of a model with so long a context."""
    return min(context_tokens, MOST_TOKENS) + 1


def routing_sample(read: ReadTexts, tokenizer: Tokenizer, num_tokens: int, most: int = SAMPLE_WINDOWS) -> RoutingSample:
    """The training documents with the lowest hashes of those whose prefix has a window of `num_tokens`, at most so many. Reads all
    text once; blocks.

    Raises:
        ConfigError: there are fewer than two.
    """
    heap: list[tuple[int, bytes, Tokens]] = []
    taken: set[int] = set()
    for beginning in document_prefixes(read()):
        prefix = beginning.prefix
        place = -int.from_bytes(sha256(prefix).digest(), "big")
        if beginning.split != "train" or place in taken or (len(heap) == most and place < heap[0][0]):
            continue
        tokens = tokenizer.encode(prefix)[:num_tokens]
        if len(tokens) < num_tokens:
            continue
        heapq.heappush(heap, (place, prefix, tokens))
        taken.add(place)
        if len(heap) > most:
            heapq.heappop(heap)
    if len(heap) < 2:
        raise ConfigError(
            f"data: {len(heap)} documents to train on that begin with {num_tokens} tokens",
            "at least two, to compare experts on",
            "add longer documents, or leave out experts.reassign_every_rounds",
        )
    chosen = sorted(heap, key=lambda each: -each[0])
    return RoutingSample([prefix for _, prefix, _ in chosen], [tokens for _, _, tokens in chosen])
