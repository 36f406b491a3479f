"""Counters of bytes on both lanes.

The payload of bulk streams is counted by kind: route, channel, unit, codec. The payload of the control lane, calls and directory
records, is counted by channel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from averaging.network.seams.interfaces import BulkCount, BulkKind, ControlCount, DirectoryEntry

MAX_KINDS: Final = 256
"""Bound against a bug of ours that makes up unit or codec names; further kinds are counted by route and channel alone."""


class BulkTally:
    """Bytes up and down of each kind."""

    def __init__(self) -> None:
        self._counts: dict[BulkKind, list[int]] = {}
        self.bytes_up = 0
        self.bytes_down = 0

    def sent(self, kind: BulkKind, num_bytes: int) -> None:
        """Count payload that left."""
        self.bytes_up += num_bytes
        self._of(kind)[0] += num_bytes

    def received(self, kind: BulkKind, num_bytes: int) -> None:
        """Count payload that came."""
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


DIRECTORY_CHANNEL: Final = "directory"
"""Directory traffic is counted under this name, which no call channel has."""

MAX_CHANNELS: Final = 64
"""Bound against a bug of ours that makes up channel names; further channels are counted under the empty name."""


class ControlTally:
    """Bytes up and down of each channel."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    @property
    def bytes_up(self) -> int:
        """Sent on all channels."""
        return sum(up for up, _ in self._counts.values())

    @property
    def bytes_down(self) -> int:
        """Received on all channels."""
        return sum(down for _, down in self._counts.values())

    def sent(self, channel: str, num_bytes: int) -> None:
        """Count payload that left."""
        self._of(channel)[0] += num_bytes

    def not_sent(self, channel: str, num_bytes: int) -> None:
        """Take back payload that was counted as sent but did not leave."""
        self._of(channel)[0] -= num_bytes

    def received(self, channel: str, num_bytes: int) -> None:
        """Count payload that came."""
        self._of(channel)[1] += num_bytes

    def published(self, key: str, subkey: str, value: bytes) -> None:
        """Count a record given to the directory: once, regardless of how many nodes store it, even if none does."""
        self.sent(DIRECTORY_CHANNEL, len(key.encode()) + len(subkey.encode()) + len(value))

    def looked_up(self, key: str) -> None:
        """Count a query for the records under a key."""
        self.sent(DIRECTORY_CHANNEL, len(key.encode()))

    def found(self, entries: Iterable[DirectoryEntry]) -> None:
        """Count the records that a query found, each once, regardless of how many nodes returned it."""
        self.received(DIRECTORY_CHANNEL, sum(len(entry.subkey.encode()) + len(entry.value) for entry in entries))

    def _of(self, channel: str) -> list[int]:
        count = self._counts.get(channel)
        if count is None:
            if len(self._counts) >= MAX_CHANNELS:
                channel = ""
            count = self._counts.setdefault(channel, [0, 0])
        return count

    def counts(self) -> tuple[ControlCount, ...]:
        """All channels so far, in the order in which they came."""
        return tuple(ControlCount(channel, up, down) for channel, (up, down) in self._counts.items())
