"""The directory of a world in memory: records under a key until they expire, as in the DHT."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import structlog

from averaging.network.seams.directory import Record, RecordRule, directory_id
from averaging.network.seams.interfaces import DirectoryEntry

log = structlog.get_logger()

MAX_ANSWER_BYTES: Final = 1 << 22
"""Bytes of an answer that a message of the DHT carries. A key with more is answered with nothing at all, as there."""


class MemoryDirectory:
    """All records of one world that the rule allows."""

    def __init__(self, rule: RecordRule) -> None:
        self._rule = rule
        self._records: dict[str, dict[str, DirectoryEntry]] = defaultdict(dict)

    def store(self, key: str, entry: DirectoryEntry, now_unix_s: float) -> bool:
        """Keep a record if the rule allows it; the later expiry wins."""
        reason = self._rule(Record(entry.subkey, entry.value, entry.expires_unix_s, directory_id(key)), now_unix_s)
        known = self._records[key].get(entry.subkey)
        if reason or (known is not None and known.expires_unix_s >= entry.expires_unix_s):
            log.debug("record_refused", subkey=entry.subkey, reason=reason or "older than the one we have")
            return False
        self._records[key][entry.subkey] = entry
        return True

    def live(self, key: str, now_unix_s: float) -> Sequence[DirectoryEntry]:
        """The records under a key that have not expired, by subkey; none if they are more than an answer carries."""
        found = tuple(e for _, e in sorted(self._records[key].items()) if e.expires_unix_s > now_unix_s)
        return found if sum(len(e.subkey) + len(e.value) for e in found) <= MAX_ANSWER_BYTES else ()
