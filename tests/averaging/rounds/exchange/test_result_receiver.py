from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import trio.testing

from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.network.seams.interfaces import BegunFile
from averaging.rounds.exchange.result_receiver import RefusedResult, take_result
from averaging.rounds.lineage.next_state import SliceBytes
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import RemoteProtocolError
from protocol.merkle import leaf_hash, merkle_root
from protocol.rounds.messages.messages import SliceSpec
from tests.averaging.rounds.exchange_world import ONE_SLICE, Side, contribution_of, result_header, three_sides
from tests.averaging.rounds.round_world import CHUNK_BYTES, GRID, RoundWorld

Clock = trio.testing.MockClock
NO_VALUE = np.float32("nan").tobytes()


async def _taken(
    world: RoundWorld,
    named: Sequence[bytes],
    sent: Sequence[bytes],
    begun: BegunFile | None = None,
    here: Sequence[bytes] = (),
) -> tuple[SliceBytes, int]:
    """A member's result from these frames for these chunks, and the number of chunks that it examined."""
    begun = begun or MemoryStorage(MemoryDisk()).begin("result")
    reducer, member = world.parties[:2]
    seen = list[int]()

    def came(frame: memoryview) -> None:
        seen.append(len(frame))

    async def give(_: object, stream: object) -> None:
        for frame in sent:
            await stream.send_frame(frame)  # type: ignore[attr-defined]

    reducer.network.serve_streams("give", give)
    part = SliceSpec(*ONE_SLICE[0][:2], reducer.peer)
    exchange = Side(member, None).begin(world.proposal(ONE_SLICE))
    stream = await member.network.open_stream(reducer.peer, "give", timeout_s=1.0)
    word = result_header(world, named)
    room = SlotBuffer(1 << 20)
    for chunk in here:
        room.take(len(chunk))[:] = chunk
    hashes = [leaf_hash(chunk) for chunk in here]
    taken = await take_result(part, word, stream, room, hashes, exchange._tools, came, begun)
    return taken, len(seen)


def _chunks(world: RoundWorld) -> list[bytes]:
    return [bytes(chunk) for chunk in contribution_of(world.parties[0], 3).chunks]


async def test_the_bytes_that_were_named_are_taken_with_the_hashes_of_their_chunks(autojump_clock: Clock) -> None:
    async with three_sides() as (world, _):
        chunks = _chunks(world)
        taken, _ = await _taken(world, chunks, [chunks[0], b"".join(chunks[1:])])
        assert (bytes(taken.data), list(taken.hashes)) == (b"".join(chunks), [leaf_hash(chunk) for chunk in chunks])
        assert merkle_root(taken.hashes) == result_header(world, chunks).result_hash


async def test_a_result_of_which_the_first_chunks_are_here_is_whole_with_the_rest(autojump_clock: Clock) -> None:
    async with three_sides() as (world, _):
        chunks, disk = _chunks(world), MemoryDisk()
        begun = MemoryStorage(disk).begin("result")
        taken, num_frames = await _taken(world, chunks, chunks[2:], begun, here=chunks[:2])
        assert (bytes(taken.data), list(taken.hashes)) == (b"".join(chunks), [leaf_hash(chunk) for chunk in chunks])
        assert num_frames == len(chunks) - 2
        with pytest.raises(RefusedResult, match="another hash"):
            await _taken(world, chunks, chunks[2:], here=[chunks[1], chunks[0]])


async def test_what_has_come_is_with_the_disk_before_the_rest_is_here(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("averaging.rounds.exchange.result_receiver.WRITE_BYTES", 2 * CHUNK_BYTES)
    disk = MemoryDisk()
    begun = MemoryStorage(disk).begin("result")
    async with three_sides() as (world, _):
        chunks = _chunks(world)
        await _taken(world, chunks, chunks, begun)
        assert begun.num_bytes >= len(b"".join(chunks)) - 2 * CHUNK_BYTES
        assert disk.files == {}, "whoever takes it says when it is whole"
        await begun.add(b"".join(chunks)[begun.num_bytes :])
        await begun.finish()
        assert disk.files == {"result": b"".join(chunks)}


@pytest.mark.parametrize("place", range(GRID.num_chunks))
async def test_bytes_that_were_named_and_mean_nothing_are_known_as_such(place: int, autojump_clock: Clock) -> None:
    async with three_sides() as (world, _):
        chunks = _chunks(world)
        chunks[place] = NO_VALUE + chunks[place][4:]
        with pytest.raises(RefusedResult, match="not finite") as refused:
            await _taken(world, chunks, chunks)
        assert refused.value.is_useless


@pytest.mark.parametrize("fault", ["other bytes", "other bytes that mean nothing", "too long", "too short", "empty"])
async def test_other_bytes_than_were_named_say_nothing_of_those(fault: str, autojump_clock: Clock) -> None:
    async with three_sides() as (world, _):
        chunks = _chunks(world)
        sent = {
            "other bytes": [chunks[1], *chunks[1:]],
            "other bytes that mean nothing": [NO_VALUE + chunks[0][4:], *chunks[1:]],
            "too long": [*chunks[:-1], chunks[-1] + bytes(4)],
            "too short": [chunks[0][: CHUNK_BYTES - 1], *chunks[1:]],
            "empty": [b"", *chunks],
        }[fault]
        with pytest.raises(RefusedResult) as refused:
            await _taken(world, chunks, sent)
        assert not refused.value.is_useless


@pytest.mark.parametrize("num_before", [0, 2])
async def test_a_frame_longer_than_what_is_left_is_refused_by_its_length(
    num_before: int, autojump_clock: Clock
) -> None:
    async with three_sides() as (world, _):
        chunks = _chunks(world)
        left_bytes = (len(chunks) - num_before) * CHUNK_BYTES
        with pytest.raises(RefusedResult) as refused:
            await _taken(world, chunks, [*chunks[:num_before], bytes(left_bytes + 1)])
        assert refused.value.expected == f"at most {left_bytes}, the rest"
        assert not refused.value.is_useless


async def test_a_stream_that_ends_early_refuses_no_result(autojump_clock: Clock) -> None:
    async with three_sides() as (world, _):
        chunks = _chunks(world)
        with pytest.raises(RemoteProtocolError, match="ends before chunk 5") as refused:
            await _taken(world, chunks, chunks[:-1])
        assert not isinstance(refused.value, RefusedResult)
