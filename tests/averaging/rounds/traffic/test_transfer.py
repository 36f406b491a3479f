from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch
import trio
import trio.testing

from averaging.network.seams.interfaces import Stream
from averaging.rounds.traffic.contribution import result_root
from averaging.rounds.traffic.transfer import (
    ANSWER_WITHIN_S,
    FETCH_CHANNEL,
    FRAME_WITHIN_S,
    HASHES_WITHIN_S,
    LEAST_BYTES_PER_S,
    PIECE_BYTES,
    BusyDonor,
    TransferService,
    ask,
    ask_all,
    ask_generation,
    fetch_chunks,
    fetch_commits,
    fetch_hashes,
    fetch_parts,
    fetch_result,
    read_request,
)
from averaging.state.state import leaf_of_chunk
from protocol.errors import (
    CallTimeout,
    PeerUnreachable,
    PotluckError,
    RemoteProtocolError,
    TransportError,
)
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.requests import FetchCommits, FetchParts, FetchRequest, FetchResult, FetchState
from protocol.rounds.messages.wire import encode_certificate
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_chunks
from tests.averaging.rounds.round_world import (
    CHUNK_BYTES,
    CODEC,
    GRID,
    UNIT,
    MadeCommit,
    Party,
    RoundWorld,
    open_world,
)

Clock = trio.testing.MockClock


@asynccontextmanager
async def _donors(num_commits: int) -> AsyncIterator[tuple[RoundWorld, list[MadeCommit], Party]]:
    """Everybody but the last party is at the head of a chain and serves; the last one asks."""
    async with open_world() as world:
        made = world.commits(num_commits)
        for party in world.parties[:2]:
            for commit in made:
                await party.apply(commit)
            party.serve_fetches()
        yield world, made, world.parties[2]


def _request(commit: MadeCommit, number: int = 0) -> FetchResult:
    part = commit.record.slices[number]
    return FetchResult(UNIT, commit.record.parent, part.first_chunk, part.stop_chunk, part.result_hash)


async def _serve_late(frames: Sequence[bytes], stream: Stream) -> None:
    await read_request(stream)
    for frame in frames:
        await stream.send_frame(frame)
    await trio.sleep_forever()


# --- results ------------------------------------------------------------------------------------------------------------------


async def test_a_result_is_given_whole_and_one_that_is_not_here_is_none(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):
        donor = world.parties[0].peer
        for number, data in enumerate(made[0].results):
            assert await fetch_result(me.network, donor, _request(made[0], number), CODEC, GRID) == data
        absent = replace(_request(made[0]), result_hash=Root(bytes(32)))
        assert await fetch_result(me.network, donor, absent, CODEC, GRID) is None


