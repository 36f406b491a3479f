"""Lists that grow with the number of chunks, in frames that a stream takes: chunk hashes, and the chunks that a reducer has.

A short list goes in one frame, as it always has. So the bytes of a run change only where a slice has more chunks than one frame has
room for.

Rules: R9 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from averaging.network.seams.interfaces import Stream
from averaging.rounds.traffic.contribution import split_hashes
from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES
from protocol.rounds.messages.requests import ExchangeHello
from protocol.rounds.messages.wire import MAX_MESSAGE_BYTES, encode_body

HASHES_AT_ONCE: Final = 1 << 14
"""Hashes in a frame: 512 KiB."""

KNOWN_AT_ONCE: Final = 1 << 20
"""Chunks in a frame that says which of them a reducer has, a byte each."""

Receive = Callable[[], Awaitable[bytes | None]]
"""The next frame; None where there is none."""


async def send_hello(stream: Stream, hello: ExchangeHello) -> None:
    """Send a hello, and its chunk hashes in frames of their own if they do not fit into it. Raises TransportError."""
    encoded = encode_body(hello)
    if len(encoded) <= MAX_MESSAGE_BYTES:
        await stream.send_frame(encoded)
        return
    await stream.send_frame(encode_body(replace(hello, chunk_hashes=b"", hashes_follow=True)))
    await _send_pieces(stream, hello.chunk_hashes, HASH_BYTES * HASHES_AT_ONCE)


async def whole_hello(hello: ExchangeHello, num_chunks: int, receive: Receive) -> ExchangeHello:
    """The hello with the chunk hashes that follow it, of a slice with `num_chunks` chunks.

    Raises:
        RemoteProtocolError: other hashes than one for each chunk.
    """
    if not hello.hashes_follow:
        return hello
    data = await _pieces(receive, HASH_BYTES * num_chunks, HASH_BYTES * HASHES_AT_ONCE)
    return replace(hello, chunk_hashes=data, hashes_follow=False)


async def send_hashes(stream: Stream, hashes: Sequence[bytes]) -> None:
    """Send leaf hashes of 32 bytes each. Raises TransportError."""
    await _send_pieces(stream, b"".join(hashes), HASH_BYTES * HASHES_AT_ONCE)


async def receive_hashes(num_chunks: int, receive: Receive) -> tuple[bytes, ...]:
    """As many leaf hashes. Raises RemoteProtocolError for others than one for each chunk."""
    return split_hashes(await _pieces(receive, HASH_BYTES * num_chunks, HASH_BYTES * HASHES_AT_ONCE), num_chunks)


async def send_known(stream: Stream, known: bytes) -> None:
    """Say which chunks of a slice are here: a byte each, not 0 for those that are. Raises TransportError."""
    await _send_pieces(stream, known, KNOWN_AT_ONCE)


async def receive_known(num_chunks: int, receive: Receive) -> bytes:
    """As `send_known` wrote it, for a slice with so many chunks. A short list leaves out the rest.

    Raises:
        RemoteProtocolError: the reducer hung up.
    """
    known = b""
    for _ in range(0, num_chunks, KNOWN_AT_ONCE):
        frame = await receive()
        if frame is None:
            raise RemoteProtocolError("a reducer that hung up", "its list of chunks")
        known += frame
    return known


async def _send_pieces(stream: Stream, data: bytes, piece_bytes: int) -> None:
    for begin in range(0, len(data), piece_bytes):
        await stream.send_frame(data[begin : begin + piece_bytes])


async def _pieces(receive: Receive, num_bytes: int, piece_bytes: int) -> bytes:
    """So many bytes, in frames of `piece_bytes` but for the last."""
    pieces = list[bytes]()
    for begin in range(0, num_bytes, piece_bytes):
        frame, expected = await receive(), min(piece_bytes, num_bytes - begin)
        if frame is None or len(frame) != expected:
            found = "the end of the stream" if frame is None else f"a frame of {len(frame)} bytes"
            raise RemoteProtocolError(f"{found} among chunk hashes", f"{expected} bytes of them")
        pieces.append(frame)
    return b"".join(pieces)
