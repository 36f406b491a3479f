"""Measures how long the upload of one attempt takes, and how fast our line is.

Rules: R11 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

LEAST_S: Final = 0.001
"""The least time that is reported."""

LEAST_STRETCH_BYTES: Final = 2_000_000
"""The least bytes from which a line's rate is computed: kernels take some hundred kilobytes of each stream at once."""

LEAST_LATE_BYTES: Final = 500_000
LEAST_LATE_SHARE: Final = 0.05
"""Bytes, or share of the upload, that must have left before a rate is computed; the lesser of both. Fewer bytes may still be in
our own kernel.
"""

LATE_AFTER_S: Final = 2.0
"""The least time before an upload counts as late: connecting says nothing of the line."""

NOTHING_S: Final = 20.0
"""The longest time for a first chunk over any line that carries rounds; a receiver that cannot be reached takes for ever."""

STOPPED_S: Final = 5.0
"""An upload that sends nothing for this long has stopped; even a thin line takes a chunk in that time."""


class UploadMeter:
    """How long an upload takes, and the rate of the line, from the fastest half of its bytes. The time is measured when the upload
    ends, and extrapolated until then (R11: late arrivals are samples).

    The two differ if a receiver is the limit. A reducer of a large slice receives more than others, from all members at once, so
    our bytes to it go slowly. If the whole upload gave our rate, the peer that sums most would seem the fastest, and would sum
    still more in the next round. While other slices are being sent, our line is full.

    A reducer that takes nothing holds its slice until another one gets it. The time until then is not of the upload if nothing else
    was to be sent, or each such reducer would make the next deadlines longer.

    `last_s` is the duration of the previous upload, 0 if there was none: the others know it already.
    """

    def __init__(self, last_s: float = 0.0) -> None:
        self._late_after_s = max(LATE_AFTER_S, last_s)
        self._begun_s = 0.0
        self._wanted: dict[int, int] = {}
        self._wanted_bytes = 0
        self._was_wanted = False
        self._idle_s = 0.0
        """Time in which nothing was to be sent: every time below is without it."""

        self._sent: set[int] = set()
        self._left: list[tuple[float, int]] = []
        """(time, bytes that had left by then), ascending. The beginning is not in it, because there may have been nothing to send
        yet.
        """

    def begin(self, now_s: float) -> None:
        """The attempt begins."""
        self._begun_s = now_s

    def want(self, chunk: int, num_bytes: int, now_s: float) -> None:
        """A chunk of this many bytes is to be sent."""
        if self._was_wanted and chunk not in self._sent and self._sent_bytes >= self._wanted_bytes:
            last_s = self._left[-1][0] if self._left else self._begun_s
            self._idle_s = max(self._idle_s, now_s - last_s)
        self._was_wanted = True
        self._wanted_bytes += num_bytes - self._wanted.get(chunk, 0)
        self._wanted[chunk] = num_bytes

    def spare(self, chunk: int) -> None:
        """A chunk need not be sent: its reducer has it already, or its slice has a new reducer."""
        if chunk not in self._sent:
            self._wanted_bytes -= self._wanted.pop(chunk, 0)

    def sent(self, chunk: int, num_bytes: int, now_s: float) -> None:
        """A chunk left; one that is sent again counts once."""
        if chunk in self._sent:
            return
        self.want(chunk, num_bytes, now_s)
        self._sent.add(chunk)
        now_s -= self._idle_s
        sent_bytes = self._sent_bytes + num_bytes
        if self._left and self._left[-1][0] == now_s:
            self._left.pop()
        self._left.append((now_s, sent_bytes))

    @property
    def _sent_bytes(self) -> int:
        return self._left[-1][1] if self._left else 0

    def seconds(self, now_s: float) -> float | None:
        """The time of the whole upload; None if nothing is to be sent. While nothing leaves it grows only up to a limit: the rest
        may be for a receiver that cannot be reached, which says nothing of our line.
        """
        if not self._wanted_bytes:
            return None
        now_s -= self._idle_s
        if self._sent_bytes >= self._wanted_bytes:
            return max(LEAST_S, self._left[-1][0] - self._begun_s)
        if not self._left:
            return 2.0 * min(now_s - self._begun_s, NOTHING_S)
        last_s = self._left[-1][0]
        whole_s = (last_s - self._begun_s) * self._wanted_bytes / self._sent_bytes
        return max(LEAST_S, whole_s + min(now_s - last_s, STOPPED_S))

    def late_s(self, now_s: float) -> float:
        """The time of the whole upload at the rate since its first chunk, if that is longer than the last one; else 0. After its
        end, the time that it took. It is 0 while too little has left for a rate. It stops growing if nothing leaves: the receiver
        is then gone.
        """
        if not self._left or not self._wanted_bytes:
            return 0.0
        if self._sent_bytes >= self._wanted_bytes:
            took_s = self.seconds(now_s) or 0.0
            return took_s if took_s > self._late_after_s else 0.0
        now_s = min(now_s - self._idle_s, self._left[-1][0] + STOPPED_S)
        least_bytes = min(LEAST_LATE_BYTES, LEAST_LATE_SHARE * self._wanted_bytes)
        if now_s - self._begun_s <= self._late_after_s or self._sent_bytes < least_bytes:
            return 0.0
        first_s = self._left[0][0]
        return first_s - self._begun_s + (now_s - first_s) * self._wanted_bytes / self._sent_bytes

    def bytes_per_s(self, now_s: float) -> int:
        """The rate of the fastest half of the bytes to be sent; of all bytes if half is too few or has not left; 0 if there were
        none.
        """
        seconds = self.seconds(now_s)
        if not self._left or seconds is None:
            return 0
        rate, begin = self._wanted_bytes / seconds, 0
        least_bytes = max(LEAST_STRETCH_BYTES, self._wanted_bytes // 2)
        for now_at_s, sent_bytes in self._left:
            # the shortest stretch that ends here and is long enough: later ones begin no earlier
            while begin + 1 < len(self._left) and sent_bytes - self._left[begin + 1][1] >= least_bytes:
                begin += 1
            began_at_s, before_bytes = self._left[begin]
            if sent_bytes - before_bytes >= least_bytes:
                rate = max(rate, (sent_bytes - before_bytes) / max(LEAST_S, now_at_s - began_at_s))
        return round(rate)
