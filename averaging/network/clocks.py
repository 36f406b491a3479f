"""Clock: the machine's, and the virtual one of trio's MockClock."""

from __future__ import annotations

import time

import trio


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """The clock of trio: it only grows."""
        return trio.current_time()

    def unix_s(self) -> float:
        """Seconds since 1970."""
        return time.time()


class VirtualClock:
    """Virtual time under trio's MockClock; `skew_s` makes one peer's wall clock wrong."""

    def __init__(self, unix_at_zero_s: float = 1_700_000_000.0, skew_s: float = 0.0) -> None:
        self._offset_s = unix_at_zero_s + skew_s

    def monotonic_s(self) -> float:
        """Virtual seconds."""
        return trio.current_time()

    def unix_s(self) -> float:
        """Virtual wall clock."""
        return self._offset_s + trio.current_time()
