from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from averaging.network.pacing.bulk_limiter import (
    CONGESTED_S,
    MAX_RATE_BYTES_PER_S,
    MIN_BURST_BYTES,
    MIN_RATE_BYTES_PER_S,
    BulkLimiter,
    capped,
    charge,
    heard_ping,
    new_limiter,
)


def test_a_full_bucket_lets_one_burst_through_and_then_waits_at_the_rate() -> None:
    state = new_limiter(0.0, 100_000.0)
    state, wait_s = charge(state, int(MIN_BURST_BYTES), 0.0)
    assert wait_s == 0.0
    state, wait_s = charge(state, 50_000, 0.0)
    assert wait_s == pytest.approx(0.5)
    _, wait_s = charge(state, 50_000, 0.5)
    assert wait_s == pytest.approx(0.5)


def test_idle_time_earns_no_more_than_a_burst() -> None:
    state, _ = charge(new_limiter(0.0, 100_000.0), int(MIN_BURST_BYTES), 0.0)
    _, wait_s = charge(state, int(MIN_BURST_BYTES) + 100_000, 3600.0)
    assert wait_s == pytest.approx(1.0)


def test_one_late_ping_changes_nothing_two_in_a_row_slow_down_to_a_share_of_the_throughput() -> None:
    state, _ = heard_ping(new_limiter(0.0), 0.02, 0.5)
    assert state.rate_bytes_per_s == MAX_RATE_BYTES_PER_S
    state, _ = charge(state, 125_000, 1.0)
    state, reason = heard_ping(state, 0.02 + CONGESTED_S + 0.1, 1.0)
    assert (reason, state.rate_bytes_per_s) == ("", MAX_RATE_BYTES_PER_S)
    state, reason = heard_ping(state, 2.0, 1.5)
    assert "pings take 2.00 s" in reason
    assert state.rate_bytes_per_s == pytest.approx(0.7 * 125_000)


def test_a_line_that_was_not_used_for_a_while_is_slowed_to_a_share_of_what_it_carries_now() -> None:
    """Ten minutes between two rounds counted as time in which it was sent, so the next one began at 16 kB/s."""
    state, _ = heard_ping(new_limiter(0.0), 0.02, 0.5)
    state, _ = charge(state, 125_000, 600.0)
    state, _ = heard_ping(state, 2.0, 600.5)
    state, _ = charge(state, 125_000, 600.5)
    state, reason = heard_ping(state, 2.0, 602.0)
    assert reason
    assert state.rate_bytes_per_s == pytest.approx(0.7 * 125_000)


def test_who_waits_for_its_turn_under_a_low_rate_is_not_taken_for_one_with_nothing_to_send() -> None:
    state = new_limiter(0.0, MIN_RATE_BYTES_PER_S)
    state, _ = heard_ping(state, 0.02, 0.5)
    state, wait_s = charge(state, 1_000_000, 1.0)
    state, _ = charge(state, 1_000, 1.0 + wait_s)
    assert state.sent_bytes == 1_001_000


def test_our_own_lag_makes_a_ping_less_late_and_none_shorter_than_it_was() -> None:
    """Pings of 0.2 s were all late beside one of no time at all, which was 0.2 s less what we were late before it began."""
    state, _ = heard_ping(new_limiter(0.0), 0.2, 0.5, 0.3)
    for step in range(20):
        state, reason = heard_ping(state, 0.2 + 0.9 * CONGESTED_S, 1.0 + step)
        assert not reason
    late = 0.2 + CONGESTED_S + 0.1
    for step in range(20):
        state, reason = heard_ping(state, late, 30.0 + step, 0.2)
        assert not reason
    state, _ = heard_ping(state, late, 60.0)
    _, reason = heard_ping(state, late, 61.0)
    assert "instead of 0.20 s" in reason


def test_quiet_pings_raise_the_rate_up_to_the_owners_cap() -> None:
    state = new_limiter(0.0, 1_000_000.0)
    for now_s in (1.0, 2.0):
        state, _ = heard_ping(state, 2.0 if now_s > 1 else 0.01, now_s)
    for step in range(2):
        state, _ = heard_ping(state, 2.0, 3.0 + step)
    slowed = state.rate_bytes_per_s
    for step in range(100):
        state, _ = heard_ping(state, 0.01, 10.0 + step)
    assert slowed < 1_000_000.0
    assert state.rate_bytes_per_s == 1_000_000.0


def test_the_rate_never_falls_to_nothing() -> None:
    state = new_limiter(0.0)
    state, _ = heard_ping(state, 0.01, 0.1)
    for step in range(40):  # each time slower helps a little
        state, _ = heard_ping(state, max(0.5, 20.0 * 0.9**step), 1.0 + step)
        assert state.rate_bytes_per_s >= MIN_RATE_BYTES_PER_S
    assert state.rate_bytes_per_s == MIN_RATE_BYTES_PER_S


