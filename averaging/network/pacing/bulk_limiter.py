"""The pacer of the bulk lane: a token bucket whose rate is learned from what bulk does to pings.

Control messages share the link with bulk. When bulk fills the link's queue, pings wait behind it: at 1 Mbit/s unpaced bulk
holds them up for 2 s, long enough to be taken for dead; paced at 70% of the link, 0.12 s. The bucket below is pure; `BulkLimiter`
is its shell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

import trio

SHARE: Final = 0.7
"""Of the throughput seen while the queue was full: what bulk takes from then on."""
GROWTH: Final = 1.25
"""Per quiet ping (two a second): from 100 kB/s back to 10 MB/s in ten seconds."""
CONGESTED_S: Final = 0.4
"""Extra ping time over the best seen that counts as a full queue."""
PINGS_TO_SLOW_DOWN: Final = 2
"""One late ping is a busy machine, two in a row are a full queue."""
MOST_IN_VAIN: Final = 4
"""So many times in a row slower, and pings no shorter: what they wait behind is not our queue, but a busy processor or somebody else's
traffic. The line is as long as it is then, and the rate goes up again. A quarter of the throughput empties a queue of 4 s
meanwhile, for that is eight pings.
"""
SHORTER: Final = 0.75
"""Of a ping that slowing down has helped, at most."""
MIN_RATE_BYTES_PER_S: Final = 16_384.0
MAX_RATE_BYTES_PER_S: Final = 1e9
PINGS_A_WINDOW: Final = 600
"""The best ping is that of this window and the one before: a line that became longer for good, by another way through the network,
must not look like a full queue for ever. A queue that we fill ourselves is emptied by the pacing long before that. Pings are counted,
not seconds: they are heard of while bulk is under way alone, a minute of each half hour.
"""
PAUSE_S: Final = 2.0
"""Who has had nothing to send for so long counts its throughput anew."""
BURST_S: Final = 0.05
MIN_BURST_BYTES: Final = 65_536.0


@dataclass(frozen=True, slots=True)
class PacerState:
    """A token bucket and what it has learned.

    Attributes:
        rate_bytes_per_s: the present rate.
        limit_bytes_per_s: the owner's cap; the rate never exceeds it.
        tokens_bytes: what may be sent at once; negative while in debt.
        filled_at_s: when `tokens_bytes` was true.
        sent_bytes, counting_since_s: sent since the last ping, or the last pause, to know the throughput.
        best_ping_s: the shortest ping of this window.
        best_before_s: the shortest of the window before.
        window_pings: how many this window has.
        late_pings: late ones in a row.
        times_slowed: how often the rate fell since a ping was quiet or clearly shorter.
        first_late_s: the ping at the first of these times.
    """

    rate_bytes_per_s: float
    limit_bytes_per_s: float
    tokens_bytes: float
    filled_at_s: float
    sent_bytes: int
    counting_since_s: float
    best_ping_s: float = inf
    best_before_s: float = inf
    window_pings: int = 0
    late_pings: int = 0
    times_slowed: int = 0
    first_late_s: float = inf

    @property
    def burst_bytes(self) -> float:
        """Most that may be sent at once after a pause."""
        return max(MIN_BURST_BYTES, self.rate_bytes_per_s * BURST_S)


def new_pacer(now_s: float, limit_bytes_per_s: float | None = None) -> PacerState:
    """A full bucket at the owner's cap, or without a cap at the ceiling."""
    limit = min(MAX_RATE_BYTES_PER_S, limit_bytes_per_s or MAX_RATE_BYTES_PER_S)
    return PacerState(limit, limit, MIN_BURST_BYTES, now_s, 0, now_s)


def charge(state: PacerState, num_bytes: int, now_s: float) -> tuple[PacerState, float]:
    """Take `num_bytes` from the bucket; the second value is how many seconds to wait before sending them."""
    if now_s - state.filled_at_s - max(0.0, -state.tokens_bytes) / state.rate_bytes_per_s > PAUSE_S:
        # a minute without a round is no throughput: the line's first late pings would else slow it down to nearly nothing
        state = replace(state, sent_bytes=0, counting_since_s=now_s)
    earned = (now_s - state.filled_at_s) * state.rate_bytes_per_s
    tokens = min(state.burst_bytes, state.tokens_bytes + earned) - num_bytes
    charged = replace(state, tokens_bytes=tokens, filled_at_s=now_s, sent_bytes=state.sent_bytes + num_bytes)
    return charged, max(0.0, -tokens / state.rate_bytes_per_s)


def capped(state: PacerState, limit_bytes_per_s: float | None, now_s: float) -> PacerState:
    """The bucket under another cap. What was learned below both caps stays; else the rate goes up to the new one, and pings tell."""
    limit = min(MAX_RATE_BYTES_PER_S, limit_bytes_per_s or MAX_RATE_BYTES_PER_S)
    if limit == state.limit_bytes_per_s:
        return state
    has_learned = state.rate_bytes_per_s < state.limit_bytes_per_s
    settled, _ = charge(state, 0, now_s)
    rate = min(limit, state.rate_bytes_per_s) if has_learned else limit
    return replace(settled, rate_bytes_per_s=rate, limit_bytes_per_s=limit)


