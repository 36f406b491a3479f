"""Transfers packed data shards from peer to peer. They are requested by hash, and checked before use.

One stream carries any number of requests. A request is a frame of 32 bytes, the shard's SHA-256. The answer is a frame with the
shard's length (u64, big-endian; NOT_HERE if the donor does not have the shard), and then its bytes in frames of at most 1 MiB.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import trio

from averaging.data.shards import ShardCache
from averaging.network.seams.call_limits import CallLimiter
from protocol.errors import CallTimeout, PeerUnreachable, RefusedError, RemoteProtocolError, TemporaryError

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Network, Stream, StreamHandler
    from protocol.ids import PeerId

SHARD_CHANNEL: Final = "shards"
NOT_HERE: Final = (1 << 64) - 1
MAX_SHARD_BYTES: Final = 1 << 30
IDLE_LIMIT_S: Final = 60.0
"""A stream without a request for this long is closed."""

MAX_SERVED: Final = 16
"""Limit of concurrent shards, each of which is in memory while it is served. A peer that is refused asks another donor, or again
later.
"""

MAX_SERVED_EACH: Final = 2
SERVE_BASE_S: Final = 30.0
SLOWEST_BYTES_PER_S: Final = 16_384
"""A transfer slower than this is closed to free its place for another peer."""

_FRAME_BYTES: Final = 1 << 20
_HASH_BYTES: Final = 32
_LENGTH: Final = struct.Struct(">Q")

ReadShard = Callable[[bytes], Awaitable["bytes | None"]]
"""Returns a shard's bytes by its SHA-256, or None if it is not here."""

IsMember = Callable[["PeerId"], Awaitable[bool]]
"""Whether a peer may take part in the run."""


Takes = Callable[["PeerId", int], bool]
"""Whether a peer may have so many bytes more (averaging/network/pacing/byte_quota.py)."""


def nobody_is_limited(_peer: PeerId, _num_bytes: int) -> bool:
    """The rule of a donor without a quota."""
    return True


async def read_cached(cache: ShardCache, shard_hash: bytes) -> bytes | None:
    """The shard of this hash from a peer's own cache; None if it is not there."""
    return await trio.to_thread.run_sync(cache.read, shard_hash.hex())


def serve_shards(read_shard: ReadShard, is_member: IsMember, takes: Takes = nobody_is_limited) -> StreamHandler:
    """A handler for SHARD_CHANNEL that serves shards from `read_shard` to members, up to MAX_SERVED at a time, each within a
    deadline. `takes` says whether a peer may have so many bytes more.
    """
    places = CallLimiter(MAX_SERVED_EACH, MAX_SERVED)

    async def serve(peer: PeerId, stream: Stream) -> None:
        if not await is_member(peer):
            raise RefusedError(f"{peer} asked for data", "a member of the run")
        while True:
            request = None
            with trio.move_on_after(IDLE_LIMIT_S):
                request = await stream.receive_frame()
            if request is None:
                return
            if len(request) != _HASH_BYTES:
                raise RemoteProtocolError(f"a shard request of {len(request)} bytes", f"{_HASH_BYTES} bytes")
            if not places.enter(peer):
                raise TemporaryError(f"more than {MAX_SERVED} shards at once", "a free place", "ask again later")
            try:
                await _send(stream, request, read_shard, partial(takes, peer))
            finally:
                places.leave(peer)

    return serve


async def _send(stream: Stream, shard_hash: bytes, read_shard: ReadShard, takes: Callable[[int], bool]) -> None:
    with trio.move_on_after(SERVE_BASE_S) as scope:
        data = await read_shard(shard_hash)
        if data is not None and not takes(len(data)):
            raise TemporaryError("more of the data set than a stranger gets in a day", "less", "ask another peer")
        scope.deadline += len(data or b"") / SLOWEST_BYTES_PER_S
        await stream.send_frame(_LENGTH.pack(NOT_HERE if data is None else len(data)))
        view = memoryview(data or b"")
        for begin in range(0, len(view), _FRAME_BYTES):
            await stream.send_frame(view[begin : begin + _FRAME_BYTES])
    if scope.cancelled_caught:
        raise CallTimeout(f"{stream.remote} takes shard {shard_hash[:4].hex()} too slowly", "it read in time")


def _unheeded(_num_bytes: int) -> None:
    pass


async def fetch_shard(
    network: Network,
    donor: PeerId,
    shard_hash: bytes,
    num_bytes: int,
    *,
    timeout_s: float,
    on_bytes: Callable[[int], None] = _unheeded,
) -> bytes | None:
    """Fetch one shard from one donor, and verify it. None if the donor does not have it.

    Args:
        network: our network.
        donor: the host or another peer.
        shard_hash: SHA-256 of the shard, from the dataset's manifest.
        num_bytes: its length, from the same manifest.
        timeout_s: for everything, including opening the stream.
        on_bytes: called with the number of bytes here after each frame.

    Raises:
        PeerUnreachable, CallTimeout: the donor is gone or too slow; ask another.
        RemoteProtocolError: it sent something else; ask another.
    """
    if not 0 <= num_bytes <= MAX_SHARD_BYTES:
        raise RemoteProtocolError(f"a shard of {num_bytes} bytes", f"at most {MAX_SHARD_BYTES}")
    with trio.move_on_after(timeout_s):
        stream = await network.open_stream(donor, SHARD_CHANNEL, timeout_s=timeout_s)
        try:
            return await _fetch(stream, shard_hash, num_bytes, on_bytes)
        finally:
            with trio.move_on_after(1.0, shield=True):
                await stream.aclose()
    raise CallTimeout(f"shard {shard_hash[:4].hex()} from {donor} did not come", f"it within {timeout_s:.0f} s")


async def _fetch(stream: Stream, shard_hash: bytes, num_bytes: int, on_bytes: Callable[[int], None]) -> bytes | None:
    await stream.send_frame(shard_hash)
    head = await _frame(stream)
    if len(head) != _LENGTH.size:
        raise RemoteProtocolError(f"a shard length of {len(head)} bytes", f"{_LENGTH.size} bytes")
    (length,) = _LENGTH.unpack(head)
    if length == NOT_HERE:
        return None
    if length != num_bytes:
        raise RemoteProtocolError(f"a shard of {length} bytes", f"{num_bytes}, as the manifest says")
    data = bytearray()
    while len(data) < num_bytes:
        data += await _frame(stream)
        on_bytes(len(data))
        if len(data) > num_bytes:
            raise RemoteProtocolError(f"more than {num_bytes} bytes of a shard", "its length")
    if sha256(data).digest() != shard_hash:
        raise RemoteProtocolError(f"bytes that are not shard {shard_hash[:4].hex()}", "bytes of that hash")
    return bytes(data)


async def _frame(stream: Stream) -> bytes:
    frame = await stream.receive_frame()
    if frame is None:
        raise PeerUnreachable(f"{stream.remote} ended the stream in the middle of a shard", "the whole shard")
    return frame
