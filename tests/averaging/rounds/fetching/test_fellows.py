"""Many newcomers at once, over lines that each of them has once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest
import torch
import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.rounds.fetching.download import REQUESTS_EACH, DownloadContext, download_state
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.state.generations import Generations
from averaging.state.state import STATE_BYTES_PER_VALUE, UnitState, state_root
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import UnreachableError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.requests import FetchParts
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.rounds.fetching.shared_lines import SharedLines
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
UNIT: Final = UnitName("fragment-0")
HEAD: Final = CommitId(b"h" * 32)

LINE_BYTES_PER_S: Final = 20e6 / 8
STANDS_FOR_BYTES: Final = 1 << 17
NUM_CHUNKS: Final = 763
"""A hundred megabytes."""

GRID: Final = ChunkGrid(num_elements=16 * NUM_CHUNKS, chunk_elements=16)
CHUNK_BYTES: Final = 16 * STATE_BYTES_PER_VALUE
NUM_DONORS: Final = 4


@pytest.fixture(autouse=True)
def _chunks_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks_stand_for_long_ones(monkeypatch)


def chunks_stand_for_long_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set lengths and rates to those of chunks that are shorter than what they stand for."""
    factor = STANDS_FOR_BYTES // CHUNK_BYTES
    monkeypatch.setattr("averaging.rounds.fetching.download.STRIPE_BYTES", (512 << 10) // factor)
    monkeypatch.setattr("averaging.network.memory.memory_stream.FRAME_BUFFER", 1)
    monkeypatch.setattr("averaging.rounds.traffic.transfer.LEAST_BYTES_PER_S", 8_192 // factor)


class _NoResults:
    async def read_result(self, base: CommitId, result_hash: Root, /) -> bytes | None:
        return None


@dataclass
class Storm:
    """Donors that have a state, and newcomers that come one after another within a second."""

    swarm: MemorySwarm
    lines: SharedLines
    root: Root
    listed: list[PeerId] = field(default_factory=list)
    took_s: dict[PeerId, float] = field(default_factory=dict)
    liars_asked: list[tuple[PeerId, PeerId]] = field(default_factory=list)

    def start(self, name: str) -> tuple[PeerId, Generations, DownloadContext]:
        """A peer that serves what it has."""
        peer = PeerId(name)
        network = self.swarm.start(peer)
        generations = Generations(MemoryStorage(MemoryDisk()), GRID, InlineOffload())
        service = TransferService(
            UNIT, _NoResults(), generations, GRID, lambda _known: (), incoming=generations.incoming
        )

        async def serve(asker: PeerId, stream: Stream) -> None:
            await service.serve(asker, await read_request(stream), stream)

        network.serve_streams(FETCH_CHANNEL, serve)
        self.listed.append(peer)
        tools = DownloadContext(network, InlineOffload(), UNIT, GRID, generations.incoming, others=self.others)
        return peer, generations, tools

    def start_liar(self, name: str) -> None:
        """A member that says it has every chunk and sends other bytes."""
        peer, asked = PeerId(name), self.liars_asked

        async def serve(asker: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            if isinstance(request, FetchParts):
                await stream.send_frame(b"\xff" * -(-GRID.num_chunks // request.group // 8))
            else:
                asked.append((peer, asker))
                await stream.send_frame(bytes(CHUNK_BYTES))

        self.swarm.start(peer).serve_streams(FETCH_CHANNEL, serve)
        self.listed.append(peer)

    async def others(self) -> Sequence[PeerId]:
        """Everybody who has come."""
        return tuple(self.listed)

    async def join(self, name: str, donors: Sequence[PeerId]) -> None:
        """Fetch the state, and have it on disk."""
        peer, generations, tools = self.start(name)
        began_s = trio.current_time()
        state = await download_state(tools, donors, {HEAD: self.root})
        self.took_s[peer] = trio.current_time() - began_s
        assert state_root(state, GRID) == self.root
        await generations.write(state, self.root)


async def _opened(nursery: trio.Nursery) -> tuple[Storm, tuple[PeerId, ...]]:
    """A world with donors alone."""
    values_N = torch.arange(GRID.num_elements, dtype=torch.float32)
    state = UnitState(UNIT, HEAD, 3, 600, values_N, values_N * 0.5)
    swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed())
    lines = SharedLines(swarm, LINE_BYTES_PER_S, CHUNK_BYTES, STANDS_FOR_BYTES)
    storm = Storm(swarm, lines, state_root(state, GRID))
    donors = []
    for number in range(NUM_DONORS):
        donor, generations, _ = storm.start(f"donor-{number}")
        await generations.write(state, storm.root)
        donors.append(donor)
    return storm, tuple(donors)


async def joining_storm(num_newcomers: int, num_liars: int = 0) -> tuple[Storm, SharedLines]:
    """Newcomers that come within a second, and members that say they have all chunks and send other bytes."""
    async with trio.open_nursery() as nursery:
        storm, donors = await _opened(nursery)
        for number in range(num_liars):
            storm.start_liar(f"liar-{number}")
        async with trio.open_nursery() as newcomers:
            for number in range(num_newcomers):
                newcomers.start_soon(storm.join, f"newcomer-{number}", donors)
                await trio.sleep(1.0 / num_newcomers)
        nursery.cancel_scope.cancel()
    return storm, storm.lines


async def test_six_newcomers_at_once_give_the_state_to_each_other_and_take_hardly_longer_than_one(
    autojump_clock: Clock,
) -> None:
    alone, _ = await joining_storm(1)
    (alone_s,) = alone.took_s.values()
    storm, lines = await joining_storm(6)
    assert len(storm.took_s) == 6
    assert max(storm.took_s.values()) <= 2 * alone_s
    given = sum(sent for peer, sent in lines.bytes_up.items() if peer.startswith("donor"))
    assert given < 6 * NUM_CHUNKS * STANDS_FOR_BYTES * 2 / 3, "the rest they gave to each other"


async def test_a_fellow_that_sends_other_bytes_costs_a_newcomer_nothing_but_that_fellow(autojump_clock: Clock) -> None:
    storm, _ = await joining_storm(3, num_liars=2)
    assert len(storm.took_s) == 3
    assert set(storm.liars_asked), "they were asked"
    assert max(Counter(storm.liars_asked).values()) <= REQUESTS_EACH


async def test_newcomers_alone_do_not_wait_for_ever_for_what_none_of_them_has(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        storm, donors = await _opened(nursery)
        began_s, ended = trio.current_time(), list[str]()

        async def join(name: str) -> None:
            with pytest.raises(UnreachableError, match="no donor for the state"):
                await storm.join(name, donors)
            ended.append(name)

        async with trio.open_nursery() as newcomers:
            for name in ("one", "other"):
                newcomers.start_soon(join, name)
            await trio.sleep(10.0)
            for donor in donors:
                storm.swarm.kill(donor)
        assert len(ended) == 2
        assert trio.current_time() - began_s < 120.0
        nursery.cancel_scope.cancel()
