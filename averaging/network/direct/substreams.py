"""Frames that go over several further connections of a stream, its substreams: each piece goes to one that has room for it.

    on a substream    number of the frame u32, number of the piece u32, the piece

Frames are numbered from 0 in the order of their announcements on the stream's first connection, which carries no pieces itself.
All pieces of a frame have the length `piece_bytes`, the last one the rest. A substream without room delays no frame: the others
take its part. A broken substream breaks the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio

from averaging.network.direct.substream_rule import MOST_SUBSTREAMS
from averaging.network.direct.tls_socket import RECORD_BYTES, TlsSocket
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId

SUBSTREAM_CHANNEL: Final = "strand"
"""A substream's opening names this instead of a channel; its token follows."""

TOKEN_BYTES: Final = 16
CLAIM_WITHIN_S: Final = 10.0
"""Time limit for an announced substream to arrive, which mostly is there already."""

KEPT_FOR_S: Final = 660.0
"""Time for which an arrived substream waits to be claimed. Its announcement may wait behind frames that nobody reads, and answers
within a lane may take ten minutes.
"""

ANNOUNCED_WITHIN_S: Final = 5.0
"""Time limit for the opener to announce a substream; without a frame to send for longer, the opener closes it."""

STALLED_S: Final = 300.0
"""Time limit for the other side to take the next bytes, enough under a low cap. Waits for the limiter do not count."""

MOST_PIECE_BYTES: Final = 1 << 16
"""Half of the kernel's bound of unsent bytes (tls_socket.py)."""

LEAST_PIECE_BYTES: Final = 1 << 13
"""Half a record. A stream with a low cap sends frames of one chunk, 16 kB (rounds/traffic/batches.py)."""

_HEAD: Final = struct.Struct(">II")
_FIRST_BYTES: Final = RECORD_BYTES - _HEAD.size
MAX_FRAMES: Final = 1 << 32
"""Frame numbers wrap around at this number."""


