from __future__ import annotations

import asyncio
import threading

import pytest
import trio

from averaging.network.seams.asyncio_thread import open_asyncio_thread
from protocol.errors import CallTimeout, RemoteProtocolError, TransportError


async def _thread_name() -> str:
    return threading.current_thread().name


async def test_a_coroutine_runs_on_the_thread_and_its_result_crosses() -> None:
    async with open_asyncio_thread() as thread:
        assert await thread.run(_thread_name) == "asyncio"
        assert await thread.run(asyncio.sleep, 0, "value") == "value"


async def test_an_error_crosses_unchanged_in_both_directions() -> None:
    error = RemoteProtocolError("found", "expected")

    async def fail_in_asyncio() -> None:
        raise error

    async def fail_in_trio() -> None:
        raise error

    async with open_asyncio_thread() as thread:
        with pytest.raises(RemoteProtocolError) as caught:
            await thread.run(fail_in_asyncio)
        assert caught.value is error
        with pytest.raises(RemoteProtocolError) as caught:
            await thread.run(thread.call_trio, fail_in_trio)
        assert caught.value is error


async def test_asyncio_calls_trio_which_calls_asyncio() -> None:
    async with open_asyncio_thread() as thread:

        async def in_trio(number: int) -> int:
            await trio.sleep(0)
            return await thread.run(asyncio.sleep, 0, number + 1)

        async def in_asyncio() -> int:
            return await thread.call_trio(in_trio, 41)

        assert await thread.run(in_asyncio) == 42


async def test_a_deadline_cancels_the_coroutine_and_waits_for_its_end() -> None:
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    async with open_asyncio_thread() as thread:
        with pytest.raises(CallTimeout):
            await thread.run(endless, timeout_s=0.05)
        assert ended == ["cleaned up"]


async def test_a_result_that_comes_despite_a_cancellation_is_not_lost() -> None:
    async def finishes_anyway() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "opened"
        return "never"

    async with open_asyncio_thread() as thread:
        with trio.move_on_after(0.05) as scope:
            assert await thread.run(finishes_anyway) == "opened"
        assert not scope.cancelled_caught


async def test_cancelling_the_asyncio_caller_cancels_the_trio_task() -> None:
    began, ended = trio.Event(), trio.Event()

    async def in_trio() -> None:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with open_asyncio_thread() as thread:
        with pytest.raises(CallTimeout):
            await thread.run(thread.call_trio, in_trio, timeout_s=0.1)
        assert began.is_set()
        with trio.fail_after(60):
            await ended.wait()


async def test_a_task_cancelled_over_there_is_a_transport_error_here() -> None:
    async def cancel_itself() -> None:
        task = asyncio.current_task()
        if task is not None:
            task.cancel()
        await asyncio.sleep(1)

    async with open_asyncio_thread() as thread:
        with pytest.raises(TransportError):
            await thread.run(cancel_itself)


async def test_closing_ends_every_task_and_the_thread() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("background")

    async def leave_one_behind() -> None:
        tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    before = threading.active_count()
    async with open_asyncio_thread() as thread:
        await thread.run(leave_one_behind)
    assert ended == ["background"]
    assert not [t for t in threading.enumerate() if t.name == "asyncio"]
    assert threading.active_count() <= before + 1  # trio keeps the thread that joined ours for a moment
    with pytest.raises(TransportError):
        await thread.run(_thread_name)


async def test_an_error_of_the_body_leaves_as_itself() -> None:
    with pytest.raises(RemoteProtocolError):
        async with open_asyncio_thread():
            raise RemoteProtocolError("found")


async def test_many_crossings_at_once_all_come_back() -> None:
    results: list[int] = []

    async with open_asyncio_thread() as thread, trio.open_nursery() as nursery:

        async def cross(number: int) -> None:
            results.append(await thread.run(asyncio.sleep, 0.001, number))

        for number in range(300):
            nursery.start_soon(cross, number)
    assert sorted(results) == list(range(300))
