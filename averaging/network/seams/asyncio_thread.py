"""The only bridge between trio and asyncio: a dedicated thread that runs an asyncio (uvloop) loop.

hivemind and grpc.aio live on that thread; no other code knows of it. There are two ways across:

    await thread.run(coroutine_function, *args)     trio -> asyncio: the coroutine runs on the thread, its result comes back
    await thread.call_trio(async_function, *args)   asyncio -> trio: the function runs as a task of the bridge's nursery

A cancellation on one side cancels the other and waits for it to end, so that nothing runs on without its caller.
Errors cross unchanged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

import structlog
import trio

from protocol.errors import CallTimeout, LocalProtocolError, TransportError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = structlog.get_logger()

CANCEL_GRACE_S: Final = 5.0
"""A cancelled coroutine has this long to end before the bridge stops waiting for it; it is cancelled again at closing."""

CLOSE_GRACE_S: Final = 10.0


@asynccontextmanager
async def open_plain_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery that raises its body's error as itself, not inside an exception group. Its tasks must handle their own errors.

    It is cancelled when the body ends, since its tasks serve the body.
    """
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise


class _Crossing(Generic[T]):
    """One coroutine that runs on the asyncio thread and is awaited in trio."""

    def __init__(self, loop: asyncio.AbstractEventLoop, token: trio.lowlevel.TrioToken) -> None:
        self._loop = loop
        self._token = token
        self._task: asyncio.Task[T] | None = None
        self._wants_cancel = False
        self.done = trio.Event()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """On the loop's thread: begin."""
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._tell)
        if self._wants_cancel:
            self._task.cancel()

    def cancel(self) -> None:
        """On the loop's thread: ask the task to end."""
        self._wants_cancel = True
        if self._task is not None:
            self._task.cancel()

    def _tell(self, _: asyncio.Task[T]) -> None:
        try:
            self._token.run_sync_soon(self.done.set)
        except trio.RunFinishedError:
            log.debug("asyncio_result_after_the_end")

    @property
    def was_cancelled(self) -> bool:
        """Whether the coroutine ended by cancellation."""
        return self._task is not None and self._task.done() and self._task.cancelled()

    def result(self) -> T:
        """The coroutine's result, or its error.

        Raises:
            TransportError: it was cancelled on the asyncio thread, not by us.
        """
        if self._task is None or self._task.cancelled():
            raise TransportError("the call was cancelled on the asyncio thread", "an answer", "the thread is closing")
        return self._task.result()


class AsyncioThread:
    """The bridge. Made by `open_asyncio_thread`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, nursery: trio.Nursery) -> None:
        self._loop = loop
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self._is_closed = False

    async def run(
        self, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts, timeout_s: float | None = None
    ) -> T:
        """From trio: run `function(*args)` on the asyncio thread and wait for its result.

        If we are cancelled, the coroutine is cancelled too. If it finishes nevertheless, its result is returned, so that nothing it
        opened is lost; the next checkpoint raises Cancelled.

        Raises:
            CallTimeout: not done within `timeout_s`.
            TransportError: the thread is closing.
        """
        if timeout_s is None:
            return await self._run(function, *args)
        with trio.move_on_after(timeout_s):
            return await self._run(function, *args)
        raise CallTimeout(f"no result of {function.__name__} within {timeout_s:g} s", "an answer")

    async def _run(self, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_closed:
            raise TransportError("the asyncio thread is closed", "an open one")
        crossing: _Crossing[T] = _Crossing(self._loop, self._token)
        self._loop.call_soon_threadsafe(lambda: crossing.start(function(*args)))
        try:
            await crossing.done.wait()
        except trio.Cancelled:
            self._loop.call_soon_threadsafe(crossing.cancel)
            with trio.CancelScope(shield=True), trio.move_on_after(CANCEL_GRACE_S):
                await crossing.done.wait()
            if not crossing.done.is_set():
                log.warning("asyncio_call_ignores_cancel", call=function.__name__)
                raise
            if crossing.was_cancelled:
                raise
        return crossing.result()

    async def call_trio(self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """From asyncio: run a trio function as a task of the bridge's nursery and wait for its result.

        Raises:
            TransportError: trio cancelled it, because the process is closing.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise LocalProtocolError("call_trio outside the asyncio thread", "a call from the thread of this bridge")
        future: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()

        async def task() -> None:
            try:
                with scope:
                    value = await function(*args)
                    self._loop.call_soon_threadsafe(_settle, future, value)
                    return
                self._loop.call_soon_threadsafe(future.cancel)
            except Exception as error:  # noqa: BLE001 - the edge of a nursery: every error belongs to the asyncio caller
                self._loop.call_soon_threadsafe(_settle_error, future, error)
            except trio.Cancelled:
                self._loop.call_soon_threadsafe(_settle_error, future, _closing())
                raise

        self._spawn(task, future)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._token.run_sync_soon(scope.cancel)
            await asyncio.wait({future}, timeout=CANCEL_GRACE_S)
            if future.done() and not future.cancelled():
                future.exception()  # retrieved: the caller was cancelled and does not want it
            raise

    def _spawn(self, task: Callable[[], Awaitable[None]], future: asyncio.Future[T]) -> None:
        def start() -> None:
            if self._is_closed:
                self._loop.call_soon_threadsafe(_settle_error, future, _closing())
            else:
                self._nursery.start_soon(task)

        try:
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            raise _closing() from None

    def mark_closed(self) -> None:
        """Refuse new crossings from now on."""
        self._is_closed = True


def _closing() -> TransportError:
    return TransportError("the call was cancelled: this process is closing", "an answer")


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _settle_error(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: asyncio's own loop does the same, slower
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _log_forgotten(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log errors of tasks that nobody awaits: hivemind leaves some behind when p2pd dies."""
    log.debug("asyncio_task_failed", what=context.get("message"), error=repr(context.get("exception"))[:200])


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.set_exception_handler(_log_forgotten)
    try:
        loop.run_forever()
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _end_tasks() -> None:
    """Cancel all other tasks of the loop and wait for them, at most CANCEL_GRACE_S."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        _, stubborn = await asyncio.wait(others, timeout=CANCEL_GRACE_S)
        for task in stubborn:
            log.warning("asyncio_task_left_behind", task=task.get_name())
    await loop.shutdown_asyncgens()


@asynccontextmanager
async def open_asyncio_thread() -> AsyncIterator[AsyncioThread]:
    """Start the thread; end it and all of its tasks when the block ends.

    The thread must outlive every process that it starts with a parent-death signal, because that signal follows the starting
    thread.
    """
    loop = _new_loop()
    worker = threading.Thread(target=_run_loop, args=(loop,), name="asyncio", daemon=True)
    worker.start()
    try:
        async with open_plain_nursery() as nursery:
            bridge = AsyncioThread(loop, nursery)
            try:
                yield bridge
            finally:
                bridge.mark_closed()
    finally:
        with trio.CancelScope(shield=True):
            crossing: _Crossing[None] = _Crossing(loop, trio.lowlevel.current_trio_token())
            loop.call_soon_threadsafe(lambda: crossing.start(_end_tasks()))
            with trio.move_on_after(CLOSE_GRACE_S):
                await crossing.done.wait()
            loop.call_soon_threadsafe(loop.stop)
            await trio.to_thread.run_sync(worker.join, CLOSE_GRACE_S)
