"""Shards from peer to peer, over the in-memory network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest
import trio

from averaging.data.shard_exchange import SHARD_CHANNEL, fetch_shard, serve_shards
from averaging.network.memory_network import MemoryNetwork, MemorySwarm
from averaging.network.seams import Stream
from protocol.errors import CallTimeout, PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId

DATA = bytes(range(256)) * 10_000
HASH = sha256(DATA).digest()
HOST, PEER = PeerId("host"), PeerId("peer")
StreamServer = Callable[[PeerId, Stream], Awaitable[None]]


@asynccontextmanager
async def two_peers(handler: StreamServer) -> AsyncIterator[MemoryNetwork]:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        swarm.start(HOST).serve_streams(SHARD_CHANNEL, handler)
        yield swarm.start(PEER)
        nursery.cancel_scope.cancel()


def holding(*shards: bytes) -> StreamServer:
    by_hash = {sha256(shard).digest(): shard for shard in shards}

    async def read(shard_hash: bytes) -> bytes | None:
        return by_hash.get(shard_hash)

    return serve_shards(read)


async def test_shard_arrives_whole_and_verified(autojump_clock: object) -> None:
    async with two_peers(holding(DATA, b"")) as network:
        assert await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60) == DATA
        assert await fetch_shard(network, HOST, sha256(b"").digest(), 0, timeout_s=60) == b""


async def test_shard_that_is_not_there_is_none(autojump_clock: object) -> None:
    async with two_peers(holding()) as network:
        assert await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60) is None


async def test_other_bytes_than_asked_for_are_refused(autojump_clock: object) -> None:
    async def lie(_hash: bytes) -> bytes | None:
        return bytes(len(DATA))

    async with two_peers(serve_shards(lie)) as network:
        with pytest.raises(RemoteProtocolError, match="not shard"):
            await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60)
        with pytest.raises(RemoteProtocolError, match="as the manifest says"):
            await fetch_shard(network, HOST, HASH, 5, timeout_s=60)


async def test_donor_that_stops_in_the_middle_is_told_from_a_slow_one(autojump_clock: object) -> None:
    async def stop(_peer: PeerId, stream: Stream) -> None:
        await stream.receive_frame()

    async def hang(_peer: PeerId, stream: Stream) -> None:
        await trio.sleep_forever()

    async with two_peers(stop) as network:
        with pytest.raises(PeerUnreachable):
            await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60)
    async with two_peers(hang) as network:
        with pytest.raises(CallTimeout):
            await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=5)


async def test_malformed_request_resets_the_stream(autojump_clock: object) -> None:
    async with two_peers(holding(DATA)) as network:
        stream = await network.open_stream(HOST, SHARD_CHANNEL, timeout_s=5)
        await stream.send_frame(b"short")
        with pytest.raises(PeerUnreachable):
            await stream.receive_frame()
