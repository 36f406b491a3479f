from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

from averaging.network.direct import tls_listener
from averaging.network.direct.dialling import dial_first
from averaging.network.direct.substreams import SUBSTREAM_CHANNEL, TOKEN_BYTES
from averaging.network.direct.tls_identity import TlsCredential, tls_context
from averaging.network.direct.tls_listener import MAX_STREAMS_PER_PEER, bind_bulk
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.direct.tls_stream import TlsStream, send_opening
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.frames import Status
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, Stream
from protocol.errors import CallTimeout, RemoteProtocolError
from protocol.ids import PeerId
from tests.averaging.network.direct_world import ALICE, BOB, CA, Peer, World, credential_of, pair

CLEAN_END = b"\xff" * 4


@asynccontextmanager
async def _connection(server: Peer, own: TlsCredential | None = None) -> AsyncIterator[TlsSocket]:
    """Bob's TLS connection, past its handshake."""
    context = tls_context(own or credential_of(BOB), CA.certificate_der, is_server=False)
    address = BulkAddress("127.0.0.1", server.port)
    _, tls = await dial_first((address,), context, lambda _: None)
    try:
        yield tls
    finally:
        tls.close()


async def _sent(tls: TlsSocket, data: bytes) -> None:
    view, begin = memoryview(data), 0
    while begin < len(view):
        begin = await tls.send(view, begin)


async def _is_ended(tls: TlsSocket) -> bool:
    try:
        with trio.fail_after(60):
            return await tls.receive_into(memoryview(bytearray(1)), 0) == 0
    except OSError:
        return True


async def _hold(_peer: PeerId, _stream: Stream) -> None:
    await trio.sleep_forever()


async def _collect(_peer: PeerId, stream: Stream) -> None:
    while await stream.receive_frame() is not None:
        pass


async def test_a_stranger_that_connects_and_says_nothing_is_dropped_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKE_WITHIN_S", 0.5)
    async with pair() as (alice, bob):
        alice.handlers["collect"] = _collect
        with socket.create_connection(("127.0.0.1", alice.port)) as silent:
            stream = await bob.way.open_stream(alice.peer_id, "collect", 5.0)
            assert stream is not None
            await stream.aclose()
            silent.setblocking(False)
            with trio.fail_after(60):
                await trio.lowlevel.wait_readable(silent)
            with pytest.raises(ConnectionResetError):
                silent.recv(1)


async def test_strangers_beyond_the_places_for_handshakes_are_dropped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "MAX_HANDSHAKES_PER_ADDRESS", 4)
    async with World().open(ALICE) as alice:
        with ExitStack() as stack:
            many = [stack.enter_context(socket.create_connection(("127.0.0.1", alice.port))) for _ in range(6)]
            for last in many[4:]:
                last.setblocking(False)
                with trio.fail_after(60):
                    await trio.lowlevel.wait_readable(last)
                assert last.recv(1) == b""
            many[0].setblocking(False)
            with pytest.raises(BlockingIOError):
                many[0].recv(1)


async def test_a_stranger_that_talks_something_else_is_dropped() -> None:
    async with World().open(ALICE) as alice:
        stranger = await trio.open_tcp_stream("127.0.0.1", alice.port)
        await stranger.send_all(b"GET / HTTP/1.1\r\n\r\n")
        with trio.fail_after(60):
            try:
                while await stranger.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass
        await stranger.aclose()


async def test_a_member_that_does_not_say_what_it_wants_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "OPENING_WITHIN_S", 0.2)
    async with World().open(ALICE) as alice, _connection(alice) as tls:
        answer = memoryview(bytearray(1))
        with trio.fail_after(60):
            await tls.receive_into(answer, 0)
        assert answer[0] == Status.BUSY


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 1 << 31, 0xFFFFFFFC])
async def test_a_frame_that_is_announced_too_long_ends_the_stream_before_memory_is_spent(length: int) -> None:
    async with World().open(ALICE) as alice:
        alice.handlers["collect"] = _collect
        async with _connection(alice) as tls:
            assert await send_opening(tls, "collect") is Status.FINE
            await _sent(tls, struct.pack(">I", length) + bytes(1000))
            assert await _is_ended(tls)
        assert [type(error) for error in alice.failed] == [RemoteProtocolError]
        assert f"a frame of {length} bytes" in alice.failed[0].one_line()
        assert alice.lane.tally.bytes_down == 0


