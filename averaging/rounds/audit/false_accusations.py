"""Accusations whose proofs convicted nobody. They are remembered, so that nobody makes us fetch proofs in vain again and again.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from protocol.ids import PeerId

MOST_FAILED: Final = 256
"""Proofs that are remembered. Beyond them all are forgotten, and each may be fetched once more."""

MOST_FALSE: Final = 3
"""False accusations of one peer. It is not listened to after that: each may cost a fetch as long as the longest proof."""


class FalseAccusations:
    """The proofs that convicted nobody, by their hashes, and who spoke of them."""

    def __init__(self) -> None:
        self._failed: set[bytes] = set()
        self._accusers = Counter[PeerId]()

    def may_be_true(self, source: PeerId, proof_hash: bytes) -> bool:
        """Whether this proof is worth a fetch, as far as earlier ones tell."""
        return proof_hash not in self._failed and self._accusers[source] < MOST_FALSE

    def note(self, source: PeerId, proof_hash: bytes) -> None:
        """The proof that this peer speaks of convicts nobody."""
        self._accusers[source] += 1
        if len(self._failed) >= MOST_FAILED:
            self._failed.clear()
        self._failed.add(proof_hash)