def piece_bytes(num_bytes: int) -> int:
    """Length of the pieces of a frame of `num_bytes`: two pieces for each substream unless they would be too short.

    It does not depend on the number of substreams, because the dialled side may send before it has read of new ones.
    """
    return max(LEAST_PIECE_BYTES, min(MOST_PIECE_BYTES, num_bytes // (2 * MOST_SUBSTREAMS)))


async def _run_all(works: Sequence[Callable[[], Awaitable[None]]], is_done: Callable[[], bool]) -> None:
    """Run all works concurrently until `is_done`. The first expected error ends the others and is raised as itself."""
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
            raise _first(group) from None  # the caller is being cancelled: raise that once
        raise
    if errors:
        raise errors[0]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


class SubstreamSend:
    """One outgoing frame. Another `run` continues a cancelled one."""

    def __init__(self, number: int, data: memoryview, substreams: Sequence[TlsSocket]) -> None:
        self._number = number
        self._data = data
        self._substreams = tuple(substreams)
        self._piece_bytes = piece_bytes(len(data))
        self._num_pieces = -(-len(data) // self._piece_bytes)
        self._num_begun = self._num_sent = 0
        self._unsent: list[list[memoryview]] = [[] for _ in substreams]

    async def run(self) -> None:
        """Send until the kernel has all of it. Raises OSError: a connection broke; TooSlowError: no byte left for STALLED_S."""
        works = [
            partial(self._drive, substream, unsent)
            for substream, unsent in zip(self._substreams, self._unsent, strict=True)
        ]
        await _run_all(works, lambda: self._num_sent == self._num_pieces)

    def keep(self) -> None:
        """Copy what has not left, because the caller's memory may change from now on."""
        self._data = memoryview(bytes(self._data))
        for unsent in self._unsent:
            unsent[:] = [memoryview(bytes(part)) for part in unsent]

    async def _drive(self, substream: TlsSocket, unsent: list[memoryview]) -> None:
        """Drive one substream: it takes the next piece once it has room."""
        while unsent or self._num_begun < self._num_pieces:
            if not unsent:
                with trio.fail_after(STALLED_S):
                    await substream.wait_writable()
                unsent += self._next_parts()
            await self._send(substream, unsent)

    async def _send(self, substream: TlsSocket, unsent: list[memoryview]) -> None:
        while unsent:
            with trio.fail_after(STALLED_S):
                begin = await substream.send(unsent[0], 0)
            if begin < len(unsent[0]):
                unsent[0] = unsent[0][begin:]
                continue
            del unsent[0]
            self._num_sent += not unsent

    def _next_parts(self) -> list[memoryview]:
        if self._num_begun == self._num_pieces:  # the other substreams were faster
            return []
        begin = self._num_begun * self._piece_bytes
        data = self._data[begin : begin + self._piece_bytes]
        head = _HEAD.pack(self._number % MAX_FRAMES, self._num_begun)
        self._num_begun += 1
        parts = [memoryview(head + data[:_FIRST_BYTES]), data[_FIRST_BYTES:]]
        return [part for part in parts if len(part)]


class SubstreamReader:
    """The reading position of one substream."""

    def __init__(self, substream: TlsSocket) -> None:
        self.substream = substream
        self.head = memoryview(bytearray(_HEAD.size))
        self.piece: memoryview | None = None
        self.num_received = 0

    async def fill(self, buffer: memoryview) -> None:
        """Receive until `buffer` is full. Raises OSError. After a cancellation the next call with the same buffer continues."""
        while self.num_received < len(buffer):
            stop = await self.substream.receive_into(buffer, self.num_received, is_whole=True)
            if stop == self.num_received:
                raise ConnectionResetError("an end in the middle of a frame")
            self.num_received = stop


class SubstreamReceive:
    """One incoming frame, received into `frame`, writable. Another `run` continues a cancelled one without loss."""

    def __init__(self, number: int, frame: memoryview, readings: Sequence[SubstreamReader]) -> None:
        self.frame = frame
        self._number = number % MAX_FRAMES
        self._readings = tuple(readings)
        self._piece_bytes = piece_bytes(len(frame))
        self._missing = set(range(-(-len(frame) // self._piece_bytes)))
        self._num_reading = 0

    async def run(self) -> None:
        """Receive until the frame is whole.

        Raises:
            OSError: a connection broke.
            RemoteProtocolError: an unknown or repeated piece, or every substream went on to later frames too early.
        """
        if not self._is_whole():
            await _run_all([partial(self._drive, reading) for reading in self._readings], self._is_whole)
        if self._missing:
            raise RemoteProtocolError(f"a frame without {len(self._missing)} of its pieces", "all of them")

    def _is_whole(self) -> bool:
        return not self._missing and not self._num_reading

    async def _drive(self, reading: SubstreamReader) -> None:
        """Read one substream until its next piece belongs to a later frame, or the frame is whole."""
        while not self._is_whole():
            if reading.piece is None:
                await reading.fill(reading.head)
                if not self._begin_piece(reading):
                    return
            if reading.piece is not None:
                await reading.fill(reading.piece)
                reading.piece, reading.num_received = None, 0
                self._num_reading -= 1

    def _begin_piece(self, reading: SubstreamReader) -> bool:
        """Whether the next piece on this substream belongs to this frame. The head of a later frame's piece is kept."""
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


async def receive_token(substream: TlsSocket) -> bytes:
    """The token that a new substream sends first. Raises OSError: it broke."""
    token, stop = memoryview(bytearray(TOKEN_BYTES)), 0
    while stop < TOKEN_BYTES:
        begin, stop = stop, await substream.receive_into(token, stop)
        if stop == begin:
            raise ConnectionResetError("an end in the middle of a token")
    return bytes(token)


class SubstreamDesk:
    """Arrived substreams, until their stream claims them. The listener bounds their number."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[PeerId, bytes], TlsSocket] = {}
        self._changed = trio.Event()

    async def keep(
        self, peer: PeerId, token: bytes, substream: TlsSocket, confirm: Callable[[], Awaitable[None]]
    ) -> None:
        """Keep a substream until it is closed, by its stream or because no stream has claimed it in time.

        `confirm` tells its opener that it may be announced now.

        Raises:
            RemoteProtocolError: another substream has that token. OSError: it broke.
        """
        key = (peer, token)
        if key in self._waiting:
            raise RemoteProtocolError(f"two substreams of {peer} with one token", "a token of its own")
        self._waiting[key] = substream
        self._notify()
        try:
            with trio.move_on_after(KEPT_FOR_S):
                await confirm()
                while self._waiting.get(key) is substream:
                    await self._changed.wait()
        finally:
            if self._waiting.get(key) is substream:
                del self._waiting[key]
                substream.close(is_reset=True)
        await substream.closed.wait()

    async def claim(self, peer: PeerId, token: bytes) -> TlsSocket:
        """The substream that this peer opened with this token; from now on its stream must close it.

        Raises:
            RemoteProtocolError: there is none.
        """
        with trio.move_on_after(CLAIM_WITHIN_S):
            while (peer, token) not in self._waiting:
                await self._changed.wait()
        substream = self._waiting.pop((peer, token), None)
        self._notify()
        if substream is None:
            raise RemoteProtocolError(f"{peer} announced a substream that did not come", "a connection with its token")
        return substream

    def _notify(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()
