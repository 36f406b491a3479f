from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest
import trio

from averaging.network.direct import connection_pool as spare_connections
from averaging.network.direct import tls_listener
from averaging.network.direct.connection_pool import MAX_SPARES_OF_PEER, MAX_SPARES_PER_PEER
from averaging.network.direct.tls_identity import credential_check
from averaging.network.direct.tls_listener import TlsListener
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.direct.tls_stream import TlsStream
from averaging.network.pacing.line_rate import PathStats
from averaging.network.seams.bulk_address import BulkAddress, encode_addresses
from averaging.network.seams.frames import Status
from averaging.network.seams.interfaces import Stream
from protocol.errors import ConnectionReset, PeerUnreachable, RemoteProtocolError
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
        bob.reported = encode_addresses([BulkAddress("127.0.0.1", proxy.port)])
        yield alice, bob, proxy


async def _opened(opener: Peer, server: Peer) -> TlsStream:
    stream = await opener.way.open_stream(server.peer_id, CHANNEL, 5.0)
    assert isinstance(stream, TlsStream)
    return stream


async def _mirrored(stream: Stream, frame: bytes = b"x") -> None:
    with trio.fail_after(60):
        await stream.send_frame(frame)
        assert await stream.receive_frame() == frame


async def _until_spare(peer: Peer, number: int) -> None:
    with trio.fail_after(60):
        while len(peer.way.spares) != number:
            await trio.sleep(0.005)


async def _keep(opener: Peer, server: Peer, number: int) -> None:
    """So many connections, by as many streams beside one another."""
    streams = [await _opened(opener, server) for _ in range(number)]
    for stream in streams:
        await _mirrored(stream)
        await stream.aclose()


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


async def test_a_stream_with_substreams_leaves_no_connection() -> None:
    world = World()
    substreams = replace(options_of(ALICE), num_first_substreams=2)
    async with world.open(ALICE, substreams) as alice, world.open(BOB) as bob:
        bob.handlers[CHANNEL] = _mirror
        stream = await _opened(alice, bob)
        with trio.fail_after(120):
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
    async def none(_listener: object, _tls: TlsSocket, _peer: PeerId) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(TlsListener, "_next_channel", none)
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
            patched.setattr(TlsSocket, "stats", lambda _: PathStats(0, 0, False, 0.001, 0.001))

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


