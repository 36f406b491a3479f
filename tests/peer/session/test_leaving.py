"""Tests of peer/session/leaving.py.

A peer that leaves with the only copy of an expert stays until the host has it.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing

from peer.session.leaving import (
    HAND_OVER_WITHIN_S,
    HANDED_OVER_POLL_S,
    LINGER_S,
    LOOK_EVERY_S,
    Departure,
    hand_over,
    linger,
)
from protocol.ids import CommitId, UnitName

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
    departure.begin_anew()
    done.append(departure.comes_back)
    assert done == [True, False, False]


async def _order_after(departure: Departure, seconds: float) -> None:
    await trio.sleep(seconds)
    departure.order()


Clock = trio.testing.MockClock


async def _nobody_says_so() -> bool:
    return False


async def test_a_peer_goes_as_soon_as_everybody_has_all(autojump_clock: Clock) -> None:
    async def has_all() -> bool:
        return trio.current_time() - begun_s >= 5.0

    begun_s = trio.current_time()
    await linger(has_all, lambda: 0)
    assert 5.0 <= trio.current_time() - begun_s <= 5.0 + LOOK_EVERY_S


async def test_a_peer_of_which_nobody_takes_anything_goes_after_a_while(autojump_clock: Clock) -> None:
    begun_s = trio.current_time()
    await linger(_nobody_says_so, lambda: 1000)
    assert trio.current_time() - begun_s == LINGER_S


async def test_a_peer_stays_while_the_last_checkpoint_is_taken_of_it_however_slowly(autojump_clock: Clock) -> None:
    taken_until_s = 10 * LINGER_S

    def given() -> int:
        return int(min(trio.current_time() - begun_s, taken_until_s) // 10)

    begun_s = trio.current_time()
    await linger(_nobody_says_so, given)
    assert abs(trio.current_time() - begun_s - (taken_until_s + LINGER_S)) <= 1.0


async def test_nobody_keeps_a_peer_for_good(monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock) -> None:
    monkeypatch.setattr("peer.session.leaving.MOST_LINGER_S", 4 * LINGER_S)
    begun_s = trio.current_time()
    await linger(_nobody_says_so, lambda: int(trio.current_time()))
    assert trio.current_time() - begun_s == 4 * LINGER_S


async def test_a_host_that_does_not_answer_keeps_nobody(autojump_clock: Clock) -> None:
    begun_s = trio.current_time()

    async def silent() -> bool:
        await trio.sleep_forever()
        return False

    await linger(silent, lambda: 0)
    assert trio.current_time() - begun_s == LINGER_S


Clock = trio.testing.MockClock
FIRST, SECOND = UnitName("expert-0"), UnitName("expert-1")
OLD, NEW = CommitId(b"o" * 32), CommitId(b"n" * 32)


class _Host:
    """Takes what it is told of, each unit some seconds after the report."""

    def __init__(self, **takes_s: float) -> None:
        self._takes_s = takes_s
        self._reported_s: float | None = None
        self.reports = 0

    async def report(self) -> None:
        self.reports += 1
        self._reported_s = trio.current_time()

    def stands_at(self, unit: UnitName) -> CommitId:
        takes_s = self._takes_s[unit.replace("-", "_")]
        has_it = takes_s == 0.0 or (self._reported_s is not None and trio.current_time() - self._reported_s >= takes_s)
        return NEW if has_it else OLD


async def test_who_leaves_stays_until_the_host_has_the_last_round_of_each_unit(autojump_clock: Clock) -> None:
    host, begun_s = _Host(expert_0=1.0, expert_1=3.0), trio.current_time()
    assert await hand_over({FIRST: NEW, SECOND: NEW}, host.stands_at, host.report) == ()
    assert 3.0 <= trio.current_time() - begun_s <= 3.0 + 2 * HANDED_OVER_POLL_S
    assert host.reports == 1


async def test_nothing_is_waited_for_where_the_host_has_all_or_others_hold_it(autojump_clock: Clock) -> None:
    host, begun_s = _Host(expert_0=0.0), trio.current_time()
    assert await hand_over({FIRST: NEW}, host.stands_at, host.report) == ()
    assert await hand_over({}, host.stands_at, host.report) == ()
    assert (trio.current_time() - begun_s, host.reports) == (0.0, 0)


async def test_a_host_that_does_not_come_keeps_nobody_and_what_it_lacks_is_named(autojump_clock: Clock) -> None:
    host, begun_s = _Host(expert_0=1.0, expert_1=60.0), trio.current_time()
    assert await hand_over({FIRST: NEW, SECOND: NEW}, host.stands_at, host.report) == (SECOND,)
    assert trio.current_time() - begun_s == HAND_OVER_WITHIN_S

    async def silent() -> None:
        await trio.sleep_forever()

    assert await hand_over({SECOND: NEW}, host.stands_at, silent) == (SECOND,)
