from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, Stream
from averaging.rounds.exchange import contribution_receiver, hash_frames
from averaging.rounds.exchange.hash_frames import (
    HASHES_AT_ONCE,
    KNOWN_AT_ONCE,
    receive_hashes,
    receive_known,
    send_hashes,
    send_hello,
    send_known,
    whole_hello,
)
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.traffic.contribution import hello_of
from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.merkle import MerkleTree, leaf_hash
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.bounds import MAX_CHUNKS
from protocol.rounds.messages.claim import encode_claim
from protocol.rounds.messages.messages import Member, Proposal, SliceSpec
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import ContributionHeader, ExchangeHello
from protocol.rounds.messages.wire import MAX_MESSAGE_BYTES, decode_body, encode_body
from protocol.rounds.schedule.proposal import ReducerOffer, plan_slices
from protocol.tensors.round_defaults import LONGEST_CHUNK
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.rounds.exchange_world import TWO_SLICES, run_all, three_sides
from tests.simulation.signing import HashSigner, HashVerifier

Clock = trio.testing.MockClock

RUN, UNIT, BASE = RunId(b"r" * 32), UnitName("fragment-0"), CommitId(b"b" * 32)
SIGNERS = sorted((HashSigner(bytes([number])) for number in range(2)), key=lambda signer: signer.peer_id)
SEVEN_BILLION_VALUES = 7 * 10**9


class LargeContribution:
    """The claim and the hashes of a contribution with so many chunks; the chunks themselves are not there."""

    def __init__(self, num_chunks: int) -> None:
        self.tree = MerkleTree.over([leaf_hash(number.to_bytes(4, "big")) for number in range(num_chunks)])
        self.credential = b""
        claim = ContributionHeader(
            UNIT, BASE, Member(SIGNERS[0].peer_id, 1, 1), 100, "fp32", self.tree.root, BASE, Root(bytes(32))
        )
        self.header = seal(SIGNERS[0], ROUND_DOMAIN, RUN, 0, NEVER_MS, encode_claim(claim))


def _proposal(num_chunks: int, num_reducers: int) -> Proposal:
    slices = plan_slices(num_chunks, [ReducerOffer(signer.peer_id, 0) for signer in SIGNERS[:num_reducers]], 2)
    members = tuple(Member(signer.peer_id, 1, 1) for signer in SIGNERS)
    return Proposal(UNIT, BASE, 1, Ballot(0, SIGNERS[0].peer_id), members, slices, "fp32", 1000, 5.0)


@pytest.mark.parametrize("num_reducers", [1, 2])
async def test_members_of_a_run_with_seven_billion_values_exchange_their_hashes(
    num_reducers: int, autojump_clock: Clock
) -> None:
    num_chunks = ChunkGrid(SEVEN_BILLION_VALUES, LONGEST_CHUNK).num_chunks
    grid = ChunkGrid(num_chunks, 1)  # as many chunks, of one value each
    proposal, mine = _proposal(num_chunks, num_reducers), LargeContribution(num_chunks)
    known: list[bytes] = []
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 1e9))
        member, reducer = (swarm.start(signer.peer_id) for signer in SIGNERS)

        async def serve(sender: PeerId, stream: Stream) -> None:
            hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
            part = next(each for each in proposal.slices if each.first_chunk == hello.first_chunk)
            hello = await whole_hello(hello, part.stop_chunk - part.first_chunk, stream.receive_frame)
            offers = Offers(RUN, HashVerifier(), codec_by_name("fp32"), grid)
            offer = offers.admit(sender, proposal, part, hello)
            assert list(offer.hashes) == list(range(part.first_chunk, part.stop_chunk))
            await send_known(stream, bytes(chunk % 2 for chunk in range(part.first_chunk, part.stop_chunk)))

        reducer.serve_streams("exchange", serve)
        for part in proposal.slices:
            stream = await member.open_stream(SIGNERS[1].peer_id, "exchange", timeout_s=1.0)
            hello = hello_of(proposal, part, mine)
            assert len(encode_body(hello)) > MAX_MESSAGE_BYTES, "too long for one message"
            await send_hello(stream, hello)
            known.append(await receive_known(part.stop_chunk - part.first_chunk, stream.receive_frame))
            await stream.aclose()
        nursery.cancel_scope.cancel()
    assert b"".join(known) == bytes(chunk % 2 for chunk in range(num_chunks))


