"""The limiter of the bulk lane: a token bucket whose rate is learned from the delay that bulk adds to pings.

Control messages share the link with bulk. When bulk fills the link's queue, pings wait behind it, and a peer may be taken for dead.
The bucket below is pure; `BulkLimiter` is its shell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Final

import trio

SHARE: Final = 0.7
"""Share of the throughput seen with a full queue that bulk may use from then on."""
GROWTH: Final = 1.25
"""Growth of the rate per quiet ping, of which there are two a second: a hundredfold in ten seconds."""
CONGESTED_S: Final = 0.4
"""Extra ping time over the best seen that counts as a full queue."""
PINGS_TO_SLOW_DOWN: Final = 2
"""One late ping is a busy machine; two in a row are a full queue."""
MOST_IN_VAIN: Final = 4
"""After this many steps down without shorter pings, the delay is not our queue but a busy processor or somebody else's traffic.

Then the longer ping counts as the best one, and the rate grows again. Four steps are eight pings, time enough for our queue to
drain.
"""
SHORTER: Final = 0.75
"""A ping below this share of the first late one shows that slowing down has helped."""
MIN_RATE_BYTES_PER_S: Final = 16_384.0
MAX_RATE_BYTES_PER_S: Final = 1e9
PINGS_A_WINDOW: Final = 600
"""Pings in a window; the best ping is that of this window and the one before.

Windows let a line become longer permanently, by another route, without looking like a full queue. Pings are counted instead of
seconds, because they are sent only while bulk is under way.
"""
PAUSE_S: Final = 2.0
"""After a pause of this length the throughput is measured from the start."""
BURST_S: Final = 0.05
MIN_BURST_BYTES: Final = 65_536.0


@dataclass(frozen=True, slots=True)
class LimiterState:
    """A token bucket and its learned rate.

    Attributes:
        rate_bytes_per_s: the present rate.
        limit_bytes_per_s: the owner's cap; the rate never exceeds it.
        tokens_bytes: bytes that may be sent at once; negative while in debt.
        filled_at_s: time at which `tokens_bytes` was computed.
        sent_bytes, counting_since_s: bytes sent since the last ping or pause, for the throughput.
        best_ping_s: the shortest ping of this window.
        best_before_s: the shortest of the window before.
        window_pings: number of pings in this window.
        late_pings: number of late pings in a row.
        times_slowed: steps down since a ping was quiet or clearly shorter.
        first_late_s: the ping at the first of these steps.
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
        """Most bytes that may be sent at once after a pause."""
        return max(MIN_BURST_BYTES, self.rate_bytes_per_s * BURST_S)


def new_limiter(now_s: float, limit_bytes_per_s: float | None = None) -> LimiterState:
    """A full bucket at the owner's cap, or without a cap at the ceiling."""
    limit = min(MAX_RATE_BYTES_PER_S, limit_bytes_per_s or MAX_RATE_BYTES_PER_S)
    return LimiterState(limit, limit, MIN_BURST_BYTES, now_s, 0, now_s)


def charge(state: LimiterState, num_bytes: int, now_s: float) -> tuple[LimiterState, float]:
    """Take `num_bytes` from the bucket; the second value is the wait before sending them, in seconds."""
    if now_s - state.filled_at_s - max(0.0, -state.tokens_bytes) / state.rate_bytes_per_s > PAUSE_S:
        # a pause is no throughput: the next late pings would else slow the rate down to nearly nothing
        state = replace(state, sent_bytes=0, counting_since_s=now_s)
    earned = (now_s - state.filled_at_s) * state.rate_bytes_per_s
    tokens = min(state.burst_bytes, state.tokens_bytes + earned) - num_bytes
    charged = replace(state, tokens_bytes=tokens, filled_at_s=now_s, sent_bytes=state.sent_bytes + num_bytes)
    return charged, max(0.0, -tokens / state.rate_bytes_per_s)


def capped(state: LimiterState, limit_bytes_per_s: float | None, now_s: float) -> LimiterState:
    """The bucket under another cap. A rate learned below both caps stays; else the rate starts at the new cap, and pings correct
    it.
    """
    limit = min(MAX_RATE_BYTES_PER_S, limit_bytes_per_s or MAX_RATE_BYTES_PER_S)
    if limit == state.limit_bytes_per_s:
        return state
    has_learned = state.rate_bytes_per_s < state.limit_bytes_per_s
    settled, _ = charge(state, 0, now_s)
    rate = min(limit, state.rate_bytes_per_s) if has_learned else limit
    return replace(settled, rate_bytes_per_s=rate, limit_bytes_per_s=limit)


