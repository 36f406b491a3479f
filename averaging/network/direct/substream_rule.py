"""Decides when a stream should have more connections, because one does not fill the line.

TCP that reacts to loss sends about MSS / RTT x 1.22 / sqrt(share lost) (Mathis et al. 1997; CUBIC, Linux's default, a little more).
Over a long distance a few lost packets hold it far below the line's rate, and several connections carry several times as much. A
connection also never holds more unacknowledged bytes than its buffer.

The kernel's statistics show both cases: there is always more to send, no queue at the line, and packets were lost or the buffer was
full. BBR does not react to single losses, so its losses say nothing. The constants were measured; see tests/benchmarks/LOG.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from averaging.network.pacing.line_rate import PathStats, is_queued

MOST_SUBSTREAMS: Final = 8
"""Most substreams of a stream, its first connection not counted. CUBIC needs this number on a long line that loses packets."""

WINDOW_S: Final = 1.0
WINDOW_RTTS: Final = 8.0
"""The longer of both is the length of a window: CUBIC's rate goes up and down within it."""

SHORTEST_RTT_S: Final = 0.01
"""With a shorter round trip a connection recovers from a loss at once."""

GAIN: Final = 1.1
WINDOWS_TO_GAIN: Final = 3
"""Doubled connections must carry `GAIN` times as much in one of `WINDOWS_TO_GAIN` windows; the first is their slow start."""

HELD_SHARE: Final = 0.5
"""Share of the time in which a full send buffer must have held a connection back."""

USED: Final = 0.8
"""Share of the line's rate: a stream that sends this much is held back by our own limit."""


@dataclass(frozen=True, slots=True)
class _Begin:
    """The start of a window: sums over all connections."""

    now_s: float
    num_paths: int
    acked_bytes: int
    num_lost: int
    held_s: float


class SubstreamRule:
    """The rule of one stream. `num_useful` is the number of connections that have helped so far."""

    def __init__(self) -> None:
        self.num_useful = 1
        self._begin: _Begin | None = None
        self._before_bytes_per_s = 0.0
        self._num_asked_at = 0
        self._num_judged = 0
        self._is_settled = False

    def decide(self, paths: Sequence[PathStats], paced_bytes_per_s: float, now_s: float) -> int:
        """The number of connections that the stream should have, mostly its present one. Call it some four times a second while
        there is more to send.

        Args:
            paths: the connections that carry the stream.
            paced_bytes_per_s: the limit of all of them together; infinite if there is none.
        """
        number, begin = len(paths), self._begin
        if self._is_settled or not all(path.waiting_bytes for path in paths):
            self._begin = None
            return number
        if begin is None or begin.num_paths != number:
            self._begin = _begin(paths, now_s)
            return number
        longest_s, seconds = max(path.best_rtt_s for path in paths), now_s - begin.now_s
        if seconds < max(WINDOW_S, WINDOW_RTTS * longest_s):
            return number
        self._begin = _begin(paths, now_s)
        carried = (self._begin.acked_bytes - begin.acked_bytes) / seconds
        if self._is_in_vain(carried, number) or number >= MOST_SUBSTREAMS:
            return number
        if longest_s < SHORTEST_RTT_S or carried > USED * paced_bytes_per_s or any(map(is_queued, paths)):
            return number
        is_held = self._begin.held_s - begin.held_s > HELD_SHARE * number * seconds
        if self._begin.num_lost == begin.num_lost and not is_held:
            return number
        self._before_bytes_per_s, self._num_asked_at, self._num_judged = carried, number, 0
        return min(2 * number, MOST_SUBSTREAMS)

    def _is_in_vain(self, carried_bytes_per_s: float, num_paths: int) -> bool:
        """Whether the newest connections have not helped, or not had time to help."""
        if not self._before_bytes_per_s:
            return False
        if num_paths <= self._num_asked_at:  # the new connections are not there yet
            return True
        if carried_bytes_per_s >= GAIN * self._before_bytes_per_s:
            self.num_useful, self._before_bytes_per_s = num_paths, 0.0
            return False
        self._num_judged += 1
        self._is_settled = self._num_judged >= WINDOWS_TO_GAIN
        return True


def _begin(paths: Sequence[PathStats], now_s: float) -> _Begin:
    return _Begin(
        now_s,
        len(paths),
        sum(path.acked_bytes for path in paths),
        sum(path.num_lost for path in paths),
        sum(path.held_s for path in paths),
    )
