"""A bulk stream over one TLS connection: frames of bounded length, each received straight into its own memory.

    opening    channel length u8, channel; answer: status u8 (frames.py)
    frame      length u32, bytes                the marker 0xFFFFFFFF is the clean end
    substream  0xFFFFFFFE, its token            another connection of the opener, on which later frames may come, too
    frame      0xFFFFFFFD, length u32           its bytes come over the substreams (substreams.py)

An end of the connection without the marker is a reset. The marker is inside TLS, so nobody on the path can turn a reset into a
clean end. Once both sides have sent it, another opening (connection_pool.py) or the end of the connection may follow.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, Protocol

import numpy as np
import structlog
import trio

from averaging.network.direct.substream_rule import MOST_SUBSTREAMS
from averaging.network.direct.substreams import (
    ANNOUNCED_WITHIN_S,
    LEAST_PIECE_BYTES,
    STALLED_S,
    TOKEN_BYTES,
    SubstreamReader,
    SubstreamReceive,
    SubstreamSend,
)
from averaging.network.direct.tls_socket import RECORD_BYTES, TlsSocket
from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.seams.frames import MAX_CHANNEL_BYTES, Status, place_for
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, BulkKind, Place, Way
from protocol.errors import ConnectionReset, LocalProtocolError, MachineError, PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId

log = structlog.get_logger()

_LENGTH: Final = struct.Struct(">I")
_END: Final = 0xFFFFFFFF
_SUBSTREAM: Final = 0xFFFFFFFE
_STRIPED: Final = 0xFFFFFFFD
LINGER_S: Final = 120.0
LINGER_BYTES: Final = 8 * MAX_FRAME_BYTES
"""Time and bytes that a stream which we ended waits for the other side's end; its bytes are dropped."""


class _HeadPart(Enum):
    """The next part of a frame's head."""

    LENGTH_OR_MARKER = auto()
    TOKEN = auto()
    STRIPED_LENGTH = auto()


_FIRST_BYTES: Final = RECORD_BYTES - _LENGTH.size
"""Bytes of a frame that share a record with its length, since a record of four bytes would cost as much as a whole one."""

LEAST_PACED_BYTES: Final = 1 << 12
"""A smaller frame is an answer and does not fill a line."""

Ending = Callable[[], Coroutine[Any, Any, None]]
"""The remaining work for a stream that its owner has ended."""

KeepUntilDone = Callable[[Ending], None]
"""Runs the ending of a stream that its owner has left."""

Left = Callable[[TlsSocket], None]
"""Takes over the idle connection of a stream that both sides have ended."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Callbacks for a stream that its owner has ended, and then for its connection."""

    keep_until_done: KeepUntilDone
    left: Left = TlsSocket.close


Claim = Callable[[PeerId, bytes], Awaitable[TlsSocket]]
"""(opener of the stream, token) -> its substream's connection. Raises RemoteProtocolError: there is none."""


class Grows(Protocol):
    """Adds connections to a stream that we opened."""

    def sent(self, stream: TlsStream, num_bytes: int) -> None:
        """A frame of `num_bytes` has left that is long enough to fill a line."""
        ...


async def no_substreams(peer: PeerId, _token: bytes) -> TlsSocket:
    """The claim of the side that opened a stream, to which no substream may be announced. Raises RemoteProtocolError."""
    raise RemoteProtocolError(f"{peer} announced a substream of a stream that it did not open", "frames")


def _room(num_bytes: int) -> memoryview:
    """Writable memory, not cleared: it is handed on only once it is full."""
    return np.empty(num_bytes, dtype=np.uint8).data