async def test_a_result_longer_than_a_piece_comes_in_several_frames(autojump_clock: Clock) -> None:
    async with _donors(0) as (world, _, me):
        grid = ChunkGrid(PIECE_BYTES * 2 // 3, PIECE_BYTES // 8)
        chunks = encode_chunks(torch.randn(grid.num_elements, generator=torch.Generator().manual_seed(1)), CODEC, grid)
        base, root = CommitId(b"b" * 32), result_root(chunks)
        await world.parties[0].log.write_result(base, root, b"".join(chunks))
        request = FetchResult(UNIT, base, 0, grid.num_chunks, root)
        assert await fetch_result(me.network, world.parties[0].peer, request, CODEC, grid) == b"".join(chunks)
        frames = await ask_all(me.network, world.parties[0].peer, request, 1 << 30)
        assert len(frames) == 3


async def test_other_bytes_than_the_record_names_are_an_error_of_the_donor(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):
        world.parties[0].serve_frames([made[0].results[0][::-1]])
        with pytest.raises(RemoteProtocolError, match="another hash"):
            await fetch_result(me.network, world.parties[0].peer, _request(made[0]), CODEC, GRID)


async def test_an_answer_is_cut_off_where_it_exceeds_what_was_asked_for(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):
        flooding = world.parties[0]
        flooding.serve_frames([bytes(CHUNK_BYTES)] * 10_000)
        with pytest.raises(RemoteProtocolError, match="more than"):
            await fetch_result(me.network, flooding.peer, _request(made[0]), CODEC, GRID)
        assert me.network.traffic().bulk_bytes_down < 20 * CHUNK_BYTES


# --- commits ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 1, 3])
async def test_the_commits_after_a_base_come_in_order_and_no_others(first: int, autojump_clock: Clock) -> None:
    async with _donors(3) as (world, made, me):
        after = made[first - 1].link.commit if first else world.genesis.head
        raws = await fetch_commits(me.network, world.parties[0].peer, UNIT, [after])
        assert raws == [encode_certificate(commit.certificate) for commit in made[first:]]


async def test_of_several_known_commits_the_newest_that_the_donor_has_counts_in_any_order(
    autojump_clock: Clock,
) -> None:
    async with _donors(3) as (world, made, me):
        here = [CommitId(b"?" * 32), made[1].link.commit, world.genesis.head, made[0].link.commit]
        for known in (here, here[::-1]):
            raws = await fetch_commits(me.network, world.parties[0].peer, UNIT, known)
            assert raws == [encode_certificate(made[2].certificate)]


async def test_a_base_of_another_chain_has_no_commits_after_it(autojump_clock: Clock) -> None:
    async with _donors(2) as (world, _, me):
        assert await fetch_commits(me.network, world.parties[0].peer, UNIT, [CommitId(b"?" * 32)]) == []


async def test_a_chain_longer_than_an_answer_comes_in_several(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _donors(3) as (world, made, me):
        raws = [encode_certificate(commit.certificate) for commit in made]
        monkeypatch.setattr("averaging.rounds.traffic.transfer.MAX_CHAIN_BYTES", len(raws[0]) + len(raws[1]))
        donor = world.parties[0].peer
        assert await fetch_commits(me.network, donor, UNIT, [world.genesis.head]) == raws[:2]
        assert await fetch_commits(me.network, donor, UNIT, [made[1].link.commit]) == raws[2:]


# --- states -------------------------------------------------------------------------------------------------------------------


async def test_a_donor_offers_its_generations_newest_first(autojump_clock: Clock) -> None:
    async with _donors(3) as (world, made, me):
        offered = await ask_generation(me.network, world.parties[0].peer, UNIT)
        assert [(donor.header.head, donor.header.index) for donor in offered] == [
            (made[2].link.commit, 3),
            (made[1].link.commit, 2),
        ]
        assert offered[0].root == world.parties[0].chain.root


# --- donors that fail, requests that make no sense ----------------------------------------------------------------------------


async def test_a_donor_that_falls_silent_is_given_up(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):
        silent = world.parties[0]
        silent.network.serve_streams(FETCH_CHANNEL, lambda peer, stream: _serve_late([b"one"], stream))
        with pytest.raises(CallTimeout):
            await ask_all(me.network, silent.peer, _request(made[0]), 1000)
        assert trio.current_time() < FRAME_WITHIN_S + 5.0


async def test_a_donor_that_dies_in_the_middle_is_an_error_and_no_end(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):
        dying, frames = world.parties[0], list[bytes]()
        dying.network.serve_streams(FETCH_CHANNEL, lambda peer, stream: _serve_late([b"one"], stream))

        async def die() -> None:
            await trio.sleep(1.0)
            dying.crash()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(die)
            with pytest.raises(PeerUnreachable):
                await ask(me.network, dying.peer, _request(made[0]), frames.append)
        assert frames == [b"one"]


async def _open_with(me: Party, peer: PeerId, frames: Sequence[bytes]) -> list[bytes]:
    stream = await me.network.open_stream(peer, FETCH_CHANNEL, timeout_s=1.0)
    answers = []
    try:
        for frame in frames:
            await stream.send_frame(frame)
        while (answer := await stream.receive_frame()) is not None:
            answers.append(answer)
    finally:
        await stream.aclose()
    return answers


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\xff\xff garbage", id="garbage"),
        pytest.param(b"", id="no kind of request"),
    ],
)
async def test_a_request_that_makes_no_sense_resets_its_stream_and_the_next_is_answered(
    frame: bytes, autojump_clock: Clock
) -> None:
    async with _donors(1) as (world, made, me):
        donor = world.parties[0].peer
        with pytest.raises(PeerUnreachable):
            await _open_with(me, donor, [frame])
        assert await fetch_result(me.network, donor, _request(made[0]), CODEC, GRID) == made[0].results[0]