async def test_of_several_connections_that_are_gone_one_is_asked_and_the_next_are_not_kept_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each took half a second, one after the other, and the direct way was given up for a while when all time was gone."""
    monkeypatch.setattr(spare_connections, "LEAST_KEPT_FOR_S", 0.05)
    async with _between() as (alice, bob, _):
        await _keep(alice, bob, 3)
        await _until_spare(alice, 3)
        asked = 0
        with monkeypatch.context() as patched:
            patched.setattr(TlsSocket, "stats", lambda _: PathStats(0, 0, False, 0.001, 0.001))

            async def never(_tls: TlsSocket) -> None:
                nonlocal asked
                asked += 1
                await trio.sleep_forever()

            patched.setattr(spare_connections, "hear_status", never)
            stream = await alice.way.open_stream(bob.peer_id, CHANNEL, 0.8)
            assert isinstance(stream, TlsStream)
        assert asked == 1
        assert len(alice.way.spares) == 0
        await _mirrored(stream)
        await stream.aclose()
        await _until_spare(alice, 1)
        await _until_spare(alice, 0)


async def test_a_peer_that_says_no_on_one_connection_is_not_asked_on_the_others() -> None:
    async with _between() as (alice, bob, proxy):
        await _keep(alice, bob, 3)
        await _until_spare(alice, 3)
        with pytest.raises(PeerUnreachable, match="does not serve"):
            await alice.way.open_stream(bob.peer_id, "nobody serves it", 5.0)
        assert len(alice.way.spares) == 2
        assert proxy.connected == 3


async def test_the_end_of_a_connection_that_was_kept_asks_nobody_and_takes_no_place() -> None:
    async with _between() as (alice, bob, _):
        await _talk(alice, bob)
        asked = list[PeerId]()

        def admits(peer: PeerId) -> bool:
            asked.append(peer)
            return True

        bob.admits = admits
        alice.way.spares.forget(bob.peer_id)
        await trio.sleep(0.1)
        assert asked == []


async def test_after_so_many_streams_there_is_another_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "MAX_STREAMS_PER_CONNECTION", 2)
    async with _between() as (alice, bob, proxy):
        for _ in range(5):
            stream = await _opened(alice, bob)
            await _mirrored(stream)
            await stream.aclose()
            await trio.sleep(0.05)
        assert proxy.connected == 3


@pytest.mark.parametrize("limit", ["MAX_AGE_S", "MAX_BYTES"])
async def test_a_connection_that_is_old_or_has_carried_very_much_is_not_kept(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_connections, limit, 0)
    async with _between() as (alice, bob, proxy):
        for number in range(1, 3):
            stream = await _opened(alice, bob)
            await _mirrored(stream)
            await stream.aclose()
            await trio.sleep(0.05)
            assert proxy.connected == number
            assert len(alice.way.spares) == 0


async def test_a_frame_that_waited_while_its_stream_was_ended_does_not_go_out_on_the_next_one() -> None:
    async with _between() as (alice, bob, _):
        stream = await _opened(alice, bob)
        await _mirrored(stream)
        waits, goes_on = trio.Event(), trio.Event()

        async def hold(*_: object) -> None:
            waits.set()
            await goes_on.wait()

        failed = trio.Event()

        async def send_late() -> None:
            with pytest.raises(ConnectionReset):
                await stream.send_frame(bytes(100_000))
            failed.set()

        async with trio.open_nursery() as nursery:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(alice.lane, "pass_up", hold)
                nursery.start_soon(send_late)
                await waits.wait()
            await stream.aclose()
            await _until_spare(alice, 1)
            following = await _opened(alice, bob)
            goes_on.set()
            await failed.wait()
            await _mirrored(following)
            await following.aclose()


async def test_a_busy_peer_that_has_acknowledged_an_opening_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_connections, "ACKNOWLEDGED_WITHIN_S", 0.1)
    open_listener = TlsListener._open

    async def late(listener: TlsListener, tls: TlsSocket, peer: PeerId, channel: str | None) -> tuple[Status, str]:
        await trio.sleep(0.4)
        return await open_listener(listener, tls, peer, channel)

    async with _between() as (alice, bob, proxy):
        await _talk(alice, bob)
        monkeypatch.setattr(TlsListener, "_open", late)
        await _talk(alice, bob)
        assert proxy.connected == 1


async def test_the_door_is_asked_again_before_a_stream_on_a_connection_that_was_kept() -> None:
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
        bob.reported = encode_addresses([BulkAddress("127.0.0.1", proxy.port)])
        await _talk(alice, bob)
        own[0] = credential_of(ALICE, ended_s=-DAY_S / 2)
        await _talk(alice, bob)
        assert proxy.connected == 2


async def test_a_peer_holds_few_connections_here_without_a_stream_and_the_oldest_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many the dialler keeps: connections of a vanished machine must not block its next ones."""
    monkeypatch.setattr(spare_connections, "MAX_SPARES_PER_PEER", 100)
    async with _between() as (alice, bob, proxy):
        await _keep(alice, bob, MAX_SPARES_OF_PEER + 3)
        await _until_spare(alice, MAX_SPARES_OF_PEER)
        await trio.sleep(0.1)
        await _until_spare(alice, MAX_SPARES_OF_PEER)
        await _talk_of(alice, bob, MAX_SPARES_OF_PEER)
        assert proxy.connected == MAX_SPARES_OF_PEER + 3, "the one that was kept last is still there"


async def test_of_all_that_are_kept_the_oldest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_connections, "MAX_SPARES", 2)
    async with _between() as (alice, bob, _):
        await _keep(alice, bob, 4)
        await trio.sleep(0.1)
        await _until_spare(alice, 2)
        await _talk_of(alice, bob, 2)


async def _talk_of(opener: Peer, server: Peer, number: int) -> None:
    stream = await _opened(opener, server)
    await _mirrored(stream)
    await stream.aclose()
    await _until_spare(opener, number)
