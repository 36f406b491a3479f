"""The contract of every form of Clock and Offload."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import MockClock

from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.interfaces import Clock, Offload
from averaging.network.seams.offload import ThreadOffload
from protocol.errors import StorageError
from tests.virtual import InlineOffload, VirtualClock

WORK_LIMIT_S = 60.0


@pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()])
async def test_monotonic_time_is_trios_and_both_clocks_go_at_one_speed(clock: Clock) -> None:
    began_s, began_unix_s = clock.monotonic_s(), clock.unix_s()
    assert began_s == pytest.approx(trio.current_time(), abs=60.0)
    await trio.sleep(0.05)
    assert clock.monotonic_s() - began_s >= 0.05
    assert clock.unix_s() - began_unix_s == pytest.approx(clock.monotonic_s() - began_s, abs=0.05)


async def test_virtual_time_passes_as_the_mock_clock_says_and_one_peer_may_be_wrong(autojump_clock: MockClock) -> None:
    right, wrong = VirtualClock(1000.0), VirtualClock(1000.0, skew_s=300.0)
    began_s = right.unix_s()
    await trio.sleep(86_400)
    assert right.unix_s() - began_s == pytest.approx(86_400)
    assert wrong.unix_s() - right.unix_s() == pytest.approx(300.0)


@pytest.mark.parametrize("offload", [ThreadOffload(), InlineOffload()])
async def test_a_result_and_an_error_come_back(offload: Offload) -> None:
    def fail() -> None:
        raise StorageError("disk full")

    assert await offload.run(lambda: 6 * 7) == 42
    with pytest.raises(StorageError, match="disk full"):
        await offload.run(fail)


async def test_threads_leave_the_loop_free_and_are_bounded() -> None:
    offload = ThreadOffload(max_threads=2)
    lock, may_end = threading.Lock(), threading.Event()
    running, most = 0, 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        may_end.wait(WORK_LIMIT_S)
        with lock:
            running -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(offload.run, work)
        while most < 2:
            await trio.sleep(0.001)
        may_end.set()
    assert most == 2


async def test_inline_work_costs_the_virtual_time_it_is_told(autojump_clock: MockClock) -> None:
    began_s = trio.current_time()
    await InlineOffload().run(lambda: None, cost_s=1.5)
    assert trio.current_time() - began_s == pytest.approx(1.5)
