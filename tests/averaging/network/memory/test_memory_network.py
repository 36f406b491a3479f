from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from averaging.network.memory.memory_network import LinkSpeed, MemoryNetwork, MemorySwarm
from averaging.network.seams.interfaces import Stream
from protocol.errors import CallTimeout, ConnectionReset, PeerUnreachable
from protocol.ids import PeerId

ALICE, BOB, CAROL = PeerId("alice"), PeerId("bob"), PeerId("carol")


async def _echo(sender: PeerId, request: bytes) -> bytes:
    return request


@asynccontextmanager
async def _swarm(speed: LinkSpeed | None = None) -> AsyncIterator[tuple[MemorySwarm, dict[PeerId, MemoryNetwork]]]:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(3), speed)
        networks = {peer: swarm.start(peer) for peer in (ALICE, BOB, CAROL)}
        for network in networks.values():
            network.serve_calls("echo", _echo)
        yield swarm, networks
        nursery.cancel_scope.cancel()


async def _can_call(networks: dict[PeerId, MemoryNetwork], caller: PeerId, peer: PeerId) -> bool:
    try:
        await networks[caller].call(peer, "echo", b"x", timeout_s=1)
    except CallTimeout:
        return False
    return True


async def test_a_partition_separates_two_sides_until_it_heals(autojump_clock: MockClock) -> None:
    async with _swarm() as (swarm, networks):
        swarm.cut([ALICE], [BOB, CAROL])
        assert not await _can_call(networks, ALICE, BOB)
        assert not await _can_call(networks, CAROL, ALICE)
        assert await _can_call(networks, BOB, CAROL)
        swarm.heal()
        assert await _can_call(networks, ALICE, BOB)


async def test_a_one_way_cut_loses_requests_one_way_and_replies_the_other(autojump_clock: MockClock) -> None:
    async with _swarm() as (swarm, networks):
        num_handled = 0

        async def count(sender: PeerId, request: bytes) -> bytes:
            nonlocal num_handled
            num_handled += 1
            return b""

        networks[ALICE].serve_calls("count", count)
        networks[BOB].serve_calls("count", count)
        swarm.cut([ALICE], [BOB], both_ways=False)
        with pytest.raises(CallTimeout):
            await networks[ALICE].call(BOB, "count", b"", timeout_s=1)
        assert num_handled == 0
        with pytest.raises(CallTimeout):
            await networks[BOB].call(ALICE, "count", b"", timeout_s=1)
        assert num_handled == 1


async def test_a_connection_that_breaks_is_a_reset_before_or_after_the_handler_ran(autojump_clock: MockClock) -> None:
    async with _swarm() as (swarm, networks):
        num_handled = num_reset = 0

        async def count(sender: PeerId, request: bytes) -> bytes:
            nonlocal num_handled
            num_handled += 1
            return b""

        networks[BOB].serve_calls("count", count)
        swarm.broken = 0.5
        for _ in range(40):
            try:
                await networks[ALICE].call(BOB, "count", b"", timeout_s=1)
            except ConnectionReset:
                num_reset += 1
        assert 0 < 40 - num_reset < num_handled < 40


async def test_frames_wait_out_a_cut(autojump_clock: MockClock) -> None:
    async with _swarm() as (swarm, networks):
        got: list[bytes | None] = []

        async def receive(sender: PeerId, stream: Stream) -> None:
            got.append(await stream.receive_frame())

        networks[BOB].serve_streams("one", receive)
        stream = await networks[ALICE].open_stream(BOB, "one", timeout_s=1)
        swarm.cut([ALICE], [BOB])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_frame, b"late")
            await trio.sleep(5)
            assert got == []
            swarm.heal()
        await trio.sleep(1)
        assert got == [b"late"]


async def test_bytes_take_the_time_of_the_slower_end(autojump_clock: MockClock) -> None:
    async with _swarm(LinkSpeed(0.01, 1e9)) as (swarm, networks):
        swarm.speeds[BOB] = LinkSpeed(0.01, 125_000.0)
        began_s = trio.current_time()
        await networks[ALICE].call(BOB, "echo", bytes(125_000), timeout_s=60)
        assert 2.0 <= trio.current_time() - began_s < 2.2


async def test_some_messages_are_lost_when_told_so_and_the_same_ones_each_time(autojump_clock: MockClock) -> None:
    async def outcomes() -> list[bool]:
        async with _swarm() as (swarm, networks):
            swarm.loss = 0.3
            return [await _can_call(networks, ALICE, BOB) for _ in range(30)]

    first = await outcomes()
    assert 0 < sum(first) < 30
    assert await outcomes() == first


async def test_a_killed_process_runs_no_handler_to_its_end(autojump_clock: MockClock) -> None:
    async with _swarm() as (swarm, networks):
        ended: list[str] = []

        async def slow(sender: PeerId, request: bytes) -> bytes:
            await trio.sleep(10)
            ended.append("slow")
            return b""

        async def kill() -> None:
            await trio.sleep(1)
            swarm.kill(BOB)

        networks[BOB].serve_calls("slow", slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill)
            with pytest.raises(PeerUnreachable):
                await networks[ALICE].call(BOB, "slow", b"", timeout_s=60)
        await trio.sleep(60)
        assert ended == []
        with pytest.raises(PeerUnreachable):
            await networks[BOB].call(ALICE, "echo", b"", timeout_s=1)


async def test_a_peer_that_is_started_elsewhere_has_two_processes_until_the_older_ends(
    autojump_clock: MockClock,
) -> None:
    async with _swarm() as (swarm, networks):
        newer = swarm.start(ALICE, is_elsewhere=True)
        newer.serve_calls("where", _echo)
        await networks[BOB].call(ALICE, "where", b"", timeout_s=1)
        assert await networks[ALICE].publish("key", ALICE, b"v", expires_unix_s=swarm.unix_offset_s + 60)
        swarm.end(networks[ALICE])
        with pytest.raises(PeerUnreachable):
            await networks[ALICE].publish("key", ALICE, b"v", expires_unix_s=swarm.unix_offset_s + 90)
        await networks[BOB].call(ALICE, "where", b"", timeout_s=1)
        swarm.end(newer)
        with pytest.raises(PeerUnreachable):
            await networks[BOB].call(ALICE, "where", b"", timeout_s=1)


async def test_what_arrives_after_the_end_of_the_world_is_dropped(autojump_clock: MockClock) -> None:
    """Four fragments with seed 502: a call that was on its way arrived at a peer whose handlers had been ended with the story."""
    async with _swarm() as (swarm, _):
        await trio.sleep(0.1)
        host = swarm.host_of(ALICE, BOB)
    assert host is not None

    async def handle() -> None:
        raise AssertionError("nobody is there any more")

    host.start(handle)
    await trio.sleep(0.1)


async def test_frames_arrive_in_the_order_that_they_were_sent_in_whichever_timer_is_first(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _swarm() as (swarm, networks):
        found: list[bytes] = []

        async def take(_sender: PeerId, stream: Stream) -> None:
            while (frame := await stream.receive_frame()) is not None:
                found.append(frame)

        networks[BOB].serve_streams("frames", take)
        stream = await networks[ALICE].open_stream(BOB, "frames", timeout_s=5.0)
        after, later = swarm.timers.after, iter([0.03, 0.02, 0.01])  # as on a real clock, which goes on meanwhile
        monkeypatch.setattr(
            swarm.timers, "after", lambda delay_s, callback: after(delay_s + next(later, 0.0), callback)
        )
        sent = [b"first", b"second", b"third"]
        for frame in sent:
            await stream.send_frame(frame)
        await trio.sleep(1.0)
        assert found == sent
