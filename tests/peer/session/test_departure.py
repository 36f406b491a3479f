from __future__ import annotations

import trio
import trio.testing

from peer.session.departure import Departure

Clock = trio.testing.MockClock


async def test_a_request_ends_the_part_that_was_entered_last_and_what_comes_after_it_still_runs(
    autojump_clock: Clock,
) -> None:
    departure, done = Departure(), []
    async with trio.open_nursery() as nursery:
        with departure.ends():
            with departure.ends():
                nursery.start_soon(_order_after, departure, 1.0)
                await trio.sleep(60.0)
                done.append("not asked")
            done.append("goodbye begins")
            await trio.sleep(2.0)
            done.append("goodbye said")
    assert done == ["goodbye begins", "goodbye said"]
    assert trio.current_time() == 3.0


async def test_a_second_request_does_not_end_the_goodbye(autojump_clock: Clock) -> None:
    departure, done = Departure(), []
    async with trio.open_nursery() as nursery:
        with departure.ends():
            with departure.ends():
                nursery.start_soon(_order_after, departure, 1.0)
                nursery.start_soon(_order_after, departure, 2.0)
                await trio.sleep(60.0)
            await trio.sleep(5.0)
            done.append("goodbye said")
    assert done == ["goodbye said"]


async def test_before_the_rounds_a_request_ends_everything(autojump_clock: Clock) -> None:
    departure, done = Departure(), []
    async with trio.open_nursery() as nursery:
        with departure.ends():
            nursery.start_soon(_order_after, departure, 1.0)
            await trio.sleep(60.0)
            done.append("joined")
    assert done == []


async def test_who_begins_anew_leaves_in_the_same_way_and_who_is_asked_to_leave_meanwhile_does_not_come_back(
    autojump_clock: Clock,
) -> None:
    departure, done = Departure(), list[bool]()
    with departure.ends():
        departure.begin_anew()
        await trio.sleep(60.0)
        raise AssertionError("it goes on")
    done.append(departure.comes_back)
    departure.order()
    done.append(departure.comes_back)
    assert done == [True, False]


async def _order_after(departure: Departure, seconds: float) -> None:
    await trio.sleep(seconds)
    departure.order()
