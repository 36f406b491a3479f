"""A bulk stream over one TLS connection: length-capped frames, each received straight into memory of its own.

    opening  channel length u8, channel; answer: status u8 (frames.py)
    frame    length u32, bytes                  the marker 0xFFFFFFFF is the clean end

An end of the connection without the marker is a reset. The marker is inside TLS, so nobody on the way can make a clean end of one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

import numpy as np
import structlog
import trio

from averaging.network.bulk_lane import BulkLane
from averaging.network.frames import MAX_CHANNEL_BYTES, Status, place_for
from averaging.network.seams import MAX_FRAME_BYTES, BulkKind, Place, Way
from averaging.network.tls_socket import RECORD_BYTES, TlsSocket
from protocol.errors import ConnectionReset, LocalProtocolError, MachineError, PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId

log = structlog.get_logger()

_LENGTH: Final = struct.Struct(">I")
_END: Final = 0xFFFFFFFF
LINGER_S: Final = 120.0
LINGER_BYTES: Final = 8 * MAX_FRAME_BYTES
"""A stream that we ended is kept so long for its other side to end too, dropping at most so much of what it still sends."""

STALLED_S: Final = 300.0
"""The other side must take something in so long; one under a low cap does. What waits for the pacer is not being sent yet."""

_FIRST_BYTES: Final = RECORD_BYTES - _LENGTH.size
"""Of a frame that go into one record with its length: a record of four bytes would cost as much as a whole one."""

LEAST_PACED_BYTES: Final = 1 << 12
"""A smaller frame is an answer, and no stream that fills a line."""

Ending = Callable[[], Coroutine[Any, Any, None]]
"""What is left to do for a stream that its owner has ended."""

KeepUntilDone = Callable[[Ending], None]
"""Runs the ending of a stream that its owner has left."""


def _room(num_bytes: int) -> memoryview:
    """Writable, not cleared: it is handed on when it is full."""
    return np.empty(num_bytes, dtype=np.uint8).data


class TlsStream:
    """One end, after the opening; one task may send while another receives.

    A cancelled receive loses nothing; a frame whose sending was cancelled is finished by what comes next.
    """

    def __init__(
        self, connection: TlsSocket, remote: PeerId, channel: str, lane: BulkLane, keep_until_done: KeepUntilDone
    ) -> None:
        self._connection = connection
        self._remote = remote
        self._kind = BulkKind(Way.DIRECT, channel)
        self._lane = lane
        self._keep_until_done = keep_until_done
        self._is_closed = False
        self._is_sending = False
        self._is_receiving = False
        self._unsent: list[memoryview] = []
        self._head = memoryview(bytearray(_LENGTH.size))
        self._frame: memoryview | None = None
        self._num_received = 0
        self._held_back: memoryview | None = None
        self._is_ended = False

    @property
    def remote(self) -> PeerId:
        """The authenticated peer at the other end."""
        return self._remote

    def count_as(self, unit: str, codec: str) -> None:
        """Count under these from now on."""
        self._kind = replace(self._kind, unit=unit, codec=codec)

    async def send_frame(self, data: bytes | memoryview) -> None:
        """Send one frame; waits for the pacer and for a slow reader. Raises as the seam says."""
        view = memoryview(data).cast("B")
        if len(view) > MAX_FRAME_BYTES:
            raise LocalProtocolError(f"a frame of {len(view)} bytes", f"at most {MAX_FRAME_BYTES}")
        if self._is_closed:
            raise self._broken()
        await self._lane.pass_up(self._remote, self._kind, len(view))
        await trio.lowlevel.checkpoint()
        if len(view) >= LEAST_PACED_BYTES:
            self._lane.line.sending(self._connection)
        await self._send(_LENGTH.pack(len(view)) + view[:_FIRST_BYTES], view[_FIRST_BYTES:])
        self._lane.line.sent()

    async def _send(self, *parts: bytes | memoryview) -> None:
        """Send what an earlier call left, then these. When cancelled, the rest is copied: the caller may change its memory."""
        self._is_sending = True
        self._unsent.extend(map(memoryview, parts))
        try:
            while self._unsent:
                part, begin = self._unsent[0], 0
                while begin < len(part):
                    with trio.fail_after(STALLED_S):
                        begin = await self._connection.send(part, begin)
                    self._unsent[0] = part[begin:]
                    if begin < len(part):
                        await trio.lowlevel.checkpoint()
                del self._unsent[0]
        except OSError as error:
            raise self._broken() from error
        except trio.TooSlowError as error:
            self.reset()  # a reader that takes nothing would else keep what is sent to it for ever
            raise self._broken() from error
        except trio.Cancelled:
            self._unsent = [memoryview(bytes(part)) for part in self._unsent]
            raise
        finally:
            self._is_sending = False

    async def receive_frame(self) -> bytes | None:
        """The next frame, None after the clean end. Raises as the seam says."""
        view = await self.receive_view()
        return None if view is None else bytes(view)

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        """The same, in the memory into which it was received."""
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
            await trio.lowlevel.checkpoint()
            if self._frame is None:
                await self._fill(self._head)
                (length,) = _LENGTH.unpack(self._head)
                if length == _END:
                    self._is_ended = True
                    return None
                if length > MAX_FRAME_BYTES:
                    self.reset()
                    raise RemoteProtocolError(
                        f"{self._remote} announced a frame of {length} bytes",
                        f"at most {MAX_FRAME_BYTES}",
                        "the stream was closed",
                    )
                try:
                    self._frame, self._num_received = place_for(length, place), 0
                except (MachineError, RemoteProtocolError):  # the frame would be read as the next one's head
                    self.reset()
                    raise
            frame = self._frame
            await self._fill(frame)
            self._frame, self._num_received = None, 0
            return frame.toreadonly()
        finally:
            self._is_receiving = False

    async def _fill(self, buffer: memoryview) -> None:
        """Receive until `buffer` is full; `_num_received` says how far it is, also when cancelled."""
        try:
            while self._num_received < len(buffer):
                stop = await self._connection.receive_into(buffer, self._num_received)
                if stop == self._num_received:
                    raise ConnectionResetError("an end without its marker")
                self._num_received = stop
                if stop < len(buffer):
                    await trio.lowlevel.checkpoint()
        except OSError as error:
            raise self._broken() from error

    def _broken(self) -> ConnectionReset:
        return ConnectionReset(f"the stream with {self._remote} was reset", "a live stream")

    async def aclose(self) -> None:
        """Clean end: what was sent still arrives. A task of the network waits until the other side has ended, too."""
        await trio.lowlevel.checkpoint()
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_sending or self._connection.is_closed:
            self.reset()  # closed under the hands of whoever sends
        else:
            self._keep_until_done(self._end)

    async def _end(self) -> None:
        try:
            with trio.move_on_after(LINGER_S):
                await self._send(_LENGTH.pack(_END))
                if not self._is_receiving:
                    await self._skip_to_end()
        except (PeerUnreachable, RemoteProtocolError) as error:
            log.debug("stream_closed_unclean", peer=self._remote, error=error.one_line())
        finally:
            self._connection.close()

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
        self._connection.close(is_reset=True)


async def send_opening(connection: TlsSocket, channel: str) -> Status:
    """The opener's side; returns what the other side says.

    Raises:
        OSError: the connection broke.
        RemoteProtocolError: an answer that is none.
    """
    name = channel.encode("ascii")
    await _send_all(connection, bytes([len(name)]) + name)
    answer = await _receive_exactly(connection, 1)
    try:
        return Status(answer[0])
    except ValueError:
        raise RemoteProtocolError(f"status {answer[0]}", "0 to 3", "the stream was closed") from None


async def receive_opening(connection: TlsSocket) -> str:
    """The server's side: the channel that is asked for.

    Raises:
        OSError: the connection broke.
        RemoteProtocolError: no channel's name.
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
