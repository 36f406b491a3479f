"""How fast all bulk together may leave, so that the line's queue stays short, and the part of it that each stream gets.

Streams that fill a queue together push each other back, and a round waits for the slowest of them. So the kernel is told how fast
each stream may leave (SO_MAX_PACING_RATE), a little under what the line carries. The kernel still slows down below that by itself.

The line's rate is learned from the queueing delay: how much longer acknowledgements take than the best round trip of their stream
(the signal of TCP Vegas, Brakmo and Peterson 1995). The stream that waits least decides, because all streams share our own line. If
only some streams wait, their receivers' lines are thin, and that is no reason to send less to the others.

The settings were measured; see tests/benchmarks/LOG.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Final


@dataclass(frozen=True, slots=True)
class LineRateSettings:
    """The constants of `LineRate`. A "window" is one period of measurement; a "part" is the rate that one stream may use.

    Attributes:
        window_s: shortest window, seconds.
        window_rtts: shortest window in round trips of the farthest receiver, so that a change can be seen.
        queue_s: least delay beyond the best round trip that counts as a queue, seconds.
        queue_rtts: the same in best round trips; the larger of both counts.
        back_off: share of the line's rate that is used once a queue was seen.
        least_kept: least share of the rate that one step down keeps, because a receiver may only have stopped for a moment.
        drain_windows: windows after a step down in which the queue may drain.
        carried_windows: the line's rate is the most that any of this number of windows carried.
        near: a rate within this share of the last full rate is close to it.
        catch_up: growth per window while the rate is below the last full rate.
        near_growth: growth per window while the rate is close to it; beyond it the growth doubles each window.
        most_growth: upper bound of that doubled growth.
        most_doublings: most times that the growth doubles.
        first_growth: growth per window until paced streams have shown a queue, since the first guess may be a pause of the
            processor.
        first_room: at the first queue, all streams may send this multiple of what they carried, so that a wrong guess costs little.
        least_guessed_windows: windows that are needed before the first guess of the line's rate.
        guessed_windows: the first guess is the most that any of this number of windows carried.
        fitted_windows: windows without a queue after which the rate may come down to what the streams carry.
        unfilled: several streams that carry less than this share of the rate are held by the kernel's own estimate of the line.
        alike: the least of those windows must carry this share of the most, or they say nothing about the line.
        falling: a delay below this share of the delay one window earlier is a queue that drains by itself.
        stopped: windows that carry less than this share of the rate say that receivers are slow or stopped, not the line.
        held_up: a stream that uses less than this share of what the best stream uses has a receiver with a thin line.
        no_room: a receiver without room for more than this share of a window is too busy to read.
        most_no_room: after this number of such windows in a row, buffers are too small for the line, and the windows count again.
        used: the rate grows only if some stream used this share of its part; else an empty queue says nothing.
        used_beyond: the same for a lone stream beyond the last full rate, where the kernel keeps the queue too short to be seen.
        most_in_vain: after this number of steps down in a row with the queue still there, the queue is somebody else's.
        unpaced_s: seconds for which the kernel alone then decides, as it does after a line was found too thin.
        least_bytes_per_s: no line slower than this is paced here, because a few packets fill its queue (`bulk_limiter` does it).
        most_bytes_per_s: no line faster than this is paced, because pauses of the processor look like its queue.
        least_part_bytes_per_s: no stream is paced below this, because the kernel would delay its next packet for seconds.
    """

    window_s: float = 0.2
    window_rtts: float = 2.0
    queue_s: float = 0.015
    queue_rtts: float = 0.25
    back_off: float = 0.97
    least_kept: float = 0.8
    drain_windows: int = 2
    carried_windows: int = 3
    near: float = 0.02
    catch_up: float = 0.02
    near_growth: float = 0.005
    most_growth: float = 0.08
    most_doublings: int = 8
    first_growth: float = 0.25
    first_room: float = 1.25
    least_guessed_windows: int = 3
    guessed_windows: int = 5
    fitted_windows: int = 4
    unfilled: float = 0.85
    alike: float = 0.9
    falling: float = 0.75
    stopped: float = 0.5
    held_up: float = 0.8
    no_room: float = 0.5
    most_no_room: int = 10
    used: float = 0.9
    used_beyond: float = 0.94
    most_in_vain: int = 16
    unpaced_s: float = 30.0
    least_bytes_per_s: float = 4e5
    most_bytes_per_s: float = 6e7
    least_part_bytes_per_s: float = 65_536.0


SETTINGS: Final = LineRateSettings()


@dataclass(frozen=True, slots=True)
class PathStats:
    """The kernel's statistics of one stream that is sending. Totals count from the opening of the stream.

    Attributes:
        acked_bytes: bytes acknowledged.
        waiting_bytes: bytes that the kernel has and has not sent yet.
        is_idle: nothing waits, and everything is acknowledged.
        rtt_s: the present round trip, smoothed.
        best_rtt_s: the shortest round trip seen.
        num_lost: packets that were sent again, if the congestion control reacts to loss; else 0.
        held_s: seconds in which more could have been sent if our send buffer had held more.
        no_room_s: seconds in which the receiver had no room for more.
    """

    acked_bytes: int
    waiting_bytes: int
    is_idle: bool
    rtt_s: float
    best_rtt_s: float
    num_lost: int = 0
    held_s: float = 0.0
    no_room_s: float = 0.0


def is_queued(path: PathStats, settings: LineRateSettings = SETTINGS) -> bool:
    """Whether acknowledgements take so much longer than the best round trip that packets must wait in a queue before a line."""
    return path.rtt_s - path.best_rtt_s > max(settings.queue_s, settings.queue_rtts * path.best_rtt_s)


class LineRate:
    """Watches all streams that send, some twenty times a second, and says how fast each may be.

    `bytes_per_s` is what all streams together may send. It is infinite while nothing is known of the line, and outlives the
    streams.
    """

    def __init__(self, settings: LineRateSettings = SETTINGS) -> None:
        self._settings = settings
        self.bytes_per_s = inf
        self._began_s = 0.0
        self._window_s = settings.window_s
        self._begun: dict[object, PathStats] = {}
        """Statistics at the start of this window, of the streams that have had bytes waiting ever since."""

        self._queues: list[bool] = []
        """Whether a queue was seen, for each look in this window."""

        self._parts: dict[object, float] = {}
        """The rate that each stream of this window may use, or could use while the streams are not paced."""

        self._evenly: deque[float] = deque(maxlen=settings.carried_windows)
        """For each window, the rate at which streams without a slow receiver would have used all of their parts, shared evenly.

        A stream that takes more than its part of a full line takes it from the others, and would make the line seem wider.
        """

        self._in_all: deque[float] = deque(maxlen=settings.fitted_windows)
        """For each window at this rate, what all streams carried together; infinite if a stream began or ended in it."""

        self._unpaced: deque[float] = deque(maxlen=settings.guessed_windows)
        """For each of the last unpaced windows, what all streams carried together."""

        self._full_bytes_per_s = 0.0
        """The rate that the line carried at its last queue; 0 while paced streams have shown none."""

        self._num_beyond = 0
        """Windows without a queue beyond that rate."""

        self._waits_s = 0.0
        """Queueing delay at the end of the last window, of the stream that waits least."""

        self._was_queued = False
        self._num_no_room = 0
        """Windows in a row in which no receiver had room."""

        self._num_in_vain = 0
        self._drained_s = 0.0
        self._unpaced_until_s = 0.0

    def update(self, paths: Mapping[object, PathStats], now_s: float) -> dict[object, float]:
        """The rate that each of these streams may use, in bytes a second; infinite while the line is not known.

        Args:
            paths: all streams that send bulk at this moment.
        """
        waiting = {stream: path for stream, path in paths.items() if path.waiting_bytes}
        self._begun = {stream: path for stream, path in self._begun.items() if stream in waiting}
        if not self._begun:  # no stream sent all the time, so this window does not show the line's rate
            self._begin(waiting, now_s)
        else:
            self._queues.append(all(is_queued(waiting[stream], self._settings) for stream in self._begun))
            if now_s - self._began_s >= self._window_s:
                self._judge(waiting, now_s)
                self._begin(waiting, now_s)
        self._parts = dict.fromkeys(paths, self._even_part(len(paths)))
        return dict(self._parts)

    def _begin(self, waiting: Mapping[object, PathStats], now_s: float) -> None:
        self._began_s, self._queues = now_s, []
        self._begun = dict(waiting)
        self._window_s = max(
            [self._settings.window_s, *(self._settings.window_rtts * path.best_rtt_s for path in waiting.values())]
        )

    def _judge(self, waiting: Mapping[object, PathStats], now_s: float) -> None:
        seconds = now_s - self._began_s
        waited_s = self._waits_s
        self._waits_s = min(waiting[each].rtt_s - waiting[each].best_rtt_s for each in self._begun)
        if all(
            waiting[each].no_room_s - path.no_room_s > self._settings.no_room * seconds
            for each, path in self._begun.items()
        ):
            self._num_no_room += 1
            if self._num_no_room <= self._settings.most_no_room:
                self._was_queued = False
                return
        else:
            self._num_no_room = 0
        rates = {each: (waiting[each].acked_bytes - path.acked_bytes) / seconds for each, path in self._begun.items()}
        is_paced, used = self.bytes_per_s < inf, 0.0
        if is_paced:
            shares = [rate / self._parts.get(stream, inf) for stream, rate in rates.items()]
            free = [share for share in shares if share >= self._settings.held_up * max(shares)]
            self._evenly.append(sum(free) / len(free) * self.bytes_per_s)
            self._in_all.append(sum(rates.values()) if len(rates) == len(self._parts) else inf)
            used = max(shares)
        else:
            self._unpaced.append(sum(rates.values()))
        # a queue of paced streams changes slowly; an unpaced one may be gone before the window ends
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
            if len(self._unpaced) < self._settings.least_guessed_windows:
                return
            if was_queued:
                self._slow_to(max(self._unpaced), now_s)
            elif is_whole:
                bound = self._settings.first_room * max(self._unpaced)
                self.bytes_per_s = (
                    bound if self._settings.least_bytes_per_s < bound < self._settings.most_bytes_per_s else inf
                )
            return
        if self._waits_s < self._settings.falling * waited_s:
            return
        self._num_in_vain += 1
        if self._num_in_vain > self._settings.most_in_vain:
            self._leave_to_kernel(now_s)
            return
        self._full_bytes_per_s = min(self.bytes_per_s, max(self._evenly))
        self._slow_to(max(self._full_bytes_per_s, self._settings.least_kept * self.bytes_per_s), now_s)

    def _slow_to(self, bytes_per_s: float, now_s: float) -> None:
        self.bytes_per_s, self._num_beyond = bytes_per_s * self._settings.back_off, 0
        self._in_all.clear()
        self._drained_s = now_s + self._settings.drain_windows * self._window_s
        if self.bytes_per_s < self._settings.least_bytes_per_s:
            self._leave_to_kernel(now_s)
        elif self.bytes_per_s > self._settings.most_bytes_per_s:
            self.bytes_per_s = inf

    def _leave_to_kernel(self, now_s: float) -> None:
        self.bytes_per_s, self._num_in_vain, self._unpaced_until_s = inf, 0, now_s + self._settings.unpaced_s
        self._evenly.clear()  # the line may have changed by the time that it is measured again
        self._in_all.clear()
        self._unpaced.clear()

    def _clear(self, used: float, *, is_alone: bool) -> None:
        """No queue was seen. `used` is the largest share of its part that a stream used; `is_alone`: it is the only stream."""
        self._was_queued, self._num_in_vain = False, 0
        is_beyond = is_alone and 0.0 < (1.0 + self._settings.near) * self._full_bytes_per_s < self.bytes_per_s
        if used >= (self._settings.used_beyond if is_beyond else self._settings.used):
            most = used / self._settings.used_beyond if is_beyond else inf
            grown = self.bytes_per_s * min(most, 1.0 + self._growth())
            self.bytes_per_s = grown if grown <= self._settings.most_bytes_per_s else inf
            self._in_all.clear()
        elif not self._full_bytes_per_s and len(self._in_all) == self._settings.fitted_windows:
            self._fit(
                min(self._in_all), max(self._in_all), self._settings.used if is_alone else self._settings.unfilled
            )

    def _fit(self, least_bytes_per_s: float, most_bytes_per_s: float, unfilled: float) -> None:
        """Lower the rate to what all streams carry, if none uses its part and no queue was ever seen."""
        is_alike = least_bytes_per_s >= self._settings.alike * most_bytes_per_s
        if is_alike and self._settings.stopped * self.bytes_per_s < most_bytes_per_s < unfilled * self.bytes_per_s:
            self.bytes_per_s = self._full_bytes_per_s = most_bytes_per_s
            self._num_beyond = 0

    def _growth(self) -> float:
        if not self._full_bytes_per_s:
            return self._settings.first_growth  # the first guess was made while streams pushed each other back
        if self.bytes_per_s < (1.0 - self._settings.near) * self._full_bytes_per_s:
            return self._settings.catch_up
        if self.bytes_per_s < (1.0 + self._settings.near) * self._full_bytes_per_s:
            return self._settings.near_growth
        self._num_beyond += 1
        return min(
            self._settings.most_growth,
            self._settings.near_growth * 2.0 ** min(self._num_beyond - 1, self._settings.most_doublings),
        )

    def _even_part(self, num_streams: int) -> float:
        """The rate of one stream. Streams with slow receivers leave a rest, and the rate grows until the others use it."""
        part = self.bytes_per_s / max(1, num_streams)
        return part if part >= self._settings.least_part_bytes_per_s else inf