def heard_ping(state: PacerState, ping_s: float, now_s: float, lag_s: float = 0.0) -> tuple[PacerState, str]:
    """Learn from a ping made while bulk was under way; the second value says why the rate changed, "" when it did not.

    Args:
        ping_s: round trip of the ping; the whole deadline when none came back.
        lag_s: how late we were ourselves at that time: so much later a ping may be. Of the shortest ping it is not taken off: one that
            seemed to take no time at all would make every ping over a long way late.
    """
    state = _with_ping(state, ping_s)
    best = min(state.best_ping_s, state.best_before_s)
    throughput = state.sent_bytes / max(now_s - state.counting_since_s, 0.1)
    heard = replace(state, sent_bytes=0, counting_since_s=now_s)
    if ping_s - lag_s > best + CONGESTED_S:
        late = state.late_pings + 1
        if late < PINGS_TO_SLOW_DOWN:
            # the throughput goes on being counted: the second late ping will ask for it
            return replace(state, late_pings=late), ""
        return _slowed(replace(heard, late_pings=0), ping_s, throughput, best)
    rate = min(state.limit_bytes_per_s, state.rate_bytes_per_s * GROWTH)
    return replace(heard, rate_bytes_per_s=rate, late_pings=0, times_slowed=0), ""


def _slowed(state: PacerState, ping_s: float, throughput: float, best_s: float) -> tuple[PacerState, str]:
    """After late pings in a row: slower, unless that has not helped MOST_IN_VAIN times; then this ping is what the line takes."""
    if state.times_slowed == 0 or ping_s <= state.first_late_s * SHORTER:
        state = replace(state, times_slowed=0, first_late_s=ping_s)
    if state.times_slowed >= MOST_IN_VAIN:
        return replace(state, best_ping_s=ping_s, best_before_s=inf, window_pings=1, times_slowed=0), ""
    rate = max(MIN_RATE_BYTES_PER_S, min(state.rate_bytes_per_s, throughput) * SHARE)
    slower = replace(state, rate_bytes_per_s=min(rate, state.limit_bytes_per_s), times_slowed=state.times_slowed + 1)
    return slower, f"pings take {ping_s:.2f} s instead of {best_s:.2f} s"


def _with_ping(state: PacerState, ping_s: float) -> PacerState:
    """One ping more in the window of best pings, which moves on when it is full."""
    if state.window_pings < PINGS_A_WINDOW:
        return replace(state, best_ping_s=min(state.best_ping_s, ping_s), window_pings=state.window_pings + 1)
    return replace(state, best_ping_s=ping_s, best_before_s=state.best_ping_s, window_pings=1)


class BulkLimiter:
    """The bucket of one Network: every bulk frame passes through it."""

    def __init__(self, limit_bytes_per_s: float | None = None) -> None:
        self._limit_bytes_per_s = limit_bytes_per_s
        self._state: PacerState | None = None
        self._changed = trio.Event()

    @property
    def rate_bytes_per_s(self) -> float:
        """The present rate."""
        return self._current().rate_bytes_per_s

    def _current(self) -> PacerState:
        if self._state is None:
            self._state = new_pacer(trio.current_time(), self._limit_bytes_per_s)
        return self._state

    async def pass_bytes(self, num_bytes: int) -> None:
        """Return when so many bytes may be sent; those who ask first go first."""
        self._state, wait_s = charge(self._current(), num_bytes, trio.current_time())
        try:
            await self._wait_for(wait_s * self._state.rate_bytes_per_s)
        except trio.Cancelled:
            # Never sent: under a low cap those who gave up would else be waited for by all who follow.
            self._state = replace(self._state, tokens_bytes=self._state.tokens_bytes + num_bytes)
            raise

    async def _wait_for(self, ahead_bytes: float) -> None:
        while ahead_bytes > 0:
            rate, changed, began_s = self.rate_bytes_per_s, self._changed, trio.current_time()
            with trio.move_on_after(ahead_bytes / rate):
                await changed.wait()
            if not changed.is_set():
                return
            ahead_bytes -= (trio.current_time() - began_s) * rate

    def cap(self, limit_bytes_per_s: float | None) -> None:
        """Another cap from now on, also for those who wait already; None for none."""
        before = self._current()
        self._state = capped(before, limit_bytes_per_s, trio.current_time())
        if self._state is not before:
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    def heard_ping(self, ping_s: float, lag_s: float) -> str:
        """Learn from a ping, we being so late ourselves; says why the rate fell, if it did."""
        self._state, reason = heard_ping(self._current(), ping_s, trio.current_time(), lag_s)
        return reason
