from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import trio

from averaging.network import spare_connections
from averaging.network.bulk_address import BulkAddress, encode_addresses
from averaging.network.frames import Status
from averaging.network.line_pace import PathLook
from averaging.network.seams import Stream
from averaging.network.spare_connections import MAX_SPARES_OF_PEER, MAX_SPARES_PER_PEER
from averaging.network.tls_door import TlsDoor
from averaging.network.tls_identity import credential_check
from averaging.network.tls_socket import TlsSocket
from averaging.network.tls_stream import TlsStream
from protocol.errors import ConnectionReset, RemoteProtocolError
from protocol.ids import PeerId
from tests.averaging.network.counting_proxy import CountingProxy, open_counting_proxy
from tests.averaging.network.direct_world import ALICE, BOB, CA, DAY_S, RUN, Peer, World, credential_of, options_of

CHANNEL = "mirror"


async def _mirror(_peer: PeerId, stream: Stream) -> None:
    while (frame := await stream.receive_frame()) is not None:
        await stream.send_frame(frame)


@asynccontextmanager
async def _between() -> AsyncIterator[tuple[Peer, Peer, CountingProxy]]:
    """Alice, who dials, Bob, who mirrors, and what lies between them and counts connections."""
    world = World()
    async with world.open(ALICE) as alice, world.open(BOB) as bob, open_counting_proxy(bob.port) as proxy:
        bob.handlers[CHANNEL] = _mirror
        bob.told = encode_addresses([BulkAddress("127.0.0.1", proxy.port)])
        yield alice, bob, proxy


async def _opened(opener: Peer, server: Peer) -> TlsStream:
    stream = await opener.way.open_stream(server.peer_id, CHANNEL, 5.0)
    assert isinstance(stream, TlsStream)
    return stream


async def _mirrored(stream: Stream, frame: bytes = b"x") -> None:
    with trio.fail_after(10):
        await stream.send_frame(frame)
        assert await stream.receive_frame() == frame


async def _until_spare(peer: Peer, number: int) -> None:
    with trio.fail_after(10):
        while len(peer.way.spares) != number:
            await trio.sleep(0.005)


async def _talk(opener: Peer, server: Peer) -> None:
    """A stream from its beginning until both sides have ended it."""
    stream = await _opened(opener, server)
    await _mirrored(stream)
    await stream.aclose()
    await _until_spare(opener, 1)


async def test_streams_one_after_the_other_go_over_one_connection() -> None:
    async with _between() as (alice, bob, proxy):
        for number in range(5):
            stream = await _opened(alice, bob)
            await _mirrored(stream, bytes([number]) * 100_000)
            await stream.aclose()
            await _until_spare(alice, 1)
        assert proxy.connected == 1
        assert alice.way.calls.num_connections == 0


async def test_what_a_stream_left_unread_is_gone_before_the_next_one_begins() -> None:
    async with _between() as (alice, bob, proxy):
        stream = await _opened(alice, bob)
        for _ in range(3):
            await stream.send_frame(bytes(5000))
        await stream.aclose()
        await _until_spare(alice, 1)
        await _talk(alice, bob)
        assert proxy.connected == 1


async def test_streams_beside_one_another_have_a_connection_each_and_few_are_kept() -> None:
    async with _between() as (alice, bob, proxy):
        streams = [await _opened(alice, bob) for _ in range(MAX_SPARES_PER_PEER + 2)]
        for stream in streams:
            await _mirrored(stream)
        assert proxy.connected == len(streams)
        for stream in streams:
            await stream.aclose()
        await _until_spare(alice, MAX_SPARES_PER_PEER)


async def test_a_stream_that_was_broken_by_either_side_leaves_no_connection() -> None:
    async def refuse(_peer: PeerId, stream: Stream) -> None:
        await stream.receive_frame()
        raise RemoteProtocolError("nonsense", "sense")

    async with _between() as (alice, bob, proxy):
        bob.handlers[CHANNEL] = refuse
        stream = await _opened(alice, bob)
        await stream.send_frame(b"x")
        with pytest.raises(ConnectionReset):
            await stream.receive_frame()
        await stream.aclose()
        bob.handlers[CHANNEL] = _mirror
        (await _opened(alice, bob)).reset()
        await _talk(alice, bob)
        assert proxy.connected == 3


async def test_a_stream_with_strands_leaves_no_connection() -> None:
    world = World()
    strands = replace(options_of(ALICE), num_first_strands=2)
    async with world.open(ALICE, strands) as alice, world.open(BOB) as bob:
        bob.handlers[CHANNEL] = _mirror
        stream = await _opened(alice, bob)
        with trio.fail_after(20):
            while len(stream.connections) < 2:
                await _mirrored(stream, bytes(8192))
        await stream.aclose()
        await trio.sleep(0.2)
        assert len(alice.way.spares) == 0


