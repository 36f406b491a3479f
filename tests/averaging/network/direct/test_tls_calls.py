from __future__ import annotations

import math
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

import pytest
import trio
import trio.testing

from averaging.network.direct import tls_calls
from averaging.network.direct.tls_calls import MAX_MESSAGE_BYTES, MAX_PARTIAL, CallConnection, CallRules, Kind, NotSent
from averaging.network.direct.tls_identity import tls_context
from averaging.network.direct.tls_socket import TlsSocket, wrap
from averaging.network.seams.call_limits import CallLimiter
from averaging.network.seams.frames import MAX_CHANNEL_BYTES, Status
from averaging.network.seams.interfaces import MAX_CONTROL_BYTES
from protocol.errors import CallTimeout, ConnectionReset, PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId
from tests.averaging.network.direct_world import ALICE, BOB, CA, credential_of

MAX_PLACES = 4


@dataclass
class End:
    """One end and what it answers with."""

    nursery: trio.Nursery
    remote: PeerId
    handlers: dict[str, Callable[[bytes], Awaitable[bytes]]] = field(default_factory=dict)
    admitted: list[bool | None] = field(default_factory=lambda: [True])
    places: CallLimiter = field(default_factory=lambda: CallLimiter(MAX_PLACES, 64))
    idle_s: float = 60.0

    def over(self, tls: TlsSocket) -> CallConnection:
        async def admits(_: PeerId) -> bool | None:
            await trio.lowlevel.checkpoint()
            return self.admitted.pop(0) if len(self.admitted) > 1 else self.admitted[0]

        async def answer(peer: PeerId, channel: str, request: bytes) -> tuple[Status, bytes]:
            assert peer == self.remote
            if channel not in self.handlers:
                return Status.UNSERVED, b""
            return Status.FINE, await self.handlers[channel](request)

        rules = CallRules(admits, frozenset({"open"}), self.places, answer, self.nursery.start_soon, self.idle_s)
        connection = CallConnection(tls, self.remote, rules)
        self.nursery.start_soon(connection.run)
        return connection


@asynccontextmanager
async def _sockets() -> AsyncIterator[tuple[TlsSocket, TlsSocket]]:
    """Bob's and Alice's, past the handshake."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    contexts = [tls_context(credential_of(who), CA.certificate_der, is_server=who is ALICE) for who in (BOB, ALICE)]
    bob, alice = wrap(near, contexts[0], is_server=False), wrap(far, contexts[1], is_server=True)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bob.handshake)
            nursery.start_soon(alice.handshake)
        yield bob, alice
    finally:
        bob.close()
        alice.close()


class Cut:
    """Carries bytes between two sockets until so many more have gone one way; then both are cut."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._ends = (trio.socket.from_stdlib_socket(near), trio.socket.from_stdlib_socket(far))
        self.left = math.inf
        self.is_reset = False

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._carry, self._ends[0], self._ends[1], False)
            nursery.start_soon(self._carry, self._ends[1], self._ends[0], True)

    async def _carry(self, source: trio.socket.SocketType, sink: trio.socket.SocketType, is_counted: bool) -> None:
        with suppress(OSError, trio.ClosedResourceError):
            while data := await source.recv(1000):
                if is_counted:
                    data, self.left = data[: int(min(len(data), self.left))], self.left - len(data)
                begin = 0
                while begin < len(data):
                    begin += await sink.send(data[begin:])
                if self.left <= 0:
                    break
        for end in self._ends:
            if self.is_reset and end.fileno() >= 0:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


