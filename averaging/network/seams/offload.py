"""Offload: threads for functions that would block the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import trio

T = TypeVar("T")


class _Places:
    """A CapacityLimiter without a checkpoint while it has places; the wait for the thread is one already."""

    def __init__(self, num_places: int) -> None:
        self._limiter = trio.CapacityLimiter(num_places)

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        try:
            self._limiter.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            await self._limiter.acquire_on_behalf_of(borrower)

    def release_on_behalf_of(self, borrower: object) -> None:
        self._limiter.release_on_behalf_of(borrower)


class ThreadOffload:
    """Runs functions in trio's worker threads, at most `max_threads` at once."""

    def __init__(self, max_threads: int = 4) -> None:
        # trio takes any object with these two methods (see its documentation of `to_thread.run_sync`), but its types do not say so
        self._limiter = cast(trio.CapacityLimiter, _Places(max_threads))

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """The function's result. A cancelled caller waits for the thread, because a write must not outlive its owner."""
        return await trio.to_thread.run_sync(function, limiter=self._limiter)
