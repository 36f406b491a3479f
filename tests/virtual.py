"""Virtual time: the clock and the offload of tests and simulations that run under trio's MockClock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


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


class InlineOffload:
    """Runs functions at once and lets virtual time pass: threads know nothing of a virtual clock."""

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """The function's result, `cost_s` of virtual time later."""
        await trio.sleep(cost_s)
        return function()