@pytest.mark.parametrize("late_s", [0.8, 30.0])
def test_pings_that_slowing_down_does_not_shorten_are_not_our_queue(late_s: float) -> None:
    """Sixteen peers on two cores came down to 16 kB/s, all of them waiting for the processor and none for the line."""
    state, _ = heard_ping(new_limiter(0.0), 0.01, 0.1)
    rates = []
    for step in range(200):
        state, _ = charge(state, min(500_000, int(state.rate_bytes_per_s / 2)), 1.0 + step / 2)
        state, _ = heard_ping(state, late_s, 1.0 + step / 2)
        rates.append(state.rate_bytes_per_s)
    assert min(rates) > 0.7**5 * 1_000_000
    assert rates[-1] > 1_000_000


def test_a_queue_of_ours_that_empties_slowly_goes_on_slowing_us_down() -> None:
    """A line of 125 kB/s and sockets that take four seconds of it: they empty by what we send less."""
    line, room_bytes, queue_bytes, now_s = 125_000.0, 500_000.0, 0.0, 0.5
    state, _ = heard_ping(new_limiter(0.0), 0.02, now_s)
    delays_s = []
    for _ in range(60):
        now_s += 0.5
        sent_bytes = min(state.rate_bytes_per_s * 0.5, line * 0.5 + room_bytes - queue_bytes)
        state, _ = charge(state, int(sent_bytes), now_s)
        queue_bytes = max(0.0, queue_bytes + sent_bytes - line * 0.5)
        state, _ = heard_ping(state, 0.02 + queue_bytes / line, now_s)
        delays_s.append(queue_bytes / line)
    assert sorted(delays_s[12:])[len(delays_s[12:]) // 2] < 0.6


def test_a_line_that_became_longer_for_good_is_not_taken_for_full_for_ever() -> None:
    """By another way through the network: every ping is half a second longer from the tenth second on."""
    state = new_limiter(0.0)
    for step in range(20):
        state, _ = heard_ping(state, 0.02, step * 0.5)
    for step in range(120):
        state, _ = heard_ping(state, 0.02 + CONGESTED_S + 0.1, 10.0 + step * 0.5)
    assert state.rate_bytes_per_s == MAX_RATE_BYTES_PER_S


async def test_the_shell_paces_many_senders_to_the_cap(autojump_clock: MockClock) -> None:
    limiter = BulkLimiter(1_000_000.0)
    began_s = trio.current_time()

    async def send() -> None:
        for _ in range(50):
            await limiter.pass_bytes(20_000)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(send)
    assert trio.current_time() - began_s == pytest.approx(4.0, rel=0.1)


def test_a_new_cap_is_the_rate_at_once_and_what_pings_taught_below_it_stays() -> None:
    state = capped(new_limiter(0.0), 1_000_000.0, 1.0)
    assert (state.rate_bytes_per_s, state.limit_bytes_per_s) == (1_000_000.0, 1_000_000.0)
    assert capped(state, None, 2.0).rate_bytes_per_s == MAX_RATE_BYTES_PER_S
    slow = replace(state, rate_bytes_per_s=50_000.0)
    assert capped(slow, 500_000.0, 2.0).rate_bytes_per_s == 50_000.0
    assert capped(slow, 20_000.0, 2.0).rate_bytes_per_s == 20_000.0
    assert capped(slow, 1_000_000.0, 2.0) is slow


def test_a_cap_below_the_least_rate_holds_also_after_late_pings() -> None:
    state = new_limiter(0.0, 1_000.0)
    for step, ping_s in enumerate((0.01, 3.0, 3.0, 3.0)):
        state, _ = heard_ping(state, ping_s, 1.0 + step)
        assert state.rate_bytes_per_s <= 1_000.0


async def test_who_waits_under_a_cap_goes_on_as_soon_as_it_is_lifted(autojump_clock: MockClock) -> None:
    limiter = BulkLimiter(1.0)
    passed_s: list[float] = []

    async def send() -> None:
        await limiter.pass_bytes(1_000_000)
        passed_s.append(trio.current_time() - began_s)

    async with trio.open_nursery() as nursery:
        began_s = trio.current_time()
        nursery.start_soon(send)
        nursery.start_soon(send)
        await trio.sleep(3600)
        assert passed_s == []
        limiter.cap(1_000_000.0)
    assert passed_s == pytest.approx([3601.0, 3602.0], abs=0.2)


async def test_who_waits_without_a_cap_slows_down_as_soon_as_there_is_one(autojump_clock: MockClock) -> None:
    limiter = BulkLimiter(100_000.0)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(limiter.pass_bytes, 1_000_000 + int(MIN_BURST_BYTES))
        await trio.sleep(5)
        limiter.cap(10_000.0)
    assert trio.current_time() - began_s == pytest.approx(5 + 50, rel=0.01)


async def test_who_gives_up_is_not_waited_for_by_those_who_follow(autojump_clock: MockClock) -> None:
    limiter = BulkLimiter(10_000.0)
    for _ in range(20):
        with trio.move_on_after(0.001):
            await limiter.pass_bytes(10_000_000)
    began_s = trio.current_time()
    await limiter.pass_bytes(10_000)
    assert trio.current_time() - began_s < 2.0
