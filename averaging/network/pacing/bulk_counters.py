"""Counts the payload of bulk streams by kind: way, channel, unit, codec."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from averaging.network.seams.interfaces import BulkCount, BulkKind

MAX_KINDS: Final = 256
"""Units and codecs are our own words; what a bug of ours would add beyond them is counted by way and channel alone."""


class BulkTally:
    """Bytes up and down of each kind."""

    def __init__(self) -> None:
        self._counts: dict[BulkKind, list[int]] = {}
        self.bytes_up = 0
        self.bytes_down = 0

    def sent(self, kind: BulkKind, num_bytes: int) -> None:
        """So much payload left."""
        self.bytes_up += num_bytes
        self._of(kind)[0] += num_bytes

    def received(self, kind: BulkKind, num_bytes: int) -> None:
        """So much payload came."""
        self.bytes_down += num_bytes
        self._of(kind)[1] += num_bytes

    def _of(self, kind: BulkKind) -> list[int]:
        count = self._counts.get(kind)
        if count is None:
            if len(self._counts) >= MAX_KINDS:
                kind = replace(kind, unit="", codec="")
            count = self._counts.setdefault(kind, [0, 0])
        return count

    def counts(self) -> tuple[BulkCount, ...]:
        """All kinds so far, in the order in which they came."""
        return tuple(BulkCount(kind, up, down) for kind, (up, down) in self._counts.items())