@asynccontextmanager
async def _cut() -> AsyncIterator[tuple[Pair, Cut]]:
    """Bob's and Alice's end with a line between them that can be cut anywhere."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = [socket.create_connection(server.getsockname()) for _ in range(2)]
        far = [server.accept()[0] for _ in range(2)]
    line = Cut(far[0], far[1])
    contexts = [tls_context(credential_of(who), CA.certificate_der, is_server=who is ALICE) for who in (BOB, ALICE)]
    bob, alice = wrap(places[0], contexts[0], is_server=False), wrap(places[1], contexts[1], is_server=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.run)
        async with trio.open_nursery() as handshakes:
            handshakes.start_soon(bob.handshake)
            handshakes.start_soon(alice.handshake)
        bobs, alices = End(nursery, ALICE.peer_id), End(nursery, BOB.peer_id)
        pair = Pair(bobs.over(bob), alices.over(alice), bobs, alices)
        yield pair, line
        pair.bob.close()
        pair.alice.close()
        nursery.cancel_scope.cancel()


class InTheMiddle:
    """A socket whose TLS has read a part of a message of its own, such as a change of keys: the other side stopped there. OpenSSL then
    wants to read whatever it is asked to do.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.fileno, self.setsockopt, self.close = connection.fileno, connection.setsockopt, connection.close

    def send(self, _: memoryview) -> int:
        raise ssl.SSLWantReadError

    def recv_into(self, _: memoryview) -> int:
        raise ssl.SSLWantReadError


@dataclass
class Pair:
    bob: CallConnection
    alice: CallConnection
    bobs: End
    alices: End


@asynccontextmanager
async def _pair(idle_s: float = 60.0) -> AsyncIterator[Pair]:
    async with _sockets() as (near, far), trio.open_nursery() as nursery:
        bobs, alices = End(nursery, ALICE.peer_id, idle_s=idle_s), End(nursery, BOB.peer_id)
        yield Pair(bobs.over(near), alices.over(far), bobs, alices)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _raw() -> AsyncIterator[tuple[TlsSocket, End, CallConnection]]:
    """Bob's bare socket before Alice's end."""
    async with _sockets() as (near, far), trio.open_nursery() as nursery:
        alices = End(nursery, BOB.peer_id)
        yield near, alices, alices.over(far)
        nursery.cancel_scope.cancel()


async def _echo(request: bytes) -> bytes:
    return request


def _piece(number: int, kind: int, data: bytes, *, is_last: bool = True) -> bytes:
    return struct.pack(">IBBH", number, kind, is_last, len(data)) + data


async def _sent(tls: TlsSocket, data: bytes) -> None:
    view, begin = memoryview(data), 0
    while begin < len(view):
        begin = await tls.send(view, begin)


async def _received(tls: TlsSocket, num_bytes: int) -> bytes:
    data, stop = memoryview(bytearray(num_bytes)), 0
    with trio.fail_after(60):
        while stop < num_bytes:
            begin, stop = stop, await tls.receive_into(data, stop)
            assert stop > begin, "the connection ended"
    return bytes(data)


async def _is_ended(tls: TlsSocket) -> bool:
    try:
        with trio.fail_after(60):
            while await tls.receive_into(memoryview(bytearray(4096)), 0):
                pass
    except OSError:
        pass
    return True


async def test_both_ends_call_over_the_one_connection_up_to_the_largest_messages() -> None:
    async with _pair() as pair:
        pair.alices.handlers["echo"] = pair.bobs.handlers["echo"] = _echo
        for caller in (pair.bob, pair.alice):
            for size in (0, 1, 100_000, MAX_CONTROL_BYTES):
                assert await caller.call("echo", b"x" * size) == b"x" * size


async def test_replies_find_their_callers_in_whatever_order_they_come() -> None:
    async with _pair() as pair, trio.open_nursery() as nursery:
        may_answer = {name: trio.Event() for name in (b"first", b"second")}
        replies: list[bytes] = []

        async def hold(request: bytes) -> bytes:
            await may_answer[request].wait()
            return request + b" answered"

        async def call(name: bytes) -> None:
            replies.append(await pair.bob.call("hold", name))
            may_answer[b"first"].set()

        pair.alices.handlers["hold"] = hold
        nursery.start_soon(call, b"first")
        nursery.start_soon(call, b"second")
        may_answer[b"second"].set()
        with trio.fail_after(60):
            while len(replies) < 2:
                await trio.sleep(0.001)
        assert replies == [b"second answered", b"first answered"]


