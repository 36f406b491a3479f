"""Frames that go over several further connections of a stream, its strands: a piece goes to whichever has room for it.

    on a strand    number of the frame u32, number of the piece u32, the piece

Frames are numbered from 0 as they are announced on the connection that the stream was opened with, which carries no pieces itself.
All pieces of a frame are as long as `piece_bytes` says, the last one what is left. A strand that has no room holds up no frame: the
others take its part. One that breaks breaks the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from averaging.network.direct.substream_rule import MOST_STRANDS
from averaging.network.direct.tls_socket import RECORD_BYTES, TlsSocket
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId

STRAND_CHANNEL: Final = "strand"
"""What a further connection asks for instead of a channel; its token follows."""

TOKEN_BYTES: Final = 16
CLAIM_WITHIN_S: Final = 10.0
"""A strand that is announced on its stream has come before, or does so soon."""

KEPT_FOR_S: Final = 660.0
"""A strand that has come is asked for so soon: its announcement may wait behind frames for as long as their reader reads nothing,
and answers within a lane may take ten minutes.
"""

ANNOUNCED_WITHIN_S: Final = 5.0
"""By whoever has opened it; one that nothing was to be sent on for longer is closed again."""

STALLED_S: Final = 300.0
"""The other side must take something in so long; one under a low cap does. What waits for the pacer is not being sent yet."""

MOST_PIECE_BYTES: Final = 1 << 16
"""Half of what the kernel holds unsent of a connection (tls_socket.py)."""

LEAST_PIECE_BYTES: Final = 1 << 13
"""Half a record. A stream that is held to 1 Mbit/s sends frames of one chunk, 16 kB (rounds/batches.py)."""

_HEAD: Final = struct.Struct(">II")
_FIRST_BYTES: Final = RECORD_BYTES - _HEAD.size
MAX_FRAMES: Final = 1 << 32
"""After so many their numbers begin again."""


def piece_bytes(num_bytes: int) -> int:
    """How long the pieces of a frame of so many bytes are: two for each strand where they are not too short for that.

    It is the same for any number of strands: who was dialled may send before it has read that there are more of them.
    """
    return max(LEAST_PIECE_BYTES, min(MOST_PIECE_BYTES, num_bytes // (2 * MOST_STRANDS)))


async def _beside(works: Sequence[Callable[[], Awaitable[None]]], is_done: Callable[[], bool]) -> None:
    """All of them at once, until that is so; the first error that is foreseen ends the others, and leaves as itself."""
    errors: list[Exception] = []

    async def guarded(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (OSError, trio.TooSlowError, RemoteProtocolError) as error:
            errors.append(error)
        if errors or is_done():
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for work in works:
                nursery.start_soon(guarded, work)
    except BaseExceptionGroup as group:
        if group.subgroup(lambda error: not isinstance(error, trio.Cancelled | BaseExceptionGroup)) is None:
            raise _first(group) from None  # the caller is being cancelled, and hears of it once
        raise
    if errors:
        raise errors[0]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


class StrandSend:
    """One frame on its way out. A `run` that was cancelled is gone on with by another one."""

    def __init__(self, number: int, data: memoryview, strands: Sequence[TlsSocket]) -> None:
        self._number = number
        self._data = data
        self._strands = tuple(strands)
        self._piece_bytes = piece_bytes(len(data))
        self._num_pieces = -(-len(data) // self._piece_bytes)
        self._num_begun = self._num_sent = 0
        self._unsent: list[list[memoryview]] = [[] for _ in strands]

    async def run(self) -> None:
        """Until all of it is with the kernel. Raises OSError where a connection broke, TooSlowError after STALLED_S without a byte."""
        works = [
            partial(self._drive, strand, unsent) for strand, unsent in zip(self._strands, self._unsent, strict=True)
        ]
        await _beside(works, lambda: self._num_sent == self._num_pieces)

    def keep(self) -> None:
        """The caller's memory may change from now on: copy what has not left."""
        self._data = memoryview(bytes(self._data))
        for unsent in self._unsent:
            unsent[:] = [memoryview(bytes(part)) for part in unsent]

    async def _drive(self, strand: TlsSocket, unsent: list[memoryview]) -> None:
        """One strand: takes the next piece once it has room for it."""
        while unsent or self._num_begun < self._num_pieces:
            if not unsent:
                with trio.fail_after(STALLED_S):
                    await strand.wait_writable()
                unsent += self._next_parts()
            await self._send(strand, unsent)

    async def _send(self, strand: TlsSocket, unsent: list[memoryview]) -> None:
        while unsent:
            with trio.fail_after(STALLED_S):
                begin = await strand.send(unsent[0], 0)
            if begin < len(unsent[0]):
                unsent[0] = unsent[0][begin:]
                continue
            del unsent[0]
            self._num_sent += not unsent

    def _next_parts(self) -> list[memoryview]:
        if self._num_begun == self._num_pieces:  # others were faster
            return []
        begin = self._num_begun * self._piece_bytes
        data = self._data[begin : begin + self._piece_bytes]
        head = _HEAD.pack(self._number % MAX_FRAMES, self._num_begun)
        self._num_begun += 1
        parts = [memoryview(head + data[:_FIRST_BYTES]), data[_FIRST_BYTES:]]
        return [part for part in parts if len(part)]


