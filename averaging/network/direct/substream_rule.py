"""When a stream should have further connections: where one does not fill the line.

TCP that goes by losses sends about MSS / RTT x 1.22 / sqrt(share lost) (Mathis et al. 1997; CUBIC, Linux's default, a little more), so
that on a long way a few lost packets hold it far below what the line carries, and as many connections carry as many times that. Over a
line of 40 Mbit/s, 50 ms one way, 0.1% lost, CUBIC: one 4 to 7 Mbit/s in the long run, eight plain sockets 39. And a connection holds
no more unacknowledged than its buffer: 4 MB by Linux's default are 42 MB/s at 100 ms.

What says so is the kernel: there is always more to send, no queue at the line (acknowledgements take no longer than the best that was
seen), and packets were lost or the buffer held it up. BBR does not go by single losses, so they say nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from averaging.network.pacing.line_rate import PathStats, is_queued

MOST_STRANDS: Final = 8
"""Of a stream, beside the connection that it was opened with: what CUBIC needs on 100 ms with one in a thousand lost, at 40 Mbit/s."""

WINDOW_S: Final = 1.0
WINDOW_RTTS: Final = 8.0
"""A window is as long as the longer of both: CUBIC's pace goes up and down within it."""

SHORTEST_RTT_S: Final = 0.01
"""On a shorter way a connection is back at its pace at once."""

GAIN: Final = 1.1
WINDOWS_TO_GAIN: Final = 3
"""What twice the connections must carry in one of so many windows, beside what was carried before; the first is their slow start."""

HELD_SHARE: Final = 0.5
"""Of the time, for a buffer that holds a connection up."""

USED: Final = 0.8
"""Of what the line's pace allows: who sends that much is held back by us."""


@dataclass(frozen=True, slots=True)
class _Begin:
    """Of a window: sums over all connections."""

    now_s: float
    num_paths: int
    acked_bytes: int
    num_lost: int
    held_s: float


class StrandRule:
    """Of one stream. `num_useful` is how many connections were worth having so far."""

    def __init__(self) -> None:
        self.num_useful = 1
        self._begin: _Begin | None = None
        self._before_bytes_per_s = 0.0
        self._num_asked_at = 0
        self._num_judged = 0
        self._is_settled = False

    def look(self, paths: Sequence[PathStats], paced_bytes_per_s: float, now_s: float) -> int:
        """How many connections the stream should have, mostly as many as it has. To be asked some four times a second, while more is
        to be sent.

        Args:
            paths: the connections that carry what it sends.
            paced_bytes_per_s: what all of them together are held to; infinite where they are not.
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
        if self._is_in_vain(carried, number) or number >= MOST_STRANDS:
            return number
        if longest_s < SHORTEST_RTT_S or carried > USED * paced_bytes_per_s or any(map(is_queued, paths)):
            return number
        is_held = self._begin.held_s - begin.held_s > HELD_SHARE * number * seconds
        if self._begin.num_lost == begin.num_lost and not is_held:
            return number
        self._before_bytes_per_s, self._num_asked_at, self._num_judged = carried, number, 0
        return min(2 * number, MOST_STRANDS)

    def _is_in_vain(self, carried_bytes_per_s: float, num_paths: int) -> bool:
        """Whether the connections that came last are still to show what they are worth, or have shown that it is nothing."""
        if not self._before_bytes_per_s:
            return False
        if num_paths <= self._num_asked_at:  # they have not come yet
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