async def test_a_ping_does_not_wait_for_the_end_of_a_long_reply() -> None:
    async with _pair() as pair, trio.open_nursery() as nursery:
        order: list[str] = []
        is_under_way = trio.Event()

        async def long(_: bytes) -> bytes:
            is_under_way.set()
            return bytes(MAX_CONTROL_BYTES)

        async def call() -> None:
            await pair.bob.call("long", b"")
            order.append("reply")

        pair.alices.handlers["long"] = long
        nursery.start_soon(call)
        await is_under_way.wait()
        with trio.fail_after(60):
            await pair.bob.ping()
            order.append("ping")
            while len(order) < 2:
                await trio.sleep(0.001)
        assert order == ["ping", "reply"]


async def test_the_end_of_the_connection_resets_calls_under_way_and_their_handlers_run_on_to_their_end() -> None:
    async with _pair() as pair, trio.open_nursery() as nursery:
        began, may_end, is_done = trio.Event(), trio.Event(), trio.Event()

        async def hold(_: bytes) -> bytes:
            began.set()
            await may_end.wait()
            is_done.set()
            return b""

        async def call() -> None:
            with pytest.raises(ConnectionReset, match="was reset"):
                await pair.bob.call("hold", b"")
            may_end.set()

        pair.alices.handlers["hold"] = hold
        nursery.start_soon(call)
        with trio.fail_after(60):
            await began.wait()
            pair.bob.close()
            await is_done.wait()
        with pytest.raises(NotSent):
            await pair.bob.call("hold", b"")


@pytest.mark.parametrize("is_reset", [False, True], ids=["ended", "reset"])
@pytest.mark.parametrize(
    "num_bytes", [1, 3, 700, 30_000], ids=["in a header", "in a header too", "in a record", "in the next one"]
)
async def test_a_line_that_is_cut_in_the_middle_of_a_message_of_tls_resets_the_call_and_ends_nobody(
    num_bytes: int, is_reset: bool
) -> None:
    async with _cut() as (pair, line):
        pair.alices.handlers["echo"] = _echo
        assert await pair.bob.call("echo", b"whole") == b"whole"
        line.is_reset, line.left = is_reset, num_bytes
        with trio.fail_after(60), pytest.raises(ConnectionReset, match="was reset"):
            await pair.bob.call("echo", b"x" * 60_000)
        with trio.fail_after(60):
            while pair.bob.is_open or pair.alice.is_open:
                await trio.sleep(0.001)
        with pytest.raises(NotSent):
            await pair.bob.call("echo", b"")


async def test_a_peer_that_stops_in_the_middle_of_a_change_of_keys_resets_the_call_and_ends_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    near.setblocking(False)
    with near, far:
        async with trio.open_nursery() as nursery:
            stopped = TlsSocket(cast(ssl.SSLSocket, InTheMiddle(near)))
            connection = End(nursery, ALICE.peer_id).over(stopped)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(60), pytest.raises(ConnectionReset, match="was reset"):
                await connection.call("echo", b"x")
            assert not connection.is_open
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.cancel_scope.cancel_called
            assert not nursery.child_tasks, "and nothing of it runs on"


async def test_a_caller_that_gave_up_gets_nothing_and_the_next_call_its_own_reply() -> None:
    async with _pair() as pair:
        may_answer = trio.Event()

        async def hold(_: bytes) -> bytes:
            await may_answer.wait()
            return b"late"

        pair.alices.handlers.update(hold=hold, echo=_echo)
        with trio.move_on_after(0.05):
            await pair.bob.call("hold", b"")
        may_answer.set()
        assert await pair.bob.call("echo", b"mine") == b"mine"


async def test_a_channel_that_is_not_served_is_unreachable() -> None:
    async with _pair() as pair:
        with pytest.raises(PeerUnreachable, match="does not serve nothing"):
            await pair.bob.call("nothing", b"")


