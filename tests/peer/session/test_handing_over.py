"""A peer that leaves with the only copy of an expert stays until the host has it."""

from __future__ import annotations

import trio
import trio.testing

from peer.session.handing_over import HAND_OVER_WITHIN_S, HANDED_OVER_POLL_S, hand_over
from protocol.ids import CommitId, UnitName

Clock = trio.testing.MockClock
FIRST, SECOND = UnitName("expert-0"), UnitName("expert-1")
OLD, NEW = CommitId(b"o" * 32), CommitId(b"n" * 32)


class _Host:
    """Takes what it is told of, each unit some seconds after the report."""

    def __init__(self, **takes_s: float) -> None:
        self._takes_s = takes_s
        self._told_s: float | None = None
        self.reports = 0

    async def report(self) -> None:
        self.reports += 1
        self._told_s = trio.current_time()

    def stands_at(self, unit: UnitName) -> CommitId:
        takes_s = self._takes_s[unit.replace("-", "_")]
        has_it = takes_s == 0.0 or (self._told_s is not None and trio.current_time() - self._told_s >= takes_s)
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