class StrandReading:
    """How far one strand was read, whatever frame it is at."""

    def __init__(self, strand: TlsSocket) -> None:
        self.strand = strand
        self.head = memoryview(bytearray(_HEAD.size))
        self.piece: memoryview | None = None
        self.num_received = 0

    async def fill(self, buffer: memoryview) -> None:
        """Receive until it is full. Raises OSError. One that was cancelled is gone on with by the next with the same buffer."""
        while self.num_received < len(buffer):
            stop = await self.strand.receive_into(buffer, self.num_received, is_whole=True)
            if stop == self.num_received:
                raise ConnectionResetError("an end in the middle of a frame")
            self.num_received = stop


class StrandReceive:
    """One frame that comes into `frame`, writable. A `run` that was cancelled is gone on with by another one and loses nothing."""

    def __init__(self, number: int, frame: memoryview, readings: Sequence[StrandReading]) -> None:
        self.frame = frame
        self._number = number % MAX_FRAMES
        self._readings = tuple(readings)
        self._piece_bytes = piece_bytes(len(frame))
        self._missing = set(range(-(-len(frame) // self._piece_bytes)))
        self._num_reading = 0

    async def run(self) -> None:
        """Until it is whole.

        Raises:
            OSError: a connection broke.
            RemoteProtocolError: a piece that there is not, or not any more; later frames on every strand before this one is whole.
        """
        if not self._is_whole():
            await _beside([partial(self._drive, reading) for reading in self._readings], self._is_whole)
        if self._missing:
            raise RemoteProtocolError(f"a frame without {len(self._missing)} of its pieces", "all of them")

    def _is_whole(self) -> bool:
        return not self._missing and not self._num_reading

    async def _drive(self, reading: StrandReading) -> None:
        """One strand: until its next piece is one of a later frame, or the frame is whole."""
        while not self._is_whole():
            if reading.piece is None:
                await reading.fill(reading.head)
                if not self._begin_piece(reading):
                    return
            if reading.piece is not None:
                await reading.fill(reading.piece)
                reading.piece, reading.num_received = None, 0
                self._num_reading -= 1

    def _begin_piece(self, reading: StrandReading) -> bool:
        """Whether what comes next on this strand is a piece of this frame. The head of a later one's stays where it is."""
        frame, piece = _HEAD.unpack(reading.head)
        if frame != self._number and (frame - self._number) % MAX_FRAMES < MAX_FRAMES // 2:
            return False
        if frame != self._number or piece not in self._missing:
            raise RemoteProtocolError(
                f"piece {piece} of frame {frame}", f"each piece of frame {self._number} once, {len(self.frame)} bytes"
            )
        self._missing.discard(piece)
        reading.piece = self.frame[piece * self._piece_bytes : (piece + 1) * self._piece_bytes]
        reading.num_received = 0
        self._num_reading += 1
        return True


async def receive_token(strand: TlsSocket) -> bytes:
    """What a connection that is to be a strand says first. Raises OSError: it broke."""
    token, stop = memoryview(bytearray(TOKEN_BYTES)), 0
    while stop < TOKEN_BYTES:
        begin, stop = stop, await strand.receive_into(token, stop)
        if stop == begin:
            raise ConnectionResetError("an end in the middle of a token")
    return bytes(token)


class StrandDesk:
    """Connections that have come to be strands, until the stream that they belong to is told of them. The door bounds their number."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[PeerId, bytes], TlsSocket] = {}
        self._changed = trio.Event()

    async def keep(self, peer: PeerId, token: bytes, strand: TlsSocket, confirm: Callable[[], Awaitable[None]]) -> None:
        """Until it is closed, by its stream or because no stream has asked for it in time. `confirm` tells its opener that it may be
        announced now.

        Raises:
            RemoteProtocolError: another one has that token. OSError: it broke.
        """
        key = (peer, token)
        if key in self._waiting:
            raise RemoteProtocolError(f"two strands of {peer} with one token", "a token of its own")
        self._waiting[key] = strand
        self._notify()
        try:
            with trio.move_on_after(KEPT_FOR_S):
                await confirm()
                while self._waiting.get(key) is strand:
                    await self._changed.wait()
        finally:
            if self._waiting.get(key) is strand:
                del self._waiting[key]
                strand.close(is_reset=True)
        await strand.closed.wait()

    async def claim(self, peer: PeerId, token: bytes) -> TlsSocket:
        """The one that this peer opened with this token; from now on its stream closes it.

        Raises:
            RemoteProtocolError: there is none.
        """
        with trio.move_on_after(CLAIM_WITHIN_S):
            while (peer, token) not in self._waiting:
                await self._changed.wait()
        strand = self._waiting.pop((peer, token), None)
        self._notify()
        if strand is None:
            raise RemoteProtocolError(f"{peer} announced a strand that did not come", "a connection with its token")
        return strand

    def _notify(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()
