"""How much one peer may download here in a while: for strangers, who could ask for everything again and again.

A peer's allowance begins full and fills again evenly, as in a token bucket. An answer larger than a whole allowance is given when that
is full, and paid for by waiting longer, so that a small quota locks nobody out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocol.ids import PeerId

MOST_KNOWN: Final = 4096
"""Peers whose allowance is remembered. Of more those are forgotten that have most left."""


_ROUNDING_BYTES: Final = 0.5


class ByteQuota:
    """The allowances of peers at one donor.

    Attributes:
        most_bytes: a full allowance.
        window_s: seconds in which an empty one fills.
        is_limited: whether a peer has an allowance at all; keepers and members have none.
        now_s: monotonic seconds.
    """

    def __init__(
        self, most_bytes: int, window_s: float, is_limited: Callable[[PeerId], bool], now_s: Callable[[], float]
    ) -> None:
        self.most_bytes = most_bytes
        self.window_s = window_s
        self._is_limited = is_limited
        self._now_s = now_s
        self._left: dict[PeerId, tuple[float, float]] = {}
        """Bytes left, and when that was so, of peers whose allowance was not full."""

    def takes(self, peer: PeerId, num_bytes: int) -> bool:
        """Whether a peer may have so many bytes now; then they are taken off its allowance."""
        if not self._is_limited(peer):
            return True
        left_bytes, now_s = self._left_bytes(peer), self._now_s()
        if left_bytes + _ROUNDING_BYTES < min(num_bytes, self.most_bytes):
            return False
        self._left[peer] = (left_bytes - num_bytes, now_s)
        if len(self._left) > MOST_KNOWN:
            del self._left[max(self._left, key=self._left_bytes)]
        return True

    def _left_bytes(self, peer: PeerId) -> float:
        left_bytes, at_s = self._left.get(peer, (float(self.most_bytes), 0.0))
        filled = (self._now_s() - at_s) * self.most_bytes / self.window_s
        return min(float(self.most_bytes), left_bytes + filled)