async def test_a_connection_that_has_ended_meanwhile_is_not_kept_and_the_next_stream_has_a_new_one() -> None:
    async with _between() as (alice, bob, proxy):
        await _talk(alice, bob)
        proxy.break_connections()
        await _until_spare(alice, 0)
        await _talk(alice, bob)
        assert proxy.connected == 2


async def test_a_peer_of_an_older_release_ends_the_connection_with_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close(_door: object, tls: TlsSocket, _peer: PeerId) -> bool:
        tls.close()
        return False

    monkeypatch.setattr(TlsDoor, "_wait_for_next", close)
    async with _between() as (alice, bob, proxy):
        for number in range(1, 4):
            stream = await _opened(alice, bob)
            await _mirrored(stream)
            await stream.aclose()
            await _until_spare(alice, 0)
            assert proxy.connected == number


async def test_an_opening_that_is_not_even_acknowledged_costs_a_moment_and_a_new_connection_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A router between has forgotten the connection."""
    async with _between() as (alice, bob, proxy):
        await _talk(alice, bob)
        with monkeypatch.context() as patched:
            patched.setattr(TlsSocket, "look", lambda _: PathLook(0, 0, False, 0.001, 0.001))

            async def never(_tls: TlsSocket) -> None:
                await trio.sleep_forever()

            patched.setattr(spare_connections, "hear_status", never)
            began_s = trio.current_time()
            stream = await _opened(alice, bob)
            took_s = trio.current_time() - began_s
        await _mirrored(stream)
        await stream.aclose()
        assert proxy.connected == 2
        assert took_s < 4.0, "less than what a busy peer is given"


async def test_a_busy_peer_that_has_acknowledged_an_opening_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_connections, "ACKNOWLEDGED_WITHIN_S", 0.1)
    open_door = TlsDoor._open

    async def late(door: TlsDoor, tls: TlsSocket, peer: PeerId) -> tuple[Status, str]:
        await trio.sleep(0.4)
        return await open_door(door, tls, peer)

    async with _between() as (alice, bob, proxy):
        await _talk(alice, bob)
        monkeypatch.setattr(TlsDoor, "_open", late)
        await _talk(alice, bob)
        assert proxy.connected == 1


async def test_the_door_is_asked_before_each_stream_on_a_connection_that_was_kept() -> None:
    async with _between() as (alice, bob, _):
        await _talk(alice, bob)
        bob.admits = lambda _: False
        with pytest.raises(RemoteProtocolError):
            await alice.way.open_stream(bob.peer_id, CHANNEL, 5.0)


async def test_a_credential_that_counts_no_longer_opens_no_further_stream() -> None:
    banned: set[PeerId] = set()
    check = credential_check(CA.certificate_der, RUN, time.time, is_banned=banned.__contains__)
    world = World()
    async with world.open(ALICE) as alice, world.open(BOB, replace(options_of(BOB), check=check)) as bob:
        bob.handlers[CHANNEL] = _mirror
        await _talk(alice, bob)
        banned.add(alice.peer_id)
        assert await alice.way.open_stream(bob.peer_id, CHANNEL, 5.0) is None


async def test_who_is_banned_is_sent_nothing_over_a_connection_that_was_kept() -> None:
    banned: set[PeerId] = set()
    check = credential_check(CA.certificate_der, RUN, time.time, is_banned=banned.__contains__)
    world = World()
    async with world.open(ALICE, replace(options_of(ALICE), check=check)) as alice, world.open(BOB) as bob:
        bob.handlers[CHANNEL] = _mirror
        await _talk(alice, bob)
        banned.add(bob.peer_id)
        assert await alice.way.open_stream(bob.peer_id, CHANNEL, 5.0) is None


async def test_a_renewed_credential_is_shown_on_a_new_connection() -> None:
    own = [credential_of(ALICE)]
    world = World()
    async with AsyncExitStack() as stack:
        alice = await stack.enter_async_context(
            world.open(ALICE, replace(options_of(ALICE), credential=lambda: own[0]))
        )
        bob = await stack.enter_async_context(world.open(BOB))
        proxy = await stack.enter_async_context(open_counting_proxy(bob.port))
        bob.handlers[CHANNEL] = _mirror
        bob.told = encode_addresses([BulkAddress("127.0.0.1", proxy.port)])
        await _talk(alice, bob)
        own[0] = credential_of(ALICE, ended_s=-DAY_S / 2)
        await _talk(alice, bob)
        assert proxy.connected == 2


async def test_a_peer_holds_few_connections_here_without_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it keeps itself."""
    monkeypatch.setattr(spare_connections, "MAX_SPARES_PER_PEER", 100)
    async with _between() as (alice, bob, _):
        streams = [await _opened(alice, bob) for _ in range(MAX_SPARES_OF_PEER + 3)]
        for stream in streams:
            await _mirrored(stream)
            await stream.aclose()
        await _until_spare(alice, MAX_SPARES_OF_PEER)
        await trio.sleep(0.1)
        await _until_spare(alice, MAX_SPARES_OF_PEER)
