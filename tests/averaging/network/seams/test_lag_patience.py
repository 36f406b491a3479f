from __future__ import annotations

import math
import threading

import pytest
import trio
import trio.testing

from averaging.network.seams.asyncio_thread import open_plain_nursery
from averaging.network.seams.lag_patience import TURN_S, patient_for
from protocol.errors import TransportError

Clock = trio.testing.MockClock


@pytest.mark.parametrize("seconds", [0.05, 2.5])
async def test_patience_ends_after_its_time(autojump_clock: Clock, seconds: float) -> None:
    began_s = trio.current_time()
    async with open_plain_nursery() as nursery:
        with patient_for(seconds, nursery, math.inf) as scope:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - began_s == pytest.approx(seconds, abs=TURN_S)


async def test_who_is_done_before_is_let_go_at_once_and_nothing_counts_on(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        with patient_for(5.0, nursery, math.inf) as scope:
            await trio.sleep(1.0)
    assert not scope.cancelled_caught
    assert trio.current_time() < 1.0 + 2 * TURN_S


async def test_a_deadline_of_its_own_counts_instead(autojump_clock: Clock) -> None:
    began_s = trio.current_time()
    async with open_plain_nursery() as nursery:
        with patient_for(0.5, nursery, math.inf) as scope:
            scope.deadline = began_s + 7.0
            await trio.sleep_forever()
    assert trio.current_time() - began_s == pytest.approx(7.0)


async def test_time_in_which_our_own_loop_stood_still_uses_up_little() -> None:
    async with open_plain_nursery() as nursery:
        with patient_for(3 * TURN_S, nursery, math.inf) as scope:
            await trio.sleep(0.0)
            threading.Event().wait(4 * TURN_S)  # the loop stands still
            await trio.sleep(TURN_S / 2)
    assert not scope.cancelled_caught


async def test_an_error_that_leaves_while_who_waits_is_cancelled_is_no_group(autojump_clock: Clock) -> None:
    """Of 32 peers on two cores three left a stream's task so, past those who take such errors."""

    async def fails_late() -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise OSError("broken") from None

    async with open_plain_nursery() as nursery:
        with pytest.raises(OSError, match="broken"), trio.move_on_after(1.0), patient_for(5.0, nursery, math.inf):
            await fails_late()


async def test_patience_in_our_own_turns_has_an_end_by_the_clock(autojump_clock: Clock) -> None:
    began_s = trio.current_time()
    async with open_plain_nursery() as nursery:
        with patient_for(5.0, nursery, began_s + 1.0) as scope:
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - began_s == pytest.approx(1.0, abs=2 * TURN_S)


async def test_patience_ends_with_the_network_that_counts_it(autojump_clock: Clock) -> None:
    began_s = trio.current_time()
    async with trio.open_nursery() as tasks:
        opened = trio.Event()
        closing = trio.CancelScope()
        nurseries: list[trio.Nursery] = []

        async def network() -> None:
            with closing:
                async with open_plain_nursery() as nursery:
                    nurseries.append(nursery)
                    opened.set()
                    await trio.sleep_forever()

        tasks.start_soon(network)
        await opened.wait()
        with patient_for(5.0, nurseries[0], math.inf) as scope:
            await trio.sleep(1.0)
            closing.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - began_s == pytest.approx(1.0)


async def test_a_network_that_has_closed_is_told_to_who_would_be_patient_in_it(autojump_clock: Clock) -> None:
    async with open_plain_nursery() as nursery:
        pass
    with pytest.raises(TransportError, match="has closed"), patient_for(5.0, nursery, math.inf):
        await trio.sleep_forever()
