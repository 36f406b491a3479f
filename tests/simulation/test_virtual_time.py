"""The clock of the simulated worlds."""

from __future__ import annotations

import pytest
import trio

from tests.simulation import virtual_time


def _timers_at(times: list[float], *seconds: float) -> None:
    timers = virtual_time.driven_timers()
    assert timers is not None
    for second in seconds:
        timers.after(second, lambda: times.append(trio.current_time()))


def test_a_deadline_between_timers_that_wake_nobody_comes_in_its_time() -> None:
    times: list[float] = []

    async def tell() -> None:
        _timers_at(times, 1.0, 2.0, 3.0)
        with trio.move_on_after(2.5):
            await trio.sleep_forever()
        times.append(trio.current_time())

    virtual_time.run(0, tell)
    assert times == [1.0, 2.0, 2.5]


def test_timers_end_at_multiples_of_the_grain() -> None:
    times: list[float] = []

    async def tell() -> None:
        _timers_at(times, 0.101, 0.104, 0.106)
        await trio.sleep(0.2)

    virtual_time.run(0, tell, grain_s=0.005)
    assert times == pytest.approx([0.105, 0.105, 0.11])