def heard_ping(state: LimiterState, ping_s: float, now_s: float, lag_s: float = 0.0) -> tuple[LimiterState, str]:
    """Learn from a ping made while bulk was under way; the second value says why the rate changed, "" when it did not.

    Args:
        ping_s: round trip of the ping; the whole deadline if no answer came back.
        lag_s: our own scheduling delay at that time, which a ping may add. It is not subtracted from the best ping, which could
            otherwise become zero and make every ping over a long distance late.
    """
    state = _with_ping(state, ping_s)
    best = min(state.best_ping_s, state.best_before_s)
    throughput = state.sent_bytes / max(now_s - state.counting_since_s, 0.1)
    heard = replace(state, sent_bytes=0, counting_since_s=now_s)
    if ping_s - lag_s > best + CONGESTED_S:
        late = state.late_pings + 1
        if late < PINGS_TO_SLOW_DOWN:
            # keep counting the throughput: the second late ping needs it
            return replace(state, late_pings=late), ""
        return _slowed(replace(heard, late_pings=0), ping_s, throughput, best)
    rate = min(state.limit_bytes_per_s, state.rate_bytes_per_s * GROWTH)
    return replace(heard, rate_bytes_per_s=rate, late_pings=0, times_slowed=0), ""


def _slowed(state: LimiterState, ping_s: float, throughput: float, best_s: float) -> tuple[LimiterState, str]:
    """Slow down after late pings in a row. If that has not helped MOST_IN_VAIN times, take this ping for the line's best."""
    if state.times_slowed == 0 or ping_s <= state.first_late_s * SHORTER:
        state = replace(state, times_slowed=0, first_late_s=ping_s)
    if state.times_slowed >= MOST_IN_VAIN:
        return replace(state, best_ping_s=ping_s, best_before_s=inf, window_pings=1, times_slowed=0), ""
    rate = max(MIN_RATE_BYTES_PER_S, min(state.rate_bytes_per_s, throughput) * SHARE)
    slower = replace(state, rate_bytes_per_s=min(rate, state.limit_bytes_per_s), times_slowed=state.times_slowed + 1)
    return slower, f"pings take {ping_s:.2f} s instead of {best_s:.2f} s"


def _with_ping(state: LimiterState, ping_s: float) -> LimiterState:
    """Add a ping to the window of best pings, which moves on when it is full."""
    if state.window_pings < PINGS_A_WINDOW:
        return replace(state, best_ping_s=min(state.best_ping_s, ping_s), window_pings=state.window_pings + 1)
    return replace(state, best_ping_s=ping_s, best_before_s=state.best_ping_s, window_pings=1)


class BulkLimiter:
    """The bucket of one Network: every bulk frame passes through it."""

    def __init__(self, limit_bytes_per_s: float | None = None) -> None:
        self._limit_bytes_per_s = limit_bytes_per_s
        self._state: LimiterState | None = None
        self._changed = trio.Event()

    @property
    def rate_bytes_per_s(self) -> float:
        """The present rate."""
        return self._current().rate_bytes_per_s

    def _current(self) -> LimiterState:
        if self._state is None:
            self._state = new_limiter(trio.current_time(), self._limit_bytes_per_s)
        return self._state

    async def pass_bytes(self, num_bytes: int) -> None:
        """Return when `num_bytes` may be sent, first come, first served."""
        self._state, wait_s = charge(self._current(), num_bytes, trio.current_time())
        try:
            await self._wait_for(wait_s * self._state.rate_bytes_per_s)
        except trio.Cancelled:
            # Give back what was never sent: under a low cap, later frames would else wait for it.
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
        """Set another cap from now on, also for frames that wait already; None for no cap."""
        before = self._current()
        self._state = capped(before, limit_bytes_per_s, trio.current_time())
        if self._state is not before:
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    def heard_ping(self, ping_s: float, lag_s: float) -> str:
        """Learn from a ping and our own scheduling delay; returns why the rate fell, or "" if it did not."""
        self._state, reason = heard_ping(self._current(), ping_s, trio.current_time(), lag_s)
        return reason