async def test_a_stream_that_asks_nothing_is_not_kept_for_ever(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, _, me):
        with pytest.raises(PeerUnreachable):
            await _open_with(me, world.parties[0].peer, [])
        assert FRAME_WITHIN_S <= trio.current_time() < FRAME_WITHIN_S + 2.0


async def test_a_name_that_is_no_hash_finds_nothing_and_does_no_harm(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):
        donor = world.parties[0].peer
        for hash_ in (b"", b"../../x", bytes(31)):
            request = replace(_request(made[0]), base=CommitId(hash_), result_hash=Root(hash_))
            try:
                assert await ask_all(me.network, donor, request, 1000) == []
            except TransportError:
                continue
        assert await fetch_result(me.network, donor, _request(made[0]), CODEC, GRID) == made[0].results[0]


@pytest.mark.parametrize("kind", ["result", "commits", "state", "head"])
async def test_a_request_for_another_unit_finds_nothing(kind: str, autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):

        def request(unit: UnitName) -> FetchRequest:
            requests: dict[str, FetchRequest] = {
                "result": replace(_request(made[0]), unit=unit),
                "commits": FetchCommits(unit, (world.genesis.head,)),
                "state": FetchState(unit, 0, GRID.num_chunks, made[0].link.commit),
                "head": FetchState(unit, 0, 0, b""),
            }
            return requests[kind]

        donor = world.parties[0].peer
        assert await ask_all(me.network, donor, request(UnitName("fragment-1")), 1 << 20) == []
        assert await ask_all(me.network, donor, request(UNIT), 1 << 20) != []


async def test_a_range_beyond_the_unit_is_cut_to_it(autojump_clock: Clock) -> None:
    async with _donors(1) as (world, made, me):
        request = FetchState(UNIT, 4, 1 << 19, made[0].link.commit)
        assert len(await ask_all(me.network, world.parties[0].peer, request, 1 << 20)) == 2