class TlsStream:
    """One end of a stream after the opening; one task may send while another receives.

    A cancelled receive loses nothing. A frame whose sending was cancelled is finished by the next send.
    """

    def __init__(
        self,
        connection: TlsSocket,
        remote: PeerId,
        channel: str,
        lane: BulkLane,
        ends: Ends,
        *,
        claim: Claim = no_substreams,
        growth: Grows | None = None,
    ) -> None:
        self._connection = connection
        self._substreams: list[SubstreamReader] = []
        self._num_striped_up = self._num_striped_down = 0
        self._joining: deque[tuple[TlsSocket, bytes, float]] = deque()
        self._claim = claim
        self._growth = growth
        self._ends = ends
        self._has_left = False
        self._remote = remote
        self._kind = BulkKind(Way.DIRECT, channel)
        self._lane = lane
        self._is_closed = False
        self._is_sending = False
        self._is_receiving = False
        self._unsent: list[memoryview | SubstreamSend] = []
        self._head = memoryview(bytearray(_LENGTH.size))
        self._token = memoryview(bytearray(TOKEN_BYTES))
        self._next_part = _HeadPart.LENGTH_OR_MARKER
        self._frame: memoryview | SubstreamReceive | None = None
        self._num_received = 0
        self._held_back: memoryview | None = None
        self._is_ended = False

    @property
    def remote(self) -> PeerId:
        """The authenticated peer at the other end."""
        return self._remote

    def count_as(self, unit: str, codec: str) -> None:
        """Count the stream's bytes under this unit and codec from now on."""
        self._kind = replace(self._kind, unit=unit, codec=codec)

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        """Send one frame; waits for the limiter and for a slow reader. Raises as `Stream.send_frame`."""
        view = memoryview(data).cast("B")
        num_bytes = len(head) + len(view)
        if num_bytes > MAX_FRAME_BYTES:
            raise LocalProtocolError(f"a frame of {num_bytes} bytes", f"at most {MAX_FRAME_BYTES}")
        if self._is_closed:
            raise self._broken()
        await self._lane.pass_up(self._remote, self._kind, num_bytes)
        if self._is_closed:  # closed while it waited: the connection may carry another stream by now
            raise self._broken()
        self._announce_substreams()
        fills_line = num_bytes >= LEAST_PACED_BYTES
        if fills_line:
            self._lane.line.sending(self.connections)
        if self._substreams and num_bytes > LEAST_PIECE_BYTES:
            announced = memoryview(_LENGTH.pack(_STRIPED) + _LENGTH.pack(num_bytes))
            number, self._num_striped_up = self._num_striped_up, self._num_striped_up + 1
            whole = memoryview(b"".join((head, view))) if head else view
            await self._send(announced, SubstreamSend(number, whole, self.connections))
        else:
            if fills_line:
                self._connection.hold_for(num_bytes)
            num_first = max(0, _FIRST_BYTES - len(head))
            first = b"".join((_LENGTH.pack(num_bytes), head, view[:num_first]))
            await self._send(memoryview(first), view[num_first:])
        self._lane.line.sent()
        if fills_line and self._growth is not None:
            self._growth.sent(self, num_bytes)

    @property
    def connections(self) -> Sequence[TlsSocket]:
        """The connections that carry long frames: the substreams, or the first connection if there are none."""
        return tuple(reading.substream for reading in self._substreams) or (self._connection,)

    def join(self, substream: TlsSocket, token: bytes) -> None:
        """Add a substream, announced to the other side before the next frame. It is closed with the stream."""
        if self._is_closed:
            substream.close(is_reset=True)
        else:
            self._joining.append((substream, token, trio.current_time()))

    def _announce_substreams(self) -> None:
        while self._joining:
            substream, token, joined_s = self._joining.popleft()
            if trio.current_time() > joined_s + ANNOUNCED_WITHIN_S:
                substream.close(is_reset=True)
                continue
            self._unsent.append(memoryview(_LENGTH.pack(_SUBSTREAM) + token))
            self._substreams.append(SubstreamReader(substream))

    async def _send(self, *parts: memoryview | SubstreamSend) -> None:
        """Send the rest of earlier calls, then these parts. On cancellation the rest is copied, since the caller may change its
        memory.
        """
        self._is_sending = True
        self._unsent.extend(parts)
        try:
            while self._unsent:
                part = self._unsent[0]
                if isinstance(part, SubstreamSend):
                    await part.run()
                else:
                    await self._send_part(part)
                del self._unsent[0]
        except OSError as error:
            raise self._broken() from error
        except trio.TooSlowError as error:
            self.reset()  # else a reader that takes nothing would keep our memory for ever
            raise self._broken() from error
        except BaseException:  # cancelled, maybe in several tasks at once
            self._keep_unsent()
            raise
        finally:
            self._is_sending = False

    async def _send_part(self, part: memoryview) -> None:
        begin = 0
        while begin < len(part):
            with trio.fail_after(STALLED_S) as scope:
                # a scope stays cancelled after its deadline, even if bytes left at that very moment
                while begin < len(part) and not scope.cancel_called:
                    begin = await self._connection.send(part, begin)
                    scope.deadline = trio.current_time() + STALLED_S
                    self._unsent[0] = part[begin:]

    def _keep_unsent(self) -> None:
        for place, part in enumerate(self._unsent):
            if isinstance(part, SubstreamSend):
                part.keep()
            else:
                self._unsent[place] = memoryview(bytes(part))

    async def receive_frame(self) -> bytes | None:
        """The next frame, None after the clean end. Raises as `Stream.receive_frame`."""
        view = await self.receive_view()
        return None if view is None else bytes(view)

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        """The next frame as a view of the memory that received it."""
        if self._is_closed:
            raise self._broken()
        frame = await self._receive(place or _room) if self._held_back is None else self._held_back
        if frame is not None:
            self._held_back = frame
            await self._lane.took(self._kind, len(frame))
            self._held_back = None
        return frame

    async def _receive(self, place: Place = _room) -> memoryview | None:
        self._is_receiving = True
        try:
            if self._is_ended:
                return None
            while self._frame is None:
                if not await self._receive_head(place):
                    return None
            frame = self._frame
            if isinstance(frame, SubstreamReceive):
                await self._run(frame)
                frame = frame.frame
            else:
                await self._fill(frame)
            self._frame, self._num_received = None, 0
            return frame.toreadonly()
        except (RemoteProtocolError, MachineError):
            self.reset()  # else the following bytes would be read as the next frame's head
            raise
        finally:
            self._is_receiving = False

    async def _receive_head(self, place: Place) -> bool:
        """Receive one part of a frame's head; False for the clean end. A cancelled call keeps what it has read."""
        part = self._next_part
        await self._fill(self._token if part is _HeadPart.TOKEN else self._head)
        if part is _HeadPart.TOKEN:
            await self._take_substream()
            self._next_part, self._num_received = _HeadPart.LENGTH_OR_MARKER, 0
            return True
        self._num_received = 0
        (length,) = _LENGTH.unpack(self._head)
        if part is _HeadPart.LENGTH_OR_MARKER and length in (_SUBSTREAM, _STRIPED):
            if length == _STRIPED and not self._substreams:
                raise RemoteProtocolError(
                    f"{self._remote} announced a frame over substreams",
                    "a substream before it",
                    "the stream was closed",
                )
            self._next_part = _HeadPart.TOKEN if length == _SUBSTREAM else _HeadPart.STRIPED_LENGTH
            return True
        self._next_part = _HeadPart.LENGTH_OR_MARKER
        if part is _HeadPart.LENGTH_OR_MARKER and length == _END:
            self._is_ended = True
            return False
        if length > MAX_FRAME_BYTES:
            raise RemoteProtocolError(
                f"{self._remote} announced a frame of {length} bytes",
                f"at most {MAX_FRAME_BYTES}",
                "the stream was closed",
            )
        frame = place_for(length, place)
        if part is _HeadPart.STRIPED_LENGTH:
            number, self._num_striped_down = self._num_striped_down, self._num_striped_down + 1
            self._frame = SubstreamReceive(number, frame, self._substreams)
        else:
            self._frame = frame
        return True

    async def _take_substream(self) -> None:
        if len(self._substreams) >= MOST_SUBSTREAMS:
            raise RemoteProtocolError(f"{self._remote} announced more substreams", f"{MOST_SUBSTREAMS} at most")
        self._substreams.append(SubstreamReader(await self._claim(self._remote, bytes(self._token))))

    async def _run(self, frame: SubstreamReceive) -> None:
        try:
            await frame.run()
        except OSError as error:
            raise self._broken() from error

    async def _fill(self, buffer: memoryview) -> None:
        """Receive until `buffer` is full; `_num_received` is the progress, also after a cancellation."""
        try:
            while self._num_received < len(buffer):
                stop = await self._connection.receive_into(buffer, self._num_received, is_whole=True)
                if stop == self._num_received:
                    raise ConnectionResetError("an end without its marker")
                self._num_received = stop
        except OSError as error:
            raise self._broken() from error

    def _broken(self) -> ConnectionReset:
        return ConnectionReset(f"the stream with {self._remote} was reset", "a live stream")

    async def aclose(self) -> None:
        """End cleanly: sent bytes still arrive. A task of the network waits until the other side has ended, too."""
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_sending or self._connection.is_closed:
            self.reset()  # another task is sending
        else:
            self._ends.keep_until_done(self._end)

    async def _end(self) -> None:
        try:
            with trio.move_on_after(LINGER_S):
                self._announce_substreams()  # so that the other side does not keep them for a stream that is gone
                await self._send(memoryview(_LENGTH.pack(_END)))
                if not self._is_receiving:
                    await self._skip_to_end()
                    self._lane.line.left(self.connections)
                    self._leave()
        except (PeerUnreachable, RemoteProtocolError) as error:
            log.debug("stream_closed_unclean", peer=self._remote, error=error.one_line())
        finally:
            for connection in self._all_connections():
                connection.close()

    def _leave(self) -> None:
        """Hand on the connection, unless there were substreams, on which a frame may still be under way."""
        if self._is_ended and not self._substreams:
            self._has_left = True
            self._ends.left(self._connection)

    async def _skip_to_end(self) -> None:
        num_bytes = 0
        while num_bytes < LINGER_BYTES:
            frame = await self._receive()
            if frame is None:
                return
            num_bytes += _LENGTH.size + len(frame)

    def reset(self) -> None:
        """Break the stream: the other side sees no final marker."""
        self._is_closed = True
        for connection in self._all_connections():
            connection.close(is_reset=True)

    def _all_connections(self) -> Sequence[TlsSocket]:
        joining = (substream for substream, *_ in self._joining)
        return tuple(joining) if self._has_left else (self._connection, *self.connections, *joining)


