"""Progress of long work of a command, on standard error: one line that is redrawn on a terminal, and a line now and then elsewhere.

Short work says nothing. A daemon's services run within `no_progress`, for its screen shows what they do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO

from protocol.tables import done_percent, duration, in_bytes, whole

QUIET_S: Final = 2.0
"""Work that takes less time than this shows no progress."""

REDRAW_S: Final = 0.5
LINE_S: Final = 15.0
"""Interval of the lines where nothing can be redrawn."""

_IS_SHOWN: ContextVar[bool] = ContextVar("is_shown", default=True)


@contextmanager
def no_progress() -> Iterator[None]:
    """Show no progress of what runs within, in tasks and threads that it starts, too."""
    token = _IS_SHOWN.set(False)
    try:
        yield
    finally:
        _IS_SHOWN.reset(token)


class Progress:
    """The progress of one piece of work.

    Args:
        what: the work, as "packing the data".
        total: its size, 0 while unknown; an estimate may be too high or too low.
        unit: of `total`: "bytes", or the plural of what is counted.
        stream: takes the lines; None shows nothing.
        now_s: monotonic seconds.
    """

    def __init__(self, what: str, total: float, unit: str, stream: TextIO | None, now_s: Callable[[], float]) -> None:
        self._what, self._total, self._unit, self._stream, self._now_s = what, total, unit, stream, now_s
        self._done = 0.0
        self._began_s = self._said_s = now_s()
        self._has_drawn = False

    def add(self, amount: float) -> None:
        """Some of the work is done."""
        self._done += amount
        stream, now_s = self._stream, self._now_s()
        if stream is None or now_s - self._began_s < QUIET_S:
            return
        if now_s - self._said_s < (REDRAW_S if stream.isatty() else LINE_S):
            return
        self._said_s = now_s
        stream.write(f"\r\x1b[K{self.text()}" if stream.isatty() else f"{self.text()}\n")
        stream.flush()
        self._has_drawn = True

    def reach(self, done: float, total: float) -> None:
        """So much of so much is done by now."""
        self._total = total
        self.add(done - self._done)

    def close(self) -> None:
        """Remove the redrawn line."""
        if self._stream is not None and self._has_drawn and self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def text(self) -> str:
        """The progress and the time to go, in one line."""
        if not self._total:
            return f"{self._what}: {self._shown(self._done)} so far"
        took_s, done = self._now_s() - self._began_s, min(self._done, self._total)
        left = f"{duration((self._total - done) * took_s / done)} to go" if done else "time left: not known yet"
        percent = done_percent(done, self._total)
        return f"{self._what}: {self._shown(done)} of {self._shown(self._total)} ({percent}), {left}"

    def _shown(self, amount: float) -> str:
        return in_bytes(amount) if self._unit == "bytes" else f"{whole(amount)} {self._unit}"


@contextmanager
def progress(what: str, total: float, unit: str = "bytes") -> Iterator[Progress]:
    """The progress of the work within, as `Progress`."""
    shown = Progress(what, total, unit, sys.stderr if _IS_SHOWN.get() else None, time.monotonic)
    try:
        yield shown
    finally:
        shown.close()


OnBytes = Callable[[int, int], None]
"""Called with the bytes done so far and with all of them, as often as the work likes."""


@contextmanager
def shown_progress(what: str) -> Iterator[OnBytes]:
    """Like `progress`, for work that tells how many bytes of how many it has done."""
    with progress(what, 0) as shown:
        yield shown.reach