async def test_a_peer_that_is_refused_is_told_so_and_its_connection_ends() -> None:
    async with _pair() as pair:
        pair.alices.handlers["echo"] = _echo
        pair.alices.admitted[:] = [True, False]
        assert await pair.bob.call("echo", b"x") == b"x"
        with pytest.raises(RemoteProtocolError, match="no credential"):
            await pair.bob.call("echo", b"x")
        with trio.fail_after(60):
            while pair.bob.is_open:
                await trio.sleep(0.001)
        assert not pair.alice.is_open


async def test_who_could_not_be_asked_about_is_turned_away_once_and_open_channels_serve_everybody() -> None:
    async with _pair() as pair:
        pair.alices.handlers.update(echo=_echo, open=_echo)
        pair.alices.admitted[:] = [None, True]
        with pytest.raises(RemoteProtocolError, match="no credential"):
            await pair.bob.call("echo", b"x")
        assert await pair.bob.call("echo", b"x") == b"x"
        pair.alices.admitted[:] = [False]
        assert await pair.bob.call("open", b"x") == b"x"
        assert pair.bob.is_open


async def test_a_request_of_a_caller_that_gave_up_before_it_was_sent_is_not_sent() -> None:
    async with _raw() as (tls, _, connection):
        with trio.move_on_after(0) as scope:
            await connection.call("echo", b"never")
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.ping)
            assert await _received(tls, 8) == _piece(1, Kind.PING, b"")
            await _sent(tls, _piece(1, Kind.PONG, b""))


async def test_a_call_that_was_not_begun_when_the_connection_ended_may_go_another_way() -> None:
    async with _pair() as pair, trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(NotSent):
                await pair.bob.call("echo", b"")

        nursery.start_soon(call)
        pair.bob.close()
    async with _pair() as pair:
        pair.bob.close()
        with pytest.raises(NotSent):
            await pair.bob.call("echo", b"")


async def test_a_reply_that_its_caller_does_not_take_keeps_its_place_until_the_connection_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_calls, "SENT_WITHIN_S", 0.3)
    monkeypatch.setattr(tls_calls, "LOOK_EVERY_S", 0.05)
    async with _raw() as (tls, alices, connection):
        is_answered = trio.Event()

        async def long(_: bytes) -> bytes:
            is_answered.set()
            return bytes(MAX_CONTROL_BYTES)

        alices.handlers["long"] = long
        for number in range(MAX_PLACES):
            await _sent(tls, _piece(number, Kind.REQUEST, b"\x04long"))
        with trio.fail_after(60):
            await is_answered.wait()
            assert not alices.places.enter(BOB.peer_id), "what waits to be sent holds memory"
            while connection.is_open:
                await trio.sleep(0.01)
        await trio.testing.wait_all_tasks_blocked()
        assert all(alices.places.enter(BOB.peer_id) for _ in range(MAX_PLACES))


async def test_a_crowd_of_pings_is_answered_in_part_and_nothing_is_kept_of_the_rest() -> None:
    async with _raw() as (tls, _, connection):
        await _sent(tls, b"".join(_piece(number, Kind.PING, b"") for number in range(1500)))
        await _sent(tls, _piece(9999, Kind.REQUEST, b"\x04none"))
        data = b""
        while not data.endswith(_piece(9999, Kind.REPLY, bytes([Status.UNSERVED]))):
            data += await _received(tls, 1)
        num_pongs = (len(data) - 9) // 8
        assert 0 < num_pongs < 1500
        assert connection.is_open


async def test_calls_beyond_a_peers_places_are_told_to_wait_and_places_come_back() -> None:
    async with _pair() as pair, trio.open_nursery() as nursery:
        may_answer, replies = trio.Event(), 0

        async def hold(_: bytes) -> bytes:
            await may_answer.wait()
            return b""

        async def call() -> None:
            nonlocal replies
            await pair.bob.call("hold", b"")
            replies += 1

        pair.alices.handlers.update(hold=hold, echo=_echo)
        for _ in range(MAX_PLACES):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            with pytest.raises(CallTimeout, match="is busy"):
                await pair.bob.call("echo", b"x" * 100_000)
            may_answer.set()
            while replies < MAX_PLACES:
                await trio.sleep(0.001)
            assert await pair.bob.call("echo", b"x") == b"x"


