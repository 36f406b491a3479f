"""Offload: threads for the real thing, a virtual cost in simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")


class ThreadOffload:
    """Runs functions in trio's worker threads, at most `max_threads` at once."""

    def __init__(self, max_threads: int = 4) -> None:
        self._limiter = trio.CapacityLimiter(max_threads)

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """The function's result. A cancelled caller waits for the thread: half a write must not outlive its owner."""
        return await trio.to_thread.run_sync(function, limiter=self._limiter)


class InlineOffload:
    """Runs functions at once and lets virtual time pass: threads know nothing of a virtual clock."""

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """The function's result, `cost_s` of virtual time later."""
        await trio.sleep(cost_s)
        return function()
