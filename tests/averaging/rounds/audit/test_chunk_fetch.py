from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.rounds.audit.chunk_fetch import ASKED_WITHIN_S, Collecting
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, read_request
from protocol.ids import PeerId, Root
from protocol.rounds.audit.sum_proof import ShownChunk
from protocol.rounds.messages.requests import FetchChunk
from protocol.rounds.messages.wire import encode_body
from tests.averaging.rounds.audit.audit_world import CHUNK, GRID, REDUCER, SIX, Summed, summed

AUDITOR = PeerId("auditor")


def _collecting(world: Summed) -> Collecting:
    return Collecting(world.what, CHUNK, GRID.num_chunks, world.check.chunk_bytes)


def _all_shown(world: Summed) -> list[ShownChunk]:
    return world.offers.shown(CHUNK, frozenset(each.root for each in world.what.inputs))


async def _asked(world: Summed, answers: Mapping[PeerId, Sequence[bytes]]) -> tuple[Collecting, list[PeerId]]:
    """An auditor after it asked; these peers answer with these frames, whatever they are asked for."""
    collecting, asked = _collecting(world), list[PeerId]()
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 10_000_000.0))
        for peer, frames in answers.items():

            async def serve(_: PeerId, stream: Stream, peer: PeerId = peer, frames: Sequence[bytes] = frames) -> None:
                assert isinstance(await read_request(stream), FetchChunk)
                asked.append(peer)
                for frame in frames:
                    await stream.send_frame(frame)

            swarm.start(peer).serve_streams(FETCH_CHANNEL, serve)
        await collecting.ask_all(swarm.start(AUDITOR))
        nursery.cancel_scope.cancel()
    return collecting, asked


async def test_a_reducer_that_shows_everything_is_the_only_one_that_is_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = summed()
    frames = [encode_body(each) for each in _all_shown(world)]
    collecting, asked = await _asked(world, {REDUCER.peer_id: frames, SIX[1].peer_id: frames})
    assert collecting.missing == {}
    assert asked == [REDUCER.peer_id]
    assert collecting.num_bytes == sum(map(len, frames))


async def test_where_the_reducer_shows_nothing_the_contributors_show_their_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A liar cannot escape by its silence."""
    world = summed()
    own = {each.root: encode_body(each) for each in _all_shown(world)}
    answers = {each.peer: [own[each.root]] for each in world.what.inputs if each.peer != REDUCER.peer_id}
    collecting, _ = await _asked(world, {**answers, REDUCER.peer_id: []})
    assert list(collecting.missing.values()) == [REDUCER.peer_id], "it has not shown its own"
    collecting, _ = await _asked(world, {**answers, REDUCER.peer_id: [own[world.what.inputs[0].root]]})
    assert collecting.missing == {}


@pytest.mark.parametrize("kind", ["other bytes", "another chunk", "another root", "nonsense", "too much"])
async def test_what_does_not_lead_to_a_signed_root_is_not_taken(
    kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = summed()
    first, *_ = _all_shown(world)
    wrong = {
        "other bytes": encode_body(replace(first, data=bytes(len(first.data)))),
        "another chunk": encode_body(world.offers.shown(CHUNK + 1, {first.root})[0]),
        "another root": encode_body(replace(first, root=Root(b"x" * 32))),
        "nonsense": b"\xff" * 100,
        "too much": bytes(1 << 20),
    }[kind]
    with trio.fail_after(3 * ASKED_WITHIN_S):
        collecting, _ = await _asked(world, {each.peer: [wrong] for each in world.what.inputs})
    assert len(collecting.missing) == len(world.what.inputs)