async def send_opening(connection: TlsSocket, channel: str) -> Status:
    """The opener's side; returns the other side's answer.

    Raises:
        OSError: the connection broke.
        RemoteProtocolError: a malformed answer.
    """
    await ask_opening(connection, channel)
    return await hear_status(connection)


async def ask_opening(connection: TlsSocket, channel: str) -> None:
    """The first half of `send_opening`. Raises OSError."""
    name = channel.encode("ascii")
    await _send_all(connection, bytes([len(name)]) + name)


async def hear_status(connection: TlsSocket) -> Status:
    """The second half of `send_opening`; raises the same. It may be called again after a cancellation."""
    answer = await _receive_exactly(connection, 1)
    try:
        return Status(answer[0])
    except ValueError:
        raise RemoteProtocolError(f"status {answer[0]}", "0 to 3", "the stream was closed") from None


async def receive_opening(connection: TlsSocket) -> str:
    """The server's side: receive the channel's name.

    Raises:
        OSError: the connection broke.
        RemoteProtocolError: a malformed name.
    """
    (length,) = await _receive_exactly(connection, 1)
    if length > MAX_CHANNEL_BYTES:
        raise RemoteProtocolError(f"a channel of {length} letters", f"at most {MAX_CHANNEL_BYTES}")
    try:
        return (await _receive_exactly(connection, length)).decode("ascii")
    except UnicodeDecodeError:
        raise RemoteProtocolError("a channel that is not ASCII", "a channel's name") from None


async def send_status(connection: TlsSocket, status: Status) -> None:
    """Answer an opening. Raises OSError."""
    await _send_all(connection, bytes([status]))


async def _send_all(connection: TlsSocket, data: bytes) -> None:
    view, begin = memoryview(data), 0
    while begin < len(view):
        begin = await connection.send(view, begin)


async def _receive_exactly(connection: TlsSocket, num_bytes: int) -> bytes:
    data, stop = memoryview(bytearray(num_bytes)), 0
    while stop < num_bytes:
        begin, stop = stop, await connection.receive_into(data, stop)
        if stop == begin:
            raise ConnectionResetError("an end in the middle of the opening")
    return bytes(data)