async def test_a_connection_that_nobody_uses_is_closed() -> None:
    async with _pair(idle_s=0.05) as pair:
        with trio.fail_after(60):
            while pair.alice.is_open:
                await trio.sleep(0.01)
        assert not pair.bob.is_open


async def test_a_request_that_is_never_ended_ends_the_connection_and_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_calls, "MEMBER_WITHIN_S", 0.05)
    monkeypatch.setattr(tls_calls, "LOOK_EVERY_S", 0.05)
    async with _raw() as (tls, alices, _):
        for number in range(MAX_PLACES):
            await _sent(tls, _piece(number, Kind.REQUEST, b"\x04echo", is_last=False))
        assert await _is_ended(tls)
        await trio.testing.wait_all_tasks_blocked()
        assert all(alices.places.enter(BOB.peer_id) for _ in range(MAX_PLACES))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_piece(0, 9, b""), id="an unknown kind"),
        pytest.param(
            b"".join(
                _piece(0, Kind.REQUEST, bytes(60_000), is_last=False) for _ in range(MAX_MESSAGE_BYTES // 60_000 + 1)
            ),
            id="a request too long",
        ),
        pytest.param(
            b"".join(_piece(number, Kind.REQUEST, b"x", is_last=False) for number in range(MAX_PARTIAL + 1)),
            id="too many requests begun",
        ),
    ],
)
async def test_what_no_peer_of_ours_sends_ends_the_connection(data: bytes) -> None:
    async with _raw() as (tls, _, connection):
        with suppress(OSError):  # it may be closed before all is sent
            await _sent(tls, data)
        assert await _is_ended(tls)
        assert not connection.is_open


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00", id="no name"),
        pytest.param(b"\x09echo", id="a name cut short"),
        pytest.param(b"\x04\xff\xff\xff\xff", id="not ASCII"),
        pytest.param(bytes([MAX_CHANNEL_BYTES + 1]) + b"x" * (MAX_CHANNEL_BYTES + 1), id="too long a name"),
    ],
)
async def test_a_request_that_names_no_channel_is_answered_as_not_served(message: bytes) -> None:
    async with _raw() as (tls, _, connection):
        await _sent(tls, _piece(7, Kind.REQUEST, message))
        assert await _received(tls, 9) == _piece(7, Kind.REPLY, bytes([Status.UNSERVED]))
        assert connection.is_open


@pytest.mark.parametrize("reply", [b"", b"\x09"])
async def test_a_reply_without_a_status_is_an_error_of_the_peer(reply: bytes) -> None:
    async with _raw() as (tls, _, connection), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(RemoteProtocolError, match="without a status"):
                await connection.call("echo", b"")

        nursery.start_soon(call)
        assert await _received(tls, 13) == _piece(0, Kind.REQUEST, b"\x04echo")
        await _sent(tls, _piece(0, Kind.REPLY, reply))


async def test_a_reply_too_long_ends_the_connection_before_it_is_kept() -> None:
    async with _raw() as (tls, _, connection), trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(ConnectionReset):
                await connection.call("echo", b"")

        nursery.start_soon(call)
        await _received(tls, 13)
        with suppress(OSError):
            for _ in range(1 + MAX_MESSAGE_BYTES // 60_000):
                await _sent(tls, _piece(0, Kind.REPLY, bytes(60_000), is_last=False))
        assert await _is_ended(tls)


async def test_replies_and_pongs_that_nobody_waits_for_are_dropped() -> None:
    async with _raw() as (tls, alices, _):
        alices.handlers["echo"] = _echo
        await _sent(
            tls, _piece(5, Kind.REPLY, b"\x00") + _piece(6, Kind.PONG, b"") + _piece(1, Kind.REQUEST, b"\x04echo!")
        )
        assert await _received(tls, 10) == _piece(1, Kind.REPLY, b"\x00!")
