from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import torch
import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.rounds.audit.work_fetch import ShownWork, WorkFetch
from averaging.rounds.lineage.round_context import RoundContext
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, read_request
from protocol.ids import PeerId, Root
from protocol.rounds.messages.record import CommitRecord, Contributor, SliceRecord
from protocol.rounds.messages.requests import FetchChunk, FetchSteps, StepsTaken
from protocol.rounds.messages.wire import encode_body
from tests.averaging.rounds.audit.audit_world import CHUNK, GRID, REDUCER, SIX, Summed, summed
from tests.protocol.rounds.messages.test_wire import RECORD

AUDITOR = PeerId("auditor")
PLACE = 2
"""Of the contributor whose work is fetched."""


def _record(world: Summed) -> CommitRecord:
    counted = tuple(Contributor(each.peer, 1, each.root, 100, 100) for each in world.what.inputs)
    part = SliceRecord(0, GRID.num_chunks, REDUCER.peer_id, world.what.result_hash, ())
    return replace(RECORD, unit=world.what.unit, parent=world.what.base, slices=(part,), contributors=counted)


async def _fetched(steps: Sequence[bytes], chunks: Mapping[PeerId, Sequence[bytes]], world: Summed) -> ShownWork:
    """The work of one contributor, which answers with these steps; these peers answer with these chunks."""
    record = _record(world)
    entry = record.contributors[PLACE]
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 10_000_000.0))
        for peer in {entry.peer, *chunks}:

            async def serve(_: PeerId, stream: Stream, peer: PeerId = peer) -> None:
                request = await read_request(stream)
                if isinstance(request, FetchSteps):
                    assert request.root == entry.root
                frames = steps if isinstance(request, FetchSteps) else chunks.get(peer, ())
                assert isinstance(request, FetchSteps | FetchChunk)
                for frame in frames:
                    await stream.send_frame(frame)

            swarm.start(peer).serve_streams(FETCH_CHANNEL, serve)
        chain = SimpleNamespace(tools=SimpleNamespace(grid=GRID, codec=codec_by_name("int8")))
        fetch = WorkFetch(
            cast("UnitChain", chain),
            cast("RoundContext", SimpleNamespace(network=swarm.start(AUDITOR))),
            SimpleNamespace(on=lambda base: None),  # type: ignore[arg-type]
        )
        found = await fetch.fetch(record, entry, (CHUNK,))
        nursery.cancel_scope.cancel()
    return found


def _told(world: Summed) -> StepsTaken:
    return StepsTaken(world.what.inputs[PLACE].root, 300, 20)


def _shown(world: Summed) -> list[bytes]:
    return [encode_body(each) for each in world.offers.shown(CHUNK, {world.what.inputs[PLACE].root})]


async def test_the_steps_come_from_the_contributor_and_its_chunks_from_whoever_shows_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    contributor, told = world.what.inputs[PLACE].peer, [encode_body(_told(world))]
    by_reducer = await _fetched(told, {REDUCER.peer_id: _shown(world)}, world)
    by_itself = await _fetched(told, {contributor: _shown(world), REDUCER.peer_id: []}, world)
    (shown,) = world.offers.shown(CHUNK, {world.what.inputs[PLACE].root})
    begin, stop = GRID.bounds(CHUNK)
    for found in (by_reducer, by_itself):
        assert found.steps == _told(world)
        assert torch.equal(found.chunks[CHUNK], codec_by_name("int8").decode(shown.data, stop - begin))


async def test_without_steps_of_that_contribution_or_without_any_chunk_that_part_is_missing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    shown = {REDUCER.peer_id: _shown(world)}
    other = encode_body(replace(_told(world), root=Root(b"x" * 32)))
    for steps in ([], [other], [b"nonsense"], [encode_body(_told(world))[:-3]]):
        found = await _fetched(steps, shown, world)
        assert (found.steps, set(found.chunks)) == (None, {CHUNK}), "the steps may be told later"
    told = [encode_body(_told(world))]
    for chunks in ({REDUCER.peer_id: []}, {SIX[1].peer_id: _shown(world)}):  # nobody asks the second
        found = await _fetched(told, chunks, world)
        assert (found.steps, found.chunks) == (_told(world), {})
