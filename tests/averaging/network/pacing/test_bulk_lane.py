from __future__ import annotations

import pytest
import trio
import trio.testing

from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.seams.interfaces import BulkCount, BulkKind, Way
from protocol.errors import CallTimeout, PeerUnreachable
from protocol.ids import PeerId

BOB = PeerId("bob")
KIND = BulkKind(Way.DIRECT, "exchange", "fragment-0", "int8")


async def test_what_comes_in_is_held_to_the_owners_cap_which_may_change_at_any_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lane = BulkLane()
    lane.cap(None, 100_000.0)
    began_s = trio.current_time()
    for _ in range(10):
        await lane.took(KIND, 100_000)
    assert trio.current_time() - began_s == pytest.approx(10.0, rel=0.1)
    await lane.pass_up(BOB, KIND, 1_000_000)
    assert trio.current_time() - began_s == pytest.approx(10.0, rel=0.1)
    lane.cap(100_000.0, None)
    await lane.pass_up(BOB, KIND, 1_000_000)
    await lane.took(KIND, 1_000_000)
    assert trio.current_time() - began_s == pytest.approx(20.0, rel=0.1)
    assert lane.tally.counts() == (BulkCount(KIND, 2_000_000, 2_000_000),)


async def test_bulk_that_holds_up_pings_is_slowed_and_who_is_gone_says_nothing_about_the_link(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lane, pinged, ping_s, is_gone = BulkLane(), [], 0.01, False

    async def ping(peer: PeerId) -> None:
        pinged.append(peer)
        if is_gone:
            raise PeerUnreachable("gone", "a peer")
        await trio.sleep(ping_s)
        if ping_s > 1.0:
            raise CallTimeout("lost", "an answer")

    async def send_for(seconds: float) -> float:
        sent, until_s = 0, trio.current_time() + seconds
        while trio.current_time() < until_s:
            await lane.pass_up(BOB, KIND, 10_000)
            await trio.sleep(0.01)
            sent += 10_000
        return sent / seconds

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.keep_pinging, ping)
        assert await send_for(5.0) == pytest.approx(1e6, rel=0.2)
        assert set(pinged) == {BOB}
        ping_s = 2.0
        await send_for(20.0)
        assert await send_for(5.0) < 3e5
        is_gone = True
        await send_for(5.0)
        ping_s, is_gone = 0.01, False
        await send_for(20.0)
        assert await send_for(5.0) == pytest.approx(1e6, rel=0.2)
        nursery.cancel_scope.cancel()
