"""Calls over one TLS connection, used by both ends: requests, replies and pings travel in pieces that take turns.

    piece    id u32, kind u8, is last u8, length u16, bytes
    request  channel length u8, channel, request        reply   status u8 (frames.py), reply
    ping, pong  empty

A call over libp2p is a stream of its own, negotiated through four processes. Here it is one record each way. The end of the
connection resets every call that is under way on it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import structlog
import trio

from averaging.network.direct.tls_socket import RECORD_BYTES, TlsSocket
from averaging.network.seams.call_limits import MEMBER_WITHIN_S, NOT_ADMITTED, CallLimiter
from averaging.network.seams.frames import MAX_CHANNEL_BYTES, MAX_REASON_BYTES, Status, refusal
from averaging.network.seams.interfaces import MAX_CONTROL_BYTES
from protocol.errors import ConnectionReset, PotluckError, RemoteProtocolError
from protocol.ids import PeerId

log = structlog.get_logger()

_PIECE: Final = struct.Struct(">IBBH")
MAX_MESSAGE_BYTES: Final = MAX_CONTROL_BYTES + MAX_CHANNEL_BYTES + 1
MAX_PARTIAL: Final = 64
"""Incomplete requests of one peer at a time, rejected ones included; one more breaks the connection."""

MOST_OUTGOING_BYTES: Final = 1 << 21
MOST_OUTGOING: Final = 64
"""Bounds of the messages that wait to be sent; further calls go over libp2p."""

STALLED_S: Final = 30.0
"""Time limit for the other side to take the next bytes."""

SENT_WITHIN_S: Final = 60.0
"""Time limit for a queued message to leave, since a reader that takes a record now and then blocks places that others need."""

MOST_PONGS: Final = 8
"""Pings that wait for our answer; further ones are dropped, as on a full line."""

LOOK_EVERY_S: Final = 10.0
MAX_ID: Final = (1 << 32) - 1


class Kind(IntEnum):
    """The kind of message that a piece belongs to."""

    REQUEST = 0
    REPLY = 1
    PING = 2
    PONG = 3


@dataclass(frozen=True, slots=True)
class CallRules:
    """The network's part in a connection.

    Attributes:
        admits: whether the peer may be served now; None if unknown. Called for each request, and cheap if called recently. A
            refused peer gets a reply, and the connection ends.
        open_channels: channels that also serve peers that are not admitted.
        places: limits the requests of all connections, each from its first byte to the last byte of its reply.
        answer: (peer, channel, request) -> status and reply, or reason.
        start_soon: runs a handler, which outlives the connection, so that a request is not half done because its sender left.
        idle_s: an unused connection is closed after this time.
    """

    admits: Callable[[PeerId], Awaitable[bool | None]]
    open_channels: frozenset[str]
    places: CallLimiter
    answer: Callable[[PeerId, str, bytes], Awaitable[tuple[Status, bytes]]]
    start_soon: Callable[[Callable[[], Awaitable[None]]], None]
    idle_s: float


class NotSent(Exception):
    """The connection ended before any byte of the request was sent, so the call may use libp2p."""


@dataclass(slots=True, eq=False)
class _Outgoing:
    """A message whose bytes before `begin` are sent. `has_place` means that it occupies a place of the limiter."""

    id: int
    kind: Kind
    data: memoryview
    queued_s: float
    has_place: bool = False
    begin: int = 0
    has_begun: bool = False


@dataclass(slots=True)
class _Partial:
    """An incomplete request; `data` is None if there was no place for it, and its bytes are dropped."""

    began_s: float
    data: bytearray | None


@dataclass(slots=True)
class _Waiting:
    """A call or ping of ours; `is_whole` once its reply is complete."""

    reply: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    done: trio.Event = field(default_factory=trio.Event)


class CallConnection:
    """One end of a connection after the opening. `run` moves its bytes; calls can be made while it runs."""

    def __init__(self, tls: TlsSocket, remote: PeerId, rules: CallRules) -> None:
        self._tls = tls
        self._remote = remote
        self._rules = rules
        self._outgoing: deque[_Outgoing] = deque()
        self._has_outgoing = trio.Event()
        self._waiting: dict[int, _Waiting] = {}
        self._partial: dict[int, _Partial] = {}
        self._unparsed = bytearray()
        self._next_id = 0
        self._num_served = 0
        self._num_pongs = 0
        self._is_refused = False
        self._used_s = trio.current_time()
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether calls can be made, as far as this end knows."""
        return self._is_open

    @property
    def has_room(self) -> bool:
        """Whether another call would be sent soon."""
        num_bytes = sum(len(message.data) - message.begin for message in self._outgoing)
        return self._is_open and len(self._outgoing) < MOST_OUTGOING and num_bytes < MOST_OUTGOING_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self._outgoing or self._waiting or self._partial or self._num_served)

    @property
    def used_s(self) -> float:
        """Time of the last call in either direction."""
        return self._used_s

    def close(self) -> None:
        """End the connection; waiting calls raise ConnectionReset."""
        self._is_open = False
        self._tls.close()

    # --- our calls ---

    async def call(self, channel: str, request: bytes) -> bytes:
        """Send one request and return its reply; the caller sets the deadline.

        Raises:
            ConnectionReset, CallTimeout, PeerUnreachable, RemoteProtocolError: as `Network.call`.
            NotSent: no byte of it left.
        """
        name = channel.encode("ascii")
        reply = await self._ask(Kind.REQUEST, bytes([len(name)]) + name + request)
        try:
            status = Status(reply[0])
        except (IndexError, ValueError):
            self.close()
            raise RemoteProtocolError(f"{self._remote} sent a reply without a status", "0 to 3 first") from None
        if status is not Status.FINE:
            raise refusal(
                status, self._remote, channel, bytes(reply[1 : 1 + MAX_REASON_BYTES]).decode(errors="replace")
            )
        return bytes(memoryview(reply)[1:])

    async def ping(self) -> None:
        """One round trip. Raises ConnectionReset, NotSent."""
        await self._ask(Kind.PING, b"")

    async def _ask(self, kind: Kind, data: bytes) -> bytearray:
        number, self._next_id = self._next_id, (self._next_id + 1) & MAX_ID
        if not self._is_open:
            raise NotSent
        waiting = self._waiting[number] = _Waiting()
        message = self._send(number, kind, data)
        try:
            await waiting.done.wait()
        finally:
            del self._waiting[number]
            if not message.has_begun:  # its caller has gone
                with suppress(ValueError):
                    self._outgoing.remove(message)
        if waiting.is_whole:
            return waiting.reply
        if not message.has_begun:
            raise NotSent
        raise ConnectionReset(f"the connection with {self._remote} was reset", "a live connection")

    def _send(self, number: int, kind: Kind, data: bytes, *, has_place: bool = False) -> _Outgoing:
        message = _Outgoing(number, kind, memoryview(data), trio.current_time(), has_place)
        if kind in (Kind.PING, Kind.PONG):
            self._outgoing.appendleft(message)
        else:
            self._outgoing.append(message)
            self._used_s = message.queued_s
        self._has_outgoing.set()
        return message

    # --- the connection ---

    async def run(self) -> None:
        """Move bytes until either end closes the connection, then close it."""
        try:
            async with trio.open_nursery() as nursery:

                async def until_broken(task: Callable[[], Awaitable[None]]) -> None:
                    try:
                        await task()
                    except (OSError, trio.TooSlowError, PotluckError) as error:
                        log.debug("call_connection_ended", peer=self._remote, reason=str(error)[:200] or "too slow")
                    nursery.cancel_scope.cancel()

                for task in (self._write, self._read, self._watch):
                    nursery.start_soon(until_broken, task)
        finally:
            self.close()
            for waiting in self._waiting.values():
                waiting.done.set()
            num_held = sum(partial.data is not None for partial in self._partial.values())
            num_held += sum(message.has_place for message in self._outgoing)
            self._partial.clear()
            self._outgoing.clear()
            for _ in range(num_held):
                self._rules.places.leave(self._remote)

    async def _write(self) -> None:
        self._tls.carry_calls()
        while self._outgoing or not self._is_refused:
            if not self._outgoing:
                self._has_outgoing = trio.Event()
                await self._has_outgoing.wait()
                continue
            record, begin = memoryview(self._next_record()), 0
            while begin < len(record):
                with trio.fail_after(STALLED_S):
                    begin = await self._tls.send(record, begin)

    def _next_record(self) -> bytes:
        """One record with a piece of each waiting message, in turn, as far as they fit."""
        record = bytearray()
        while self._outgoing and len(record) + _PIECE.size < RECORD_BYTES:
            message = self._outgoing.popleft()
            stop = min(len(message.data), message.begin + RECORD_BYTES - _PIECE.size - len(record))
            is_last = stop == len(message.data)
            record += _PIECE.pack(message.id, message.kind, is_last, stop - message.begin)
            record += message.data[message.begin : stop]
            message.begin, message.has_begun = stop, True
            self._num_pongs -= message.kind is Kind.PONG
            if not is_last:
                self._outgoing.append(message)
            elif message.has_place:
                self._rules.places.leave(self._remote)
        return bytes(record)

    async def _read(self) -> None:
        # at most one record, so that the socket wakes us at the first byte
        buffer = memoryview(bytearray(RECORD_BYTES))
        while stop := await self._tls.receive_into(buffer, 0):
            self._unparsed += buffer[:stop]
            begin = 0
            while len(self._unparsed) - begin >= _PIECE.size:
                number, kind, is_last, length = _PIECE.unpack_from(self._unparsed, begin)
                end = begin + _PIECE.size + length
                if end > len(self._unparsed):
                    break
                self._took(number, kind, bool(is_last), bytes(self._unparsed[begin + _PIECE.size : end]))
                begin = end
            del self._unparsed[:begin]
            await trio.lowlevel.checkpoint()  # a record may hold hundreds of pieces

    async def _watch(self) -> None:
        while True:
            await trio.sleep(min(LOOK_EVERY_S, self._rules.idle_s))
            now_s = trio.current_time()
            if any(now_s - partial.began_s > MEMBER_WITHIN_S for partial in self._partial.values()):
                raise RemoteProtocolError(
                    f"{self._remote} did not end its request", f"all of it in {MEMBER_WITHIN_S:g} s"
                )
            if any(now_s - message.queued_s > SENT_WITHIN_S for message in self._outgoing):
                raise RemoteProtocolError(
                    f"{self._remote} takes too little", f"each message within {SENT_WITHIN_S:g} s"
                )
            if self.is_idle and now_s - self._used_s >= self._rules.idle_s:
                return

    # --- what comes ---

    def _took(self, number: int, kind: int, is_last: bool, piece: bytes) -> None:
        """Take one piece. Raises RemoteProtocolError: it is malformed or too large."""
        if kind == Kind.REQUEST:
            self._took_request(number, is_last, piece)
        elif kind in (Kind.REPLY, Kind.PONG):
            self._took_reply(number, is_last, piece)
        elif kind == Kind.PING:
            if self._num_pongs < MOST_PONGS:
                self._num_pongs += 1
                self._send(number, Kind.PONG, b"")
        else:
            raise RemoteProtocolError(
                f"{self._remote} sent a piece of kind {kind}", "0 to 3", "the connection was closed"
            )

    def _took_reply(self, number: int, is_last: bool, piece: bytes) -> None:
        waiting = self._waiting.get(number)
        if waiting is None:
            return  # its caller has gone
        if len(waiting.reply) + len(piece) > MAX_MESSAGE_BYTES:
            raise RemoteProtocolError(f"{self._remote} sent a reply beyond {MAX_CONTROL_BYTES} bytes", "a shorter one")
        waiting.reply += piece
        if is_last:
            waiting.is_whole = True
            waiting.done.set()

    def _took_request(self, number: int, is_last: bool, piece: bytes) -> None:
        partial = self._partial.get(number)
        if partial is None:
            if len(self._partial) >= MAX_PARTIAL:
                raise RemoteProtocolError(f"{self._remote} began more than {MAX_PARTIAL} requests", "to end some first")
            has_place = self._rules.places.enter(self._remote)
            partial = self._partial[number] = _Partial(trio.current_time(), bytearray() if has_place else None)
        if partial.data is not None:
            if len(partial.data) + len(piece) > MAX_MESSAGE_BYTES:
                raise RemoteProtocolError(
                    f"{self._remote} sent a request beyond {MAX_CONTROL_BYTES} bytes", "a shorter one"
                )
            partial.data += piece
        if not is_last:
            return
        del self._partial[number]
        if partial.data is None:
            self._busy(number)
            return
        self._used_s = trio.current_time()
        request = bytes(partial.data)
        self._num_served += 1
        self._rules.start_soon(lambda: self._serve(number, request))

    def _busy(self, number: int) -> None:
        """Reply that we are busy, unless too many replies wait already."""
        if self._is_open and len(self._outgoing) < MOST_OUTGOING + MAX_PARTIAL:
            self._send(number, Kind.REPLY, bytes([Status.BUSY]))

    async def _serve(self, number: int, message: bytes) -> None:
        has_replied = False
        try:
            status, reply = await self._answer(message)
            if self._is_open:
                self._send(number, Kind.REPLY, bytes([status]) + reply, has_place=True)
                has_replied = True
        finally:
            self._num_served -= 1
            if not has_replied:
                self._rules.places.leave(self._remote)

    async def _answer(self, message: bytes) -> tuple[Status, bytes]:
        name = message[1 : 1 + message[0]] if message else b""
        if not name or not name.isascii() or len(name) < message[0] or len(name) > MAX_CHANNEL_BYTES:
            return Status.UNSERVED, b""
        channel = name.decode()
        if channel not in self._rules.open_channels:
            is_admitted = await self._rules.admits(self._remote)
            if is_admitted is not True:
                self._is_refused = is_admitted is False
                return Status.FAILED, NOT_ADMITTED
        return await self._rules.answer(self._remote, channel, message[1 + message[0] :])
