"""How long the upload of one attempt takes, and how fast our line is.

Rules: R11 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

LEAST_S: Final = 0.001
"""Nothing is told to have taken less."""

LEAST_STRETCH_BYTES: Final = 2_000_000
"""Fewer say nothing of a line: kernels take some hundred kilobytes of each stream at once."""

LEAST_LATE_BYTES: Final = 500_000
LEAST_LATE_SHARE: Final = 0.05
"""The lesser of both must have left before a pace is made of it: less may lie with our own kernel."""

LATE_AFTER_S: Final = 2.0
"""At least: what its first connections take says nothing of the line."""

NOTHING_S: Final = 20.0
"""A first chunk takes no longer over any line that carries rounds; a receiver that is never reached takes for ever."""

STOPPED_S: Final = 5.0
"""A line that is only thin takes some chunk in so long."""


class UploadMeter:
    """How long an upload takes, measured when it ends, extrapolated while it does not (R11: late arrivals are samples); and the
    line's pace, which is that of the fastest half of its bytes.

    The two differ where a receiver holds us up. A reducer of a large slice takes in more than others do, from all members at once,
    so what goes to it goes slowly: were that our pace, who sums most would seem the fastest, and sum still more in the next round.
    While the other slices are still under way our line is full.

    `last_s` is what the upload before it took, 0 where there was none: the others know of that already.
    """

    def __init__(self, last_s: float = 0.0) -> None:
        self._late_after_s = max(LATE_AFTER_S, last_s)
        self._begun_s = 0.0
        self._wanted: dict[int, int] = {}
        self._wanted_bytes = 0
        self._sent: set[int] = set()
        self._left: list[tuple[float, int]] = []
        """(when, bytes that had left by then), ascending; the beginning is not in it, for we may have had nothing to send yet."""

    def begin(self, now_s: float) -> None:
        """The attempt begins."""
        self._begun_s = now_s

    def want(self, chunk: int, num_bytes: int) -> None:
        """A chunk of so many bytes is to be sent."""
        self._wanted_bytes += num_bytes - self._wanted.get(chunk, 0)
        self._wanted[chunk] = num_bytes

    def spare(self, chunk: int) -> None:
        """A chunk need not be sent: its reducer has it already, or its slice has gone to another."""
        if chunk not in self._sent:
            self._wanted_bytes -= self._wanted.pop(chunk, 0)

    def sent(self, chunk: int, num_bytes: int, now_s: float) -> None:
        """A chunk left; one that is sent again counts once."""
        if chunk in self._sent:
            return
        self.want(chunk, num_bytes)
        self._sent.add(chunk)
        sent_bytes = self._sent_bytes + num_bytes
        if self._left and self._left[-1][0] == now_s:
            self._left.pop()
        self._left.append((now_s, sent_bytes))

    @property
    def _sent_bytes(self) -> int:
        return self._left[-1][1] if self._left else 0

    def seconds(self, now_s: float) -> float | None:
        """The time of the whole upload; None when there is nothing to tell. While nothing leaves it grows by so much and no more: what
        is left may be for a receiver whom we do not reach, and says nothing of our line.
        """
        if not self._wanted_bytes:
            return None
        if self._sent_bytes >= self._wanted_bytes:
            return max(LEAST_S, self._left[-1][0] - self._begun_s)
        if not self._left:
            return 2.0 * min(now_s - self._begun_s, NOTHING_S)
        last_s = self._left[-1][0]
        whole_s = (last_s - self._begun_s) * self._wanted_bytes / self._sent_bytes
        return max(LEAST_S, whole_s + min(now_s - last_s, STOPPED_S))

    def late_s(self, now_s: float) -> float:
        """The time of the whole upload at the pace since its first chunk, where it has taken longer than the last one; else 0. Once it
        is over, what it took. While too little has left to tell a pace it is 0, and where nothing leaves any more it does not grow:
        that is a receiver who is gone.
        """
        if not self._left or not self._wanted_bytes:
            return 0.0
        if self._sent_bytes >= self._wanted_bytes:
            took_s = self.seconds(now_s) or 0.0
            return took_s if took_s > self._late_after_s else 0.0
        now_s = min(now_s, self._left[-1][0] + STOPPED_S)
        least_bytes = min(LEAST_LATE_BYTES, LEAST_LATE_SHARE * self._wanted_bytes)
        if now_s - self._begun_s <= self._late_after_s or self._sent_bytes < least_bytes:
            return 0.0
        first_s = self._left[0][0]
        return first_s - self._begun_s + (now_s - first_s) * self._wanted_bytes / self._sent_bytes

    def bytes_per_s(self, now_s: float) -> int:
        """The pace of the fastest half of what was to be sent; of all where half is little or has not left; 0 when nothing was."""
        seconds = self.seconds(now_s)
        if not self._left or seconds is None:
            return 0
        pace, begin = self._wanted_bytes / seconds, 0
        least_bytes = max(LEAST_STRETCH_BYTES, self._wanted_bytes // 2)
        for now_at_s, sent_bytes in self._left:
            # the shortest stretch that ends here and holds enough: those that end later begin no earlier
            while begin + 1 < len(self._left) and sent_bytes - self._left[begin + 1][1] >= least_bytes:
                begin += 1
            began_at_s, before_bytes = self._left[begin]
            if sent_bytes - before_bytes >= least_bytes:
                pace = max(pace, (sent_bytes - before_bytes) / max(LEAST_S, now_at_s - began_at_s))
        return round(pace)
