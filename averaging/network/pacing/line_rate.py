"""How fast all bulk together may leave, so that the line's queue stays short; and which part of it each stream gets.

Streams that leave beside one another and fill a queue push each other back, and everybody waits for the one that is furthest behind.
Plain sockets, all to all between four places of 100 Mbit/s, 19 MB from each, payload over the rate: 0.69 to 0.92 as the kernel does
it (BBR or CUBIC), each time another; one stream after the other 0.92 to 0.94, where all begin in the same millisecond, and 0.58 to
0.84 where they do not; all at once, held by the kernel to a third of 11.8 MB/s each, 0.94 every time (headers alone take 4.4%). So the
kernel is told how fast each stream may leave (SO_MAX_PACING_RATE), a little under what the line carries. It still slows down by itself
below that.

What the line carries is learned from how long acknowledgements take beyond the best that a stream saw, Vegas' signal (Brakmo and
Peterson 1995), taken from the stream that waits least, since all go through our own line. Where only some wait, their receivers'
lines are thin, which is no reason to send less to the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

WINDOW_S: Final = 0.2
WINDOW_RTTS: Final = 2.0
"""A window is as long as the longer of both, of the farthest receiver: what was changed must have had time to be seen."""

QUEUE_S: Final = 0.015
QUEUE_RTTS: Final = 0.25
"""Beyond the best round trip, the larger of both: a queue. Three frames of 64 kB at 100 Mbit/s are 15 ms."""

BACK_OFF: Final = 0.97
LEAST_KEPT: Final = 0.8
"""Of a pace at each step down: a receiver that stops for a moment says nothing of the line, and one that got slower says it again."""

DRAIN_WINDOWS: Final = 2
CARRIED_WINDOWS: Final = 3
"""What the line carries is the most of so many: one in which a stream ended, or a receiver stood still, says too little."""

NEAR: Final = 0.02
CATCH_UP: Final = 0.02
NEAR_GROWTH: Final = 0.005
MOST_GROWTH: Final = 0.08
FIRST_GROWTH: Final = 0.25
MOST_DOUBLINGS: Final = 8
"""Growth a window: 2% up to what the line carried when its queue was seen last, half a percent around it, then twice as much each
time. A quarter before it was seen: what was guessed may be a processor's pause. What was taken for our queue may have been those
before others' lines, which members that met for the first time fill: at 32 Mbit/s some were at half of their line for five seconds.
"""

FIRST_ROOM: Final = 1.25
"""When a queue is seen for the first time, all may send so much more than they did. It may have been a pause of the processor; but
left to itself BBR takes what comes through at once for what the line carries, and fills its queue for a third of a second: behind that
wait acknowledgements of what comes in, and the other direction slows down, too.
"""

LEAST_GUESSED_WINDOWS: Final = 3
GUESSED_WINDOWS: Final = 5
"""The first guess is the most that was carried in so many: where the processor is short, streams stand still for a window or two with
what looks like a queue.
"""

FITTED_WINDOWS: Final = 4
UNFILLED: Final = 0.85
ALIKE: Final = 0.9
"""Before a queue of paced streams was seen: where all together carried less than this share of one pace in so many windows, in each
about as much, and none sends what it may, the kernel's own idea of the line holds them, each differently, and what they carried is
what it carries. Of four members that met for the first time at 100 Mbit/s some went on at paces of 16 to 20 MB/s for half a round, and
of two, with a stream each, for as long as they ran. The windows are eight round trips long at least, in which BBR looks once whether
there is more. It may be the receiver's line that holds a single stream: then the pace grows again once others go elsewhere.
"""

FALLING: Final = 0.75
"""Acknowledgements that waited less than this share of what they did a window before: a queue that goes by itself."""

STOPPED: Final = 0.5
"""Of the pace: where less is carried receivers have thin lines, or stopped, which is no reason to send less to the others."""

HELD_UP: Final = 0.8
"""Of the part that the best stream of a window uses: one that uses less of its own has a receiver with a thin line."""

NO_ROOM: Final = 0.5
MOST_NO_ROOM: Final = 10
"""The first of a window: where every stream's receiver had no room for so long, receivers are too busy to read, which looks like a
queue and says nothing of the line. In a third of swarms of four that met for the first time on two cores, on loopback, one guessed
4 to 6 MB/s from that, and the next round took 2.5 to 5.8 s instead of 1.2. In more such windows in a row it is their buffers that are
small for a line with its queue.
"""

USED: Final = 0.9
USED_BEYOND: Final = 0.94
"""Of its part: while no stream sends that much, an empty queue tells nothing. The second for a stream alone whose pace is beyond
what the line was seen to carry: BBR alone keeps the queue too short to be seen, and with 0.9 such a pace stood a sixth above
the line. Then each half of a round began with a queue, behind which what comes the other way was acknowledged 25 ms late for
0.2 s. Where a queueing discipline paces (fq), headers count as well: 1448 of 1514 bytes are 0.956, which must do. Nor does it
grow beyond where that share would be used. Several streams share unevenly on a busy machine, and with 0.94 four members were
slower.
"""

MOST_IN_VAIN: Final = 16
UNPACED_S: Final = 30.0
"""So many times slower in a row, and the queue is still there: it is somebody else's, and the kernel alone decides for so long. So it
does after a line was found to be too thin.
"""

LEAST_BYTES_PER_S: Final = 4e5
"""Below 3.2 Mbit/s a few packets make the queue that is looked for, and the pings of the lane pace what leaves (pacer.py)."""

MOST_BYTES_PER_S: Final = 6e7
"""Beyond 480 Mbit/s it is the processor that limits, and its pauses look like a queue: of four members on two cores, behind lines of 1
Gbit/s, one was held to a quarter of its line, and a round waits for the slowest. What is carried there was not better with a pace.
"""

LEAST_PART_BYTES_PER_S: Final = 65_536.0
"""Less is never asked of the kernel for one stream. It reckons when the next packet of up to 64 kB may leave, and keeps to that when
the rate goes up again: after 0.2 s at 20 kB/s a stream stood still for 3 s.
"""


@dataclass(frozen=True, slots=True)
class PathStats:
    """What the kernel says of one stream that is sending.

    Attributes:
        acked_bytes: since it was opened.
        waiting_bytes: with the kernel, not sent yet.
        is_idle: nothing waits, and all is acknowledged.
        rtt_s: how long acknowledgements take now, smoothed.
        best_rtt_s: the shortest that was seen.
        num_lost: packets sent once more since it was opened, where its congestion control goes by that; else 0.
        held_s: for how long since then more could have been sent had our buffer held more.
        no_room_s: for how long since then its receiver had no room for more.
    """

    acked_bytes: int
    waiting_bytes: int
    is_idle: bool
    rtt_s: float
    best_rtt_s: float
    num_lost: int = 0
    held_s: float = 0.0
    no_room_s: float = 0.0


def is_queued(path: PathStats) -> bool:
    """Whether acknowledgements take longer than the way: packets of somebody wait before a line."""
    return path.rtt_s - path.best_rtt_s > max(QUEUE_S, QUEUE_RTTS * path.best_rtt_s)


class LineRate:
    """Looks at all streams that send, some twenty times a second, and says how fast each may be.

    `bytes_per_s` is what all may send together, infinite while nothing is known of the line. It outlives the streams.
    """

    def __init__(self) -> None:
        self.bytes_per_s = inf
        self._began_s = 0.0
        self._window_s = WINDOW_S
        self._begun: dict[object, PathStats] = {}
        """How this window began, of those streams that have had something waiting since then."""

        self._queues: list[bool] = []
        """Whether a queue was seen, by look since this window began."""

        self._parts: dict[object, float] = {}
        """What the streams of this window may send, or might where they are not paced."""

        self._evenly: deque[float] = deque(maxlen=CARRIED_WINDOWS)
        """By window the pace at which its streams that no receiver holds up would have sent all of their parts, had they shared
        evenly: one gets more than its part of a line whose queue is full, at the others' cost, and would make it seem the wider.
        """

        self._in_all: deque[float] = deque(maxlen=FITTED_WINDOWS)
        """By window at this pace what all streams carried together; infinite where one of them began or ended."""

        self._unpaced: deque[float] = deque(maxlen=GUESSED_WINDOWS)
        """By window what all streams carried together while they were not paced, the last ones."""

        self._full_bytes_per_s = 0.0
        """The pace that the line carried when its queue was seen last; 0 while it was not seen with streams that are paced."""

        self._num_beyond = 0
        """Windows without a queue beyond that."""

        self._waits_s = 0.0
        """How much longer than the way acknowledgements took at the end of the last window, of the stream that waits least."""

        self._was_queued = False
        self._num_no_room = 0
        """Windows in a row in which no receiver had room."""

        self._num_in_vain = 0
        self._drained_s = 0.0
        self._unpaced_until_s = 0.0

    def look(self, paths: Mapping[object, PathStats], now_s: float) -> dict[object, float]:
        """What each of these streams may send, bytes a second; infinite while the line is not known.

        Args:
            paths: all that send bulk at this moment.
        """
        waiting = {stream: path for stream, path in paths.items() if path.waiting_bytes}
        self._begun = {stream: path for stream, path in self._begun.items() if stream in waiting}
        if not self._begun:  # what was sent in this window is not what the line carries
            self._begin(waiting, now_s)
        else:
            self._queues.append(all(is_queued(waiting[stream]) for stream in self._begun))
            if now_s - self._began_s >= self._window_s:
                self._judge(waiting, now_s)
                self._begin(waiting, now_s)
        self._parts = dict.fromkeys(paths, self._even_part(len(paths)))
        return dict(self._parts)

    def _begin(self, waiting: Mapping[object, PathStats], now_s: float) -> None:
        self._began_s, self._queues = now_s, []
        self._begun = dict(waiting)
        self._window_s = max([WINDOW_S, *(WINDOW_RTTS * path.best_rtt_s for path in waiting.values())])

    def _judge(self, waiting: Mapping[object, PathStats], now_s: float) -> None:
        seconds = now_s - self._began_s
        waited_s = self._waits_s
        self._waits_s = min(waiting[each].rtt_s - waiting[each].best_rtt_s for each in self._begun)
        if all(waiting[each].no_room_s - path.no_room_s > NO_ROOM * seconds for each, path in self._begun.items()):
            self._num_no_room += 1
            if self._num_no_room <= MOST_NO_ROOM:
                self._was_queued = False
                return
        else:
            self._num_no_room = 0
        rates = {each: (waiting[each].acked_bytes - path.acked_bytes) / seconds for each, path in self._begun.items()}
        is_paced, used = self.bytes_per_s < inf, 0.0
        if is_paced:
            shares = [rate / self._parts.get(stream, inf) for stream, rate in rates.items()]
            free = [share for share in shares if share >= HELD_UP * max(shares)]
            self._evenly.append(sum(free) / len(free) * self.bytes_per_s)
            self._in_all.append(sum(rates.values()) if len(rates) == len(self._parts) else inf)
            used = max(shares)
        else:
            self._unpaced.append(sum(rates.values()))
        # a queue of paced streams comes and goes slowly; what the kernel does by itself may be over before the window is
        if self._queues[-1] if is_paced else 2 * sum(self._queues) > len(self._queues):
            self._queued(waited_s, now_s, is_whole=len(rates) == len(waiting))
        else:
            self._clear(used, is_alone=len(self._parts) == 1)

    def _queued(self, waited_s: float, now_s: float, *, is_whole: bool) -> None:
        was_queued, self._was_queued = self._was_queued, True
        if now_s < max(self._drained_s, self._unpaced_until_s):
            return
        if self.bytes_per_s == inf:
            self._full_bytes_per_s = 0.0
            if len(self._unpaced) < LEAST_GUESSED_WINDOWS:
                return
            if was_queued:
                self._slow_to(max(self._unpaced), now_s)
            elif is_whole:
                bound = FIRST_ROOM * max(self._unpaced)
                self.bytes_per_s = bound if LEAST_BYTES_PER_S < bound < MOST_BYTES_PER_S else inf
            return
        if self._waits_s < FALLING * waited_s:
            return
        self._num_in_vain += 1
        if self._num_in_vain > MOST_IN_VAIN:
            self._leave_to_kernel(now_s)
            return
        self._full_bytes_per_s = min(self.bytes_per_s, max(self._evenly))
        self._slow_to(max(self._full_bytes_per_s, LEAST_KEPT * self.bytes_per_s), now_s)

    def _slow_to(self, bytes_per_s: float, now_s: float) -> None:
        self.bytes_per_s, self._num_beyond = bytes_per_s * BACK_OFF, 0
        self._in_all.clear()
        self._drained_s = now_s + DRAIN_WINDOWS * self._window_s
        if self.bytes_per_s < LEAST_BYTES_PER_S:
            self._leave_to_kernel(now_s)
        elif self.bytes_per_s > MOST_BYTES_PER_S:
            self.bytes_per_s = inf

    def _leave_to_kernel(self, now_s: float) -> None:
        self.bytes_per_s, self._num_in_vain, self._unpaced_until_s = inf, 0, now_s + UNPACED_S
        self._evenly.clear()  # what is learned after that is of another line, perhaps
        self._in_all.clear()
        self._unpaced.clear()

    def _clear(self, used: float, *, is_alone: bool) -> None:
        """No queue, and the stream that used most of its part used so much of it; `is_alone` is one beside which nothing leaves."""
        self._was_queued, self._num_in_vain = False, 0
        is_beyond = is_alone and 0.0 < (1.0 + NEAR) * self._full_bytes_per_s < self.bytes_per_s
        if used >= (USED_BEYOND if is_beyond else USED):
            most = used / USED_BEYOND if is_beyond else inf
            grown = self.bytes_per_s * min(most, 1.0 + self._growth())
            self.bytes_per_s = grown if grown <= MOST_BYTES_PER_S else inf
            self._in_all.clear()
        elif not self._full_bytes_per_s and len(self._in_all) == FITTED_WINDOWS:
            self._fit(min(self._in_all), max(self._in_all), USED if is_alone else UNFILLED)

    def _fit(self, least_bytes_per_s: float, most_bytes_per_s: float, unfilled: float) -> None:
        """Nobody sends what it may, and no queue was ever seen: the pace comes down to what all carry."""
        is_alike = least_bytes_per_s >= ALIKE * most_bytes_per_s
        if is_alike and STOPPED * self.bytes_per_s < most_bytes_per_s < unfilled * self.bytes_per_s:
            self.bytes_per_s = self._full_bytes_per_s = most_bytes_per_s
            self._num_beyond = 0

    def _growth(self) -> float:
        if not self._full_bytes_per_s:
            return FIRST_GROWTH  # the first guess, made while streams pushed each other back
        if self.bytes_per_s < (1.0 - NEAR) * self._full_bytes_per_s:
            return CATCH_UP
        if self.bytes_per_s < (1.0 + NEAR) * self._full_bytes_per_s:
            return NEAR_GROWTH
        self._num_beyond += 1
        return min(MOST_GROWTH, NEAR_GROWTH * 2.0 ** min(self._num_beyond - 1, MOST_DOUBLINGS))

    def _even_part(self, num_streams: int) -> float:
        """Streams whose receivers take less leave the rest of their part unused, and the pace grows until the others fill the line."""
        part = self.bytes_per_s / max(1, num_streams)
        return part if part >= LEAST_PART_BYTES_PER_S else inf