class Tape:
    """A stream as far as frames go: what was sent can be received."""

    def __init__(self, frames: Sequence[bytes] = ()) -> None:
        self.frames = list(frames)

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        """Keep it."""
        assert len(head) + len(data) <= MAX_FRAME_BYTES
        self.frames.append(head + bytes(data))

    async def receive_frame(self) -> bytes | None:
        """The first that is left."""
        return self.frames.pop(0) if self.frames else None


async def test_a_hello_that_fits_into_a_message_is_sent_as_ever() -> None:
    proposal, mine = _proposal(64, 2), LargeContribution(64)
    hello, tape = hello_of(proposal, proposal.slices[0], mine), Tape()
    await send_hello(tape, hello)  # type: ignore[arg-type]
    assert tape.frames == [encode_body(hello)]
    assert await whole_hello(hello, 32, tape.receive_frame) is hello
    assert len(tape.frames) == 1, "nothing more was read"


async def test_the_longest_slice_of_the_largest_unit_fits_into_frames() -> None:
    """Chunk counts alone: a byte and 32 bytes for each chunk of a unit with one reducer."""
    tape = Tape()
    await send_known(tape, bytes(MAX_CHUNKS))  # type: ignore[arg-type]
    assert [len(frame) for frame in tape.frames] == [KNOWN_AT_ONCE] * (MAX_CHUNKS // KNOWN_AT_ONCE)
    assert await receive_known(MAX_CHUNKS, tape.receive_frame) == bytes(MAX_CHUNKS)
    hashes = [bytes(32)] * (MAX_CHUNKS - 1)
    await send_hashes(tape, hashes)  # type: ignore[arg-type]
    assert len(tape.frames) == MAX_CHUNKS // HASHES_AT_ONCE
    assert len(await receive_hashes(MAX_CHUNKS - 1, tape.receive_frame)) == MAX_CHUNKS - 1
    SliceSpec(0, MAX_CHUNKS, SIGNERS[0].peer_id)
    with pytest.raises(RemoteProtocolError, match="slice"):
        SliceSpec(0, MAX_CHUNKS + 1, SIGNERS[0].peer_id)


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([], "the end of the stream"),
        ([bytes(64)], "the end of the stream"),
        ([bytes(63), bytes(33)], "a frame of 63 bytes"),
        ([bytes(96)], "a frame of 96 bytes"),
        ([bytes(64), bytes(64)], "a frame of 64 bytes"),
    ],
)
async def test_other_frames_than_one_hash_a_chunk_are_refused(
    frames: list[bytes], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_frames, "HASHES_AT_ONCE", 2)
    with pytest.raises(RemoteProtocolError, match=found):
        await receive_hashes(3, Tape(frames).receive_frame)


async def test_a_reducer_that_hangs_up_is_told_from_one_that_has_nothing() -> None:
    with pytest.raises(RemoteProtocolError, match="hung up"):
        await receive_known(3, Tape().receive_frame)
    assert await receive_known(3, Tape([b""]).receive_frame) == b""


async def test_a_message_has_its_hashes_in_one_place() -> None:
    hello = hello_of(_proposal(8, 2), _proposal(8, 2).slices[0], LargeContribution(8))
    with pytest.raises(RemoteProtocolError, match="one of the two"):
        replace(hello, hashes_follow=True)


async def test_an_exchange_whose_hashes_follow_in_frames_ends_as_any_other(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for is_long in (False, True):
        if is_long:
            monkeypatch.setattr(hash_frames, "MAX_MESSAGE_BYTES", 0)
            monkeypatch.setattr(hash_frames, "HASHES_AT_ONCE", 3)
            monkeypatch.setattr(hash_frames, "KNOWN_AT_ONCE", 2)
            monkeypatch.setattr(contribution_receiver, "AT_ONCE_HASHES", 1)
        async with three_sides() as (world, sides):
            await run_all(sides, world.proposal(TWO_SLICES))
            results.append([side.kept[first][1] for side in sides for first in (0, 4)])
    assert results[0] == results[1]
