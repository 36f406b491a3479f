"""Frames of bounded length on an asyncio byte stream, and the openings of a call and of a bulk stream.

p2pd shows a reset stream as a plain end of file, so a clean end is marked explicitly: a final marker in place of a length. Every
announced length is compared with its bound before a byte is read or stored.

    frame    length u32, bytes                  the marker 0xFFFFFFFF is the clean end
    call     channel frame, request frame       reply: status u8, frame
    stream   channel frame                      reply: status u8; then frames both ways
"""

from __future__ import annotations

import asyncio
import struct
from enum import IntEnum
from typing import Final

from averaging.network.seams.interfaces import Place
from protocol.errors import CallTimeout, PeerUnreachable, RemoteProtocolError, TransportError, no_memory
from protocol.ids import PeerId

_LENGTH: Final = struct.Struct(">I")
_END: Final = 0xFFFFFFFF
MAX_CHANNEL_BYTES: Final = 32
MAX_REASON_BYTES: Final = 500


class Status(IntEnum):
    """First byte of every answer."""

    FINE = 0
    FAILED = 1
    UNSERVED = 2
    BUSY = 3


def placed(frame: bytes, place: Place | None) -> memoryview:
    """A read-only view of a received frame, copied into the memory that the caller of `Stream.receive_view` wants."""
    if place is None:
        return memoryview(frame)
    view = place_for(len(frame), place)
    view[:] = frame
    return view.toreadonly()


def place_for(num_bytes: int, place: Place) -> memoryview:
    """The caller's memory for a frame of `num_bytes`.

    Raises:
        MachineError: there is no memory; the frame is refused, and this peer goes on.
        RemoteProtocolError: no frame of that length is expected.
    """
    try:
        return place(num_bytes)
    except MemoryError:
        raise no_memory(num_bytes) from None


class EndOfStream(Exception):
    """The other side's clean end."""


class FrameReader:
    """Reads frames. A cancelled `read` loses nothing; the next one continues."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._length: int | None = None
        self.is_reading = False

    @property
    def is_ended(self) -> bool:
        """Whether the clean end was read."""
        return self._length == _END

    async def read(self, max_bytes: int) -> bytes:
        """The next frame.

        Raises:
            EndOfStream: the clean end.
            RemoteProtocolError: longer than `max_bytes`; nothing of it was read.
            asyncio.IncompleteReadError, ConnectionError: the stream broke.
        """
        self.is_reading = True
        try:
            return await self._read(max_bytes)
        finally:
            self.is_reading = False

    async def _read(self, max_bytes: int) -> bytes:
        if self._length is None:
            (self._length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        if self._length == _END:
            raise EndOfStream
        if self._length > max_bytes:
            raise RemoteProtocolError(
                f"a frame of {self._length} bytes", f"at most {max_bytes}", "the stream was closed"
            )
        data = await self._reader.readexactly(self._length)
        self._length = None
        return data

    async def read_status(self) -> Status:
        """The first byte of an answer.

        Raises:
            RemoteProtocolError: not a status we know.
            asyncio.IncompleteReadError, ConnectionError: the stream broke.
        """
        (value,) = await self._reader.readexactly(1)
        try:
            return Status(value)
        except ValueError:
            raise RemoteProtocolError(f"status {value}", "0 to 3", "the stream was closed") from None

    async def skip_to_end(self, max_bytes: int) -> None:
        """Read and drop frames until the clean end, or until `max_bytes` are dropped. Raises as `read`."""
        try:
            while max_bytes > 0:
                max_bytes -= 4 + len(await self.read(max_bytes))
        except EndOfStream:
            return


def write_bytes(writer: asyncio.StreamWriter, data: bytes | memoryview) -> None:
    """Queue raw bytes. Raises ConnectionResetError if the socket is closed (uvloop would raise RuntimeError)."""
    if writer.is_closing():
        raise ConnectionResetError("the stream is closed")
    writer.write(data)


def frame_of(data: bytes) -> bytes:
    """A short frame with its length, as bytes."""
    return _LENGTH.pack(len(data)) + data


async def write_frame(writer: asyncio.StreamWriter, data: bytes | memoryview) -> None:
    """Send one frame; waits while the other side is slow. Raises ConnectionError: the stream broke."""
    write_bytes(writer, _LENGTH.pack(len(data)))
    writer.write(data)
    await writer.drain()


def write_end(writer: asyncio.StreamWriter) -> None:
    """Send the marker of the clean end. Raises ConnectionResetError: the stream broke."""
    write_bytes(writer, _LENGTH.pack(_END))


def refusal(status: Status, peer: PeerId, channel: str, reason: str = "") -> TransportError | RemoteProtocolError:
    """The caller's error for an answer other than FINE. A busy peer counts as slow, not as gone."""
    if status is Status.UNSERVED:
        return PeerUnreachable(f"{peer} does not serve {channel}", "a served channel")
    if status is Status.BUSY:
        return CallTimeout(f"{peer} is busy on {channel}", "an answer", "try again later")
    return RemoteProtocolError(f"{peer} failed on {channel}: {reason}", "an answer")
