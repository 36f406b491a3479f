"""Virtual time and simulated processes under trio: the same seed gives the same order of everything, and a process can freeze.

trio offers none of this in public; what is touched here was read in the pinned version. All of it lasts for one `run` and is put
back after it.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Awaitable, Callable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import trio
from trio._core import _run

from averaging.network.seams.clocks import Timers
from protocol.errors import MachineError

T = TypeVar("T")

PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)
"""The process that a task belongs to: tasks inherit it from who starts them."""

GRAIN_S = 0.001
"""A twentieth of what a message takes at least: those that come within it come at once, in any order."""

_LONG_S = 1e6
_frozen: list[Process] = []


class _Nothing:
    """The value with which a task wakes up when it waits for nothing in particular; trio makes an outcome of it each time."""

    def unwrap(self) -> None:
        """Nothing."""


_NOTHING = _Nothing()


class Process:
    """One simulated process as the scheduler sees it. While it is frozen none of its tasks runs, its timers included."""

    def __init__(self) -> None:
        self.is_alive = True
        self.is_frozen = False
        self._parked: list[trio.lowlevel.Task] = []
        self._frozen_at_s = 0.0
        self._slept_s = 0.0

    def awake_s(self) -> float:
        """Virtual time spent not frozen."""
        now_s = trio.current_time()
        if self.is_frozen:
            return now_s - (self._slept_s + (now_s - self._frozen_at_s))
        return now_s - self._slept_s

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.is_frozen:
            return
        self.is_frozen = True
        self._frozen_at_s = trio.current_time()
        _frozen.append(self)
        queue = _run.GLOBAL_RUN_CONTEXT.runner.runq
        stopped = [task for task in queue if task.context.get(PROCESS) is self]
        self._parked.extend(stopped)
        for task in stopped:
            queue.remove(task)

    def thaw(self) -> None:
        """SIGCONT: everything that came due meanwhile is due at once."""
        if not self.is_frozen:
            return
        self.is_frozen = False
        self._slept_s += trio.current_time() - self._frozen_at_s
        _frozen.remove(self)
        parked, self._parked = self._parked, []
        _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(parked)

    def kill(self) -> None:
        """SIGKILL: what is left of it may only unwind."""
        self.is_alive = False
        self.thaw()

    def check_alive(self) -> None:
        """Raises MachineError in a process that was killed."""
        if not self.is_alive:
            raise MachineError("this process has crashed", "a live process")

    def park(self, task: trio.lowlevel.Task) -> None:
        """Keep a task that became runnable."""
        self._parked.append(task)


def _reschedule(runner: Any, task: Any, next_send: Any = _run._NO_SEND) -> None:
    """As trio's own, but the tasks of frozen processes wait."""
    task._next_send_fn = task.coro.send
    task._next_send = _NOTHING if next_send is _run._NO_SEND else next_send
    task._abort_func = None
    task.custom_sleep_data = None
    if _frozen:
        process = task.context.get(PROCESS)
        if process is not None and process.is_frozen:
            process.park(task)
            return
    runner.runq.append(task)


class JumpingClock(trio.abc.Clock):
    """Virtual time that jumps to the next deadline or timer whenever every task waits."""

    def __init__(self, grain_s: float = GRAIN_S) -> None:
        self._now_s = 0.0
        self._runnable: Sized = ()
        self.timers = Timers(None, grain_s, self.current_time)
        self.is_over = False
        """The world has ended, and trio is putting its own things away, for which it waits on files."""

    def start_clock(self) -> None:
        """Nothing to start."""

    def watch(self, runnable: Sized) -> None:
        """These are the tasks that are about to run."""
        self._runnable = runnable

    def current_time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """trio asks when nothing is runnable: the moment to jump, until something is, or a deadline of trio's own has come. A turn of
        trio for a message that wakes nobody would cost more than the message.
        """
        if self.is_over:
            return min(deadline, _LONG_S)
        timers = self.timers
        while True:
            next_s = min(deadline, timers.next_s())
            if next_s == math.inf:
                raise RuntimeError("the simulated world has come to a standstill")
            self._now_s = max(self._now_s, next_s)
            timers.run_due(self._now_s)
            if self._runnable or self._now_s >= deadline:
                return 0.0


class _NoEvents:
    """trio's door to the operating system, shut: a simulated world waits for no file."""

    def __init__(self, real: Any, runner: Any) -> None:
        self._real = real
        self._runner = runner

    def get_events(self, timeout: float) -> Any:
        return self._real.get_events(0) if self._runner.ki_pending else ()

    def process_events(self, events: Any) -> None:
        if events:
            self._real.process_events(events)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


@contextmanager
def _simulated_scheduler(seed: int) -> Iterator[None]:
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run.Runner.reschedule, gc.isenabled()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r.seed(seed)
    setattr(_run.Runner, "reschedule", _reschedule)  # noqa: B010 - a method of another's class
    gc.freeze()  # what is imported need not be looked through after each world
    gc.disable()
    try:
        yield
    finally:
        _frozen.clear()
        _run._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        setattr(_run.Runner, "reschedule", before[1])  # noqa: B010
        if before[2]:
            gc.enable()
        gc.collect()


def collect_garbage() -> None:
    """Now and then in a world of hours, which nothing collects while it runs: everybody who went is a cycle of a few megabytes."""
    gc.collect()


def driven_timers() -> Timers | None:
    """The timers of the running world's clock; None under any other clock."""
    clock = _run.GLOBAL_RUN_CONTEXT.runner.clock
    return clock.timers if isinstance(clock, JumpingClock) else None


def run(seed: int, main: Callable[[], Awaitable[T]], grain_s: float = GRAIN_S) -> T:
    """Run a world to its end, in an order that depends on the seed alone; timers end at multiples of `grain_s`."""

    async def shut_in() -> T:
        runner: Any = _run.GLOBAL_RUN_CONTEXT.runner
        real, runner.io_manager = runner.io_manager, _NoEvents(runner.io_manager, runner)
        clock.watch(runner.runq)
        # there are none; trio's own mapping says so in Python, twice for each step of a task
        instruments, runner.instruments = runner.instruments, {}
        sleep, trio.sleep = trio.sleep, clock.timers.sleep
        try:
            return await main()
        finally:
            trio.sleep = sleep
            runner.io_manager, runner.instruments = real, instruments
            clock.is_over = True

    clock = JumpingClock(grain_s)
    with _simulated_scheduler(seed):
        return trio.run(shut_in, clock=clock)