async def test_a_generation_replaced_during_a_download_resets_the_stream(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the asker never takes a short answer for a whole one."""
    monkeypatch.setattr("averaging.rounds.traffic.transfer.CHUNKS_AT_ONCE", 1)
    async with _donors(1) as (world, made, me):
        donor = world.parties[0]
        service = TransferService(UNIT, donor.log, donor.generations, GRID, lambda known: donor.chain.line.after(known))

        async def serve(peer: PeerId, stream: Stream) -> None:
            await service.serve(peer, await read_request(stream), stream)

        def take(chunk: bytes) -> None:
            for name in donor.generation_names():
                del donor.disk.files[name]

        donor.network.serve_streams(FETCH_CHANNEL, serve)
        with pytest.raises(PotluckError):
            await ask(me.network, donor.peer, FetchState(UNIT, 0, GRID.num_chunks, made[0].link.commit), take)


# --- donors that send next to nothing, but never stop -------------------------------------------------------------------------


@asynccontextmanager
async def _trickling(frame: bytes, every_s: float) -> AsyncIterator[tuple[RoundWorld, MadeCommit, Party, PeerId]]:
    """A donor that answers everything with this frame, again and again."""

    async def serve(peer: PeerId, stream: Stream) -> None:
        await read_request(stream)
        while True:
            await stream.send_frame(frame)
            await trio.sleep(every_s)

    async with _donors(1) as (world, made, me):
        world.parties[0].network.serve_streams(FETCH_CHANNEL, serve)
        yield world, made[0], me, world.parties[0].peer


async def test_a_result_that_comes_a_byte_at_a_time_is_given_up(autojump_clock: Clock) -> None:
    async with _trickling(b"x", FRAME_WITHIN_S - 5.0) as (_, commit, me, donor):
        with pytest.raises(CallTimeout, match="too slow"):
            await fetch_result(me.network, donor, _request(commit), CODEC, GRID)
        assert trio.current_time() < ANSWER_WITHIN_S + 1.0


async def test_certificates_that_come_a_byte_at_a_time_are_given_up(autojump_clock: Clock) -> None:
    async with _trickling(b"x", FRAME_WITHIN_S - 5.0) as (world, _, me, donor):
        with pytest.raises(CallTimeout, match="too slow"):
            await fetch_commits(me.network, donor, UNIT, [world.genesis.head])
        assert trio.current_time() < ANSWER_WITHIN_S + 1.0


async def test_hashes_that_come_a_byte_at_a_time_are_given_up_sooner(autojump_clock: Clock) -> None:
    async with _trickling(b"x", HASHES_WITHIN_S / 2 - 0.1) as (world, _, me, donor):
        offer = (await ask_generation(me.network, world.parties[1].peer, UNIT))[0]
        began_s = trio.current_time()
        with pytest.raises(CallTimeout, match="too slow"):
            await fetch_hashes(me.network, replace(offer, peer=donor), UNIT, GRID.num_chunks)
        assert trio.current_time() - began_s < HASHES_WITHIN_S + 1.0


async def test_chunks_that_are_right_but_come_too_slowly_are_given_up(autojump_clock: Clock) -> None:
    chunk = b"the same chunk everywhere"
    async with _trickling(chunk, FRAME_WITHIN_S - 5.0) as (_, commit, me, donor):
        request = FetchState(UNIT, 0, GRID.num_chunks, commit.link.commit)
        with pytest.raises(CallTimeout, match="too slow"):
            await fetch_chunks(me.network, donor, request, [leaf_of_chunk(chunk)] * GRID.num_chunks)
        assert trio.current_time() < ANSWER_WITHIN_S + 1.0


async def test_an_answer_that_keeps_up_the_least_rate_may_take_long(autojump_clock: Clock) -> None:
    piece, every_s, num_pieces = bytes(PIECE_BYTES), PIECE_BYTES / LEAST_BYTES_PER_S / 2, 40
    async with _donors(1) as (world, made, me):

        async def serve(peer: PeerId, stream: Stream) -> None:
            await read_request(stream)
            for _ in range(num_pieces):
                await trio.sleep(every_s)
                await stream.send_frame(piece)

        world.parties[0].network.serve_streams(FETCH_CHANNEL, serve)
        donor, max_bytes = world.parties[0].peer, num_pieces * PIECE_BYTES
        frames = await ask_all(me.network, donor, _request(made[0]), max_bytes, within_s=ANSWER_WITHIN_S)
        assert len(frames) == num_pieces
        assert trio.current_time() > 10 * ANSWER_WITHIN_S


async def test_an_empty_frame_ends_the_answer(autojump_clock: Clock) -> None:
    async with _trickling(b"", 1.0) as (_, commit, me, donor):
        with pytest.raises(RemoteProtocolError, match="empty frame"):
            await ask_all(me.network, donor, _request(commit), 1000)
        assert trio.current_time() < 1.0


async def test_an_answer_in_tiny_frames_is_cut_off_long_before_its_bytes_are_used_up(autojump_clock: Clock) -> None:
    async with _trickling(b"x", 0.0) as (_, commit, me, donor):
        with pytest.raises(RemoteProtocolError, match="frames"):
            await ask_all(me.network, donor, _request(commit), 64_000)
        assert me.network.traffic().bulk_bytes_down < 10_000


# --- parts of a state that is on its way --------------------------------------------------------------------------------------


async def test_a_donor_tells_which_chunks_of_a_state_it_has_and_an_unknown_state_has_none(
    autojump_clock: Clock,
) -> None:
    async with _donors(1) as (world, made, me):
        donor, commit = world.parties[0].peer, made[0].link.commit
        num_chunks = world.grid.num_chunks
        assert await fetch_parts(me.network, donor, FetchParts(UNIT, commit, 1), num_chunks) == b"\1" * num_chunks
        assert await fetch_parts(me.network, donor, FetchParts(UNIT, commit, num_chunks), num_chunks) == b"\1"
        assert await fetch_parts(me.network, donor, FetchParts(UNIT, CommitId(b"?" * 32), 1), num_chunks) == b""


async def test_a_donor_that_serves_many_says_so_to_askers_that_understand_it_and_lets_the_others_wait(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("averaging.rounds.traffic.serving_turns.MOST_WAITING", 0)
    async with _donors(1) as (world, _, me):
        donor, (offer, *_) = world.parties[0].peer, await ask_generation(me.network, world.parties[0].peer, UNIT)
        hashes = await fetch_hashes(me.network, offer, UNIT, world.grid.num_chunks)
        request = FetchState(UNIT, 0, 1, offer.header.head)
        with pytest.raises(BusyDonor):
            await fetch_chunks(me.network, donor, replace(request, knows_busy=True), hashes)
        assert len(await fetch_chunks(me.network, donor, request, hashes)) == 1
