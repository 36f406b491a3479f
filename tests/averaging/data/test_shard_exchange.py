"""Shards from peer to peer, over the in-memory network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest
import trio

from averaging.data.shard_exchange import (
    MAX_SERVED,
    MAX_SERVED_EACH,
    SERVE_BASE_S,
    SHARD_CHANNEL,
    SLOWEST_BYTES_PER_S,
    fetch_shard,
    serve_shards,
)
from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from averaging.network.pacing.byte_quota import ByteQuota
from averaging.network.seams.interfaces import Stream
from protocol.errors import CallTimeout, PeerUnreachable, PotluckError, RemoteProtocolError, TemporaryError
from protocol.ids import PeerId

DATA = bytes(range(256)) * 10_000
HASH = sha256(DATA).digest()
HOST, PEER = PeerId("host"), PeerId("peer")
StreamServer = Callable[[PeerId, Stream], Awaitable[None]]


async def everybody(_: PeerId) -> bool:
    return True


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

    return serve_shards(read, everybody)


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

    async with two_peers(serve_shards(lie, everybody)) as network:
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


async def test_who_is_no_member_gets_nothing(autojump_clock: object) -> None:
    asked = []

    async def read(shard_hash: bytes) -> bytes | None:
        asked.append(shard_hash)
        return DATA

    async def only_host(peer: PeerId) -> bool:
        return peer == HOST

    async with two_peers(serve_shards(read, only_host)) as network:
        with pytest.raises(PeerUnreachable):
            await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60)
    assert asked == []


class SlowStream:
    """The server's end of a stream: one request, and a reader that takes its time for each frame, or never."""

    def __init__(self, peer: PeerId, frame_s: float) -> None:
        self.remote = peer
        self.frame_s = frame_s
        self.requests: list[bytes] = [HASH]
        self.num_sent = 0

    async def receive_frame(self) -> bytes | None:
        return self.requests.pop() if self.requests else None

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        await trio.sleep(self.frame_s)
        self.num_sent += 1

    async def aclose(self) -> None:
        pass


async def test_a_shard_that_nobody_takes_is_given_up_after_a_time_that_grows_with_its_length(
    autojump_clock: object,
) -> None:
    serve, limit_s = holding(DATA), SERVE_BASE_S + len(DATA) / SLOWEST_BYTES_PER_S
    num_frames = 1 + -(-len(DATA) // (1 << 20))
    patient = SlowStream(PEER, 0.9 * limit_s / num_frames)
    await serve(PEER, patient)
    assert patient.num_sent == num_frames
    began_s = trio.current_time()
    with pytest.raises(CallTimeout, match="too slowly"):
        await serve(PEER, SlowStream(PEER, 1e9))
    assert trio.current_time() - began_s == pytest.approx(limit_s)


async def test_places_are_bounded_for_each_peer_and_in_all_and_come_back(autojump_clock: object) -> None:
    serve = holding(DATA)
    outcomes: list[str] = []

    async def ask(peer: PeerId, frame_s: float) -> None:
        try:
            await serve(peer, SlowStream(peer, frame_s))
            outcomes.append("served")
        except TemporaryError:
            outcomes.append("no place")

    async with trio.open_nursery() as nursery:
        for _ in range(MAX_SERVED_EACH + 1):
            nursery.start_soon(ask, PEER, 1.0)
        await trio.sleep(0.1)
        assert outcomes == ["no place"]
        for number in range(MAX_SERVED):
            nursery.start_soon(ask, PeerId(f"other {number}"), 1.0)
        await trio.sleep(0.1)
        assert outcomes == ["no place"] * (1 + MAX_SERVED_EACH)
    assert outcomes.count("served") == MAX_SERVED
    await ask(PEER, 0.0)
    assert outcomes[-1] == "served"


async def test_a_stranger_gets_no_more_of_the_data_set_than_its_quota(autojump_clock: object) -> None:
    quota = ByteQuota(len(DATA), 86_400.0, lambda peer: peer == PEER, trio.current_time)

    async def read(_hash: bytes) -> bytes | None:
        return DATA

    async with two_peers(serve_shards(read, everybody, quota.takes)) as network:
        assert await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60) == DATA
        with pytest.raises(PotluckError):
            await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60)
        await trio.sleep(86_400.0)
        assert await fetch_shard(network, HOST, HASH, len(DATA), timeout_s=60) == DATA
