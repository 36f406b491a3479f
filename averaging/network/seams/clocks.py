"""The machine's clock, and timers on one task for the in-memory implementations."""

from __future__ import annotations

import contextvars
import heapq
import math
import time
from collections.abc import Callable

import trio

_Entry = tuple[float, int, list["Timer"]]


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Seconds on trio's clock, which only grows."""
        return trio.current_time()

    def unix_s(self) -> float:
        """Seconds since 1970."""
        return time.time()


class Timer:
    """One wake-up, which `cancel` prevents."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Prevent the call."""
        self.callback = None


class Timers:
    """Callbacks at times of trio's clock, all on one task: a swarm in virtual time sleeps very often, and trio's sleep costs more.

    Args:
        nursery: runs the task; None if somebody else calls `run_due`, such as a clock that owns the time.
        grain_s: times are rounded up to multiples of this, so that callbacks at almost the same time wake up once; 0 is exact.
        now_s: reads trio's clock; pass a cheaper way if there is one.
    """

    def __init__(
        self, nursery: trio.Nursery | None, grain_s: float = 0.0, now_s: Callable[[], float] = trio.current_time
    ) -> None:
        self._nursery = nursery
        self._grain_s = grain_s
        self.now_s = now_s
        self._heap: list[_Entry] = []
        self._number = 0
        self._last: _Entry | None = None
        """The last entry if it is still to come; the next call for the same time joins it."""
        self._nap: trio.CancelScope | None = None
        self._is_running = False
        self._is_over = False
        self._sleeping_through: dict[int, trio.lowlevel.Task] = {}

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call back in `delay_s` seconds, in the order of times, then of calls to this method."""
        at_s = self.now_s() + delay_s
        if self._grain_s > 0:
            at_s = math.ceil(at_s / self._grain_s) * self._grain_s
        timer, last = Timer(callback), self._last
        if last is not None and last[0] == at_s:
            last[2].append(timer)
            return timer
        self._number += 1
        self._last = entry = (at_s, self._number, [timer])
        heapq.heappush(self._heap, entry)
        if self._nursery is not None and not self._is_running:
            self._is_running = True
            # the timers must not inherit the first caller's context variables
            contextvars.Context().run(self._nursery.start_soon, self._run)
        elif self._nap is not None and at_s < self._nap.deadline:
            self._nap.deadline = at_s
        return timer

    async def sleep(self, seconds: float) -> None:
        """As trio.sleep."""
        task = trio.lowlevel.current_task()
        timer = self.after(seconds, lambda: trio.lowlevel.reschedule(task))

        def abort(_: object) -> trio.lowlevel.Abort:
            timer.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def sleep_through(self, seconds: float) -> None:
        """Sleep in spite of cancellations; only the end of the timers themselves cuts it short."""
        if self._is_over:
            return
        task = trio.lowlevel.current_task()
        timer = self.after(seconds, lambda: self._wake(task))
        self._sleeping_through[id(task)] = task
        try:
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        finally:
            timer.cancel()

    def _wake(self, task: trio.lowlevel.Task) -> None:
        del self._sleeping_through[id(task)]
        trio.lowlevel.reschedule(task)

    def next_s(self) -> float:
        """The time of the next callback; infinity when there is none."""
        heap = self._heap
        while heap and heap[0][2][0].callback is None and all(timer.callback is None for timer in heap[0][2]):
            self._pop()
        return heap[0][0] if heap else math.inf

    def run_due(self, now_s: float) -> None:
        """Call all callbacks that are due."""
        heap = self._heap
        while heap and heap[0][0] <= now_s:
            for timer in self._pop():
                if timer.callback is not None:
                    timer.callback()

    def _pop(self) -> list[Timer]:
        entry = heapq.heappop(self._heap)
        if entry is self._last:
            self._last = None
        return entry[2]

    async def _run(self) -> None:
        try:
            while True:
                self.run_due(trio.current_time())
                with trio.CancelScope(deadline=self.next_s()) as self._nap:
                    await trio.sleep_forever()
                self._nap = None
        finally:
            # wake these sleepers now: no callback will come, and no cancellation reaches them
            self._is_over = True
            for task in list(self._sleeping_through.values()):
                self._wake(task)