@pytest.mark.parametrize("opening", [b"\xff" + bytes(255), b"\x03\xff\xff\xff", b""])
async def test_an_opening_that_names_no_channel_is_dropped(opening: bytes) -> None:
    async with World().open(ALICE) as alice, _connection(alice) as tls:
        await _sent(tls, opening)
        if not opening:
            tls.close()
        assert await _is_ended(tls)
        assert alice.failed == []


async def test_a_peer_has_few_streams_at_once_and_its_place_comes_back() -> None:
    async with pair() as (alice, bob):
        alice.handlers["hold"] = _hold
        streams = [await bob.way.open_stream(alice.peer_id, "hold", 5.0) for _ in range(MAX_STREAMS_PER_PEER)]
        assert None not in streams
        with pytest.raises(CallTimeout, match="busy"):
            await bob.way.open_stream(alice.peer_id, "hold", 5.0)
        for stream in streams:
            assert isinstance(stream, TlsStream)
            stream.reset()


async def test_a_place_for_a_stream_comes_back_when_it_ends() -> None:
    async with World().open(ALICE) as alice:
        alice.handlers["collect"] = _collect
        for _ in range(2 * MAX_STREAMS_PER_PEER):
            async with _connection(alice) as tls:
                assert await send_opening(tls, "collect") is Status.FINE
                await _sent(tls, CLEAN_END)
                assert await _received(tls, len(CLEAN_END)) == CLEAN_END


async def test_a_stream_that_was_ended_here_keeps_its_place_until_its_other_side_has_ended_too() -> None:
    """Else a member that never ends its side has a socket of ours for each request that is answered at once."""
    async with World().open(ALICE) as alice, AsyncExitStack() as stack:
        alice.handlers["nothing"] = _answer_at_once
        streams = [await stack.enter_async_context(_connection(alice)) for _ in range(MAX_STREAMS_PER_PEER)]
        for tls in streams:
            assert await send_opening(tls, "nothing") is Status.FINE
            assert await _received(tls, len(CLEAN_END)) == CLEAN_END
        async with _connection(alice) as tls:
            assert await send_opening(tls, "nothing") is Status.BUSY
        await _sent(streams[0], CLEAN_END)
        assert await send_opening(streams[0], "nothing") is Status.FINE


async def _answer_at_once(_peer: PeerId, _stream: Stream) -> None:
    await trio.lowlevel.checkpoint()


async def _received(tls: TlsSocket, num_bytes: int) -> bytes:
    data, stop = memoryview(bytearray(num_bytes)), 0
    while stop < num_bytes:
        begin, stop = stop, await tls.receive_into(data, stop)
        assert stop > begin
    return bytes(data)


async def test_all_addresses_are_ipv4_and_ipv6_on_one_port() -> None:
    listeners = bind_bulk("::", 0)
    try:
        assert listeners[0].family is socket.AF_INET
        assert len({listener.getsockname()[1] for listener in listeners}) == 1
        assert [listener.family for listener in listeners[1:]] == [socket.AF_INET6] * socket.has_ipv6
    finally:
        for listener in listeners:
            listener.close()


async def test_substreams_take_no_place_of_a_stream_and_have_places_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_listener, "MAX_STREAMS_PER_PEER", 1)
    monkeypatch.setattr(tls_listener, "MAX_SUBSTREAMS_PER_PEER", 2)
    async with World().open(ALICE) as alice, AsyncExitStack() as stack:
        alice.handlers["collect"] = _collect
        for number in range(2):
            substream = await stack.enter_async_context(_connection(alice))
            assert await send_opening(substream, SUBSTREAM_CHANNEL) is Status.FINE
            await _sent(substream, bytes([number]) * TOKEN_BYTES)
        one_more = await stack.enter_async_context(_connection(alice))
        assert await send_opening(one_more, SUBSTREAM_CHANNEL) is Status.BUSY
        stream = await stack.enter_async_context(_connection(alice))
        assert await send_opening(stream, "collect") is Status.FINE


async def test_a_substream_that_does_not_say_whose_it_is_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "OPENING_WITHIN_S", 0.2)
    async with World().open(ALICE) as alice, _connection(alice) as tls:
        assert await send_opening(tls, SUBSTREAM_CHANNEL) is Status.FINE
        await _sent(tls, bytes(TOKEN_BYTES - 1))
        assert await _is_ended(tls)
