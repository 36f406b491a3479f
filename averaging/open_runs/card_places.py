"""The places of a node of a directory: which hosts' cards it keeps where more hosts ask than there are places. Pure but for its seed.

First come, first served would let somebody with enough host keys fill a node for ever. So hosts are drawn anew in each period, by a
hash with a seed that the node alone knows: a share of the keys gets the same share of the places, and cannot choose whose it takes.
Half of the places are drawn, since the cards of the last period stay until they expire.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Final

PERIOD_S: Final = 1800
"""Hosts are drawn anew so often, in seconds of Unix time: three times as long as a card stays."""

MOST_ASKING: Final = 4096
"""Hosts that are counted. Each has done the work of a stamp; beyond that the one that asked longest ago is forgotten."""

_SEED_BYTES: Final = 32


class CardPlaces:
    """The hosts of one node that have a place, and those that asked for one.

    Args:
        most: places.
        asked_for_s: seconds for which a host that asks counts.
        seed: secret bytes, at most 64; drawn where none are given.
    """

    def __init__(self, most: int, asked_for_s: float, seed: bytes = b"") -> None:
        self._most, self._asked_for_s = most, asked_for_s
        self._seed = seed or secrets.token_bytes(_SEED_BYTES)
        self._kept: dict[str, float] = {}
        """Hosts with a place, and until when, in seconds of Unix time."""

        self._asking: dict[str, float] = {}
        """Hosts by when they asked last, the newest last."""

    def takes(self, host: str, until_unix_s: float, now_unix_s: float) -> bool:
        """Give a host a place until its card expires, if there is one and the host is drawn; keep it where it has one already."""
        self._asks(host, now_unix_s)
        if not self._is_drawn(host, now_unix_s) or not self._has_room(host, now_unix_s):
            return False
        self._kept[host] = max(until_unix_s, self._kept.get(host, 0.0))
        return True

    def knows(self, host: str) -> bool:
        """Whether a host asked lately."""
        return host in self._asking

    def _asks(self, host: str, now_unix_s: float) -> None:
        self._asking.pop(host, None)
        self._asking[host] = now_unix_s
        oldest = next(iter(self._asking))
        while len(self._asking) > MOST_ASKING or self._asking[oldest] < now_unix_s - self._asked_for_s:
            del self._asking[oldest]
            oldest = next(iter(self._asking))

    def _is_drawn(self, host: str, now_unix_s: float) -> bool:
        if len(self._asking) <= self._most:
            return True
        text = f"{int(now_unix_s) // PERIOD_S} {host}".encode()
        drawn = int.from_bytes(blake2b(text, digest_size=8, key=self._seed).digest(), "big") / 2.0**64
        return drawn < self._most / (2 * len(self._asking))

    def _has_room(self, host: str, now_unix_s: float) -> bool:
        if host not in self._kept and len(self._kept) >= self._most:
            self._kept = {known: until_s for known, until_s in self._kept.items() if until_s > now_unix_s}
        return host in self._kept or len(self._kept) < self._most
