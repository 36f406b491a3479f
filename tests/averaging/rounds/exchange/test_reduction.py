from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import trio
import trio.testing

from averaging.arithmetic.batched_codec import span_bytes
from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.arithmetic.weighted_mean import WeightedSum, sum_dtype
from averaging.codecs import Codec, codec_by_name, codec_names
from averaging.rounds.exchange.chunk_means import MAX_DELTA, ChunkMeans
from averaging.rounds.exchange.offered_contributions import OfferedContribution, Offers
from averaging.rounds.exchange.reduction import Reduction
from averaging.rounds.traffic.batches import split_batch
from averaging.rounds.traffic.contribution import EncodedContribution, result_root
from protocol.errors import RemoteProtocolError
from protocol.merkle import MerkleTree, leaf_hash
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.messages import ResultHeader
from protocol.rounds.messages.requests import ContributionHeader
from protocol.rounds.messages.wire import decode_body, encode_body
from protocol.rounds.schedule.sum_rules import SumRules
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_contribution
from tests.averaging.rounds.offers_world import (
    CODEC,
    GRID,
    MEMBERS,
    PART,
    PROPOSAL,
    RUN,
    SIGNERS,
    add_chunk,
    contribution,
    new_hello,
    new_offers,
    offer_of,
)
from tests.simulation.signing import HashVerifier


def test_the_result_is_the_weighted_mean_with_weights_capped_and_members_in_fixed_order() -> None:
    results = []
    for order in ((0, 1, 2), (2, 0, 1)):
        offers = new_offers()
        for number in order:
            offer_of(offers, number, tokens=(100, 300, 5000)[number])
        result = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID)).reduce()
        assert result is not None
        results.append(result)
    assert results[0].chunks == results[1].chunks
    header = results[0].header
    assert header.weight_sum == 100 + 300 + 1000
    assert [entry.peer for entry in header.included] == [signer.peer_id for signer in SIGNERS]
    assert header.result_hash == result_root(results[0].chunks)
    thetas = [-torch.cat([CODEC.decode(c, 10) for c in contribution(n).chunks]) for n in range(3)]
    mean_N = -(100 * thetas[0] + 300 * thetas[1] + 1000 * thetas[2]) / 1400
    got_n = torch.cat([CODEC.decode(chunk, 10) for chunk in results[0].chunks])
    torch.testing.assert_close(got_n, mean_N[10:40], rtol=1e-5, atol=1e-6)


def _in_order_of_arrival(
    codec: Codec, grid: ChunkGrid, tokens: Sequence[int], chance: random.Random
) -> tuple[Offers, Reduction, list[tuple[OfferedContribution, EncodedContribution, int]]]:
    """A reduction of chunks 1 to 3 of members with these tokens, and their chunks in a drawn order."""
    offers = Offers(RUN, HashVerifier(), codec, grid)
    proposal = replace(PROPOSAL, codec=codec.name)
    arriving = []
    for number, count in enumerate(tokens):
        theta_N = torch.randn(grid.num_elements, generator=torch.Generator().manual_seed(number))
        mine = encode_contribution(torch.zeros(grid.num_elements), theta_N, count, codec, grid)
        hello = new_hello(number, mine, count, codec=codec.name)
        offer = offers.admit(SIGNERS[number].peer_id, proposal, PART, hello)
        arriving += [(offer, mine, chunk) for chunk in range(PART.first_chunk, PART.stop_chunk)]
    chance.shuffle(arriving)
    return offers, Reduction(proposal, PART, offers, ChunkMeans(codec, grid)), arriving


def _straightforward(
    codec: Codec, grid: ChunkGrid, offers: Sequence[OfferedContribution], weights: Sequence[int]
) -> tuple[bytes, ...]:
    """Everything decoded, then summed chunk by chunk in the order of the offers, then encoded."""
    chunks = []
    for chunk in range(PART.first_chunk, PART.stop_chunk):
        begin, stop = grid.bounds(chunk)
        total = WeightedSum(stop - begin, sum_dtype(codec.name))
        for offer, weight in zip(offers, weights, strict=True):
            total.add(weight, codec.decode(offer.chunks[chunk], stop - begin))
        chunks.append(codec.encode(total.mean().float()))
    return tuple(chunks)


@pytest.mark.parametrize("chunk_elements", [600, 512])
@pytest.mark.parametrize("codec_name", codec_names())
def test_what_is_summed_as_it_arrives_has_the_bytes_of_what_is_summed_at_the_end(
    codec_name: str, chunk_elements: int
) -> None:
    codec, chance = codec_by_name(codec_name), random.Random(codec_name)
    grid = ChunkGrid(4 * chunk_elements - 77, chunk_elements)
    for _ in range(3):
        offers, reduction, arriving = _in_order_of_arrival(codec, grid, (100, 300, 5000), chance)
        for offer, mine, chunk in arriving:
            summing = reduction.take(offer, [(chunk, memoryview(mine.chunks[chunk]))])
            if summing is not None:
                summing()
        result = reduction.reduce()
        assert result is not None
        known = [offer for signer in SIGNERS if (offer := offers.get(signer.peer_id)) is not None]
        assert result.chunks == _straightforward(codec, grid, known, (100, 300, 1000))
        assert result.data == b"".join(result.chunks)
        assert result.header.result_hash == result_root(result.chunks)


def test_a_member_that_is_gone_after_half_of_its_chunks_were_summed_leaves_no_trace_in_the_result() -> None:
    offers, reduction, arriving = _in_order_of_arrival(CODEC, GRID, (100, 300, 700), random.Random(1))
    summed = []
    for offer, mine, chunk in arriving:
        if chunk == PART.first_chunk or offer.header.member != MEMBERS[1]:
            summing = reduction.take(offer, [(chunk, memoryview(mine.chunks[chunk]))])
            if summing is not None:
                summed.append(chunk)
                summing()
    assert summed == [PART.first_chunk], "the others wait for the second member"
    reduction.set_absent(SIGNERS[1].peer_id, "lost")
    result = reduction.reduce()
    assert result is not None
    known = [offer for number in (0, 2) if (offer := offers.get(SIGNERS[number].peer_id)) is not None]
    assert result.chunks == _straightforward(CODEC, GRID, known, (100, 700))
    assert [entry.peer for entry in result.header.included] == [SIGNERS[0].peer_id, SIGNERS[2].peer_id]


@pytest.mark.parametrize("is_whole", [True, False])
def test_each_chunk_is_summed_once_also_where_a_leaver_that_nobody_waits_for_has_brought_all_of_the_slice(
    is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the slices of its carrier, which has its chunks from the beginning."""
    _, reduction, arriving = _in_order_of_arrival(CODEC, GRID, (100, 300, 700), random.Random(2))
    leaver = SIGNERS[1].peer_id
    for offer, mine, chunk in arriving:
        if offer.header.member == MEMBERS[1] and (is_whole or chunk != PART.first_chunk):
            offer.chunks[chunk] = mine.chunks[chunk]
    reduction.set_absent(leaver, "left")
    summed: list[int] = []
    means = ChunkMeans.of

    def counted(self: ChunkMeans, chunks: Sequence[int], *rest: object) -> object:
        summed.extend(chunks)
        return means(self, chunks, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ChunkMeans, "of", counted)
    for offer, mine, chunk in arriving:
        if offer.header.member != MEMBERS[1]:
            summing = reduction.take(offer, [(chunk, memoryview(mine.chunks[chunk]))])
            if summing is not None:
                summing()
    assert sorted(summed) == list(range(PART.first_chunk, PART.stop_chunk)), "as they arrive"
    result = reduction.reduce()
    assert result is not None
    assert len(summed) == PART.stop_chunk - PART.first_chunk, "and not again"
    assert (leaver in [entry.peer for entry in result.header.included]) == is_whole


class _RecordsReads(ContributionHeader):
    """Says when what it counts for is looked at, as a closing slice does between its steps."""

    read: Callable[[], None] = staticmethod(lambda: None)

    def __getattribute__(self, name: str) -> object:
        if name in ("root", "tokens"):
            type(self).read()
        return super().__getattribute__(name)


class _RecordsPlaces(SlotBuffer):
    """Knows when its first place was given out."""

    is_taken = False

    def take_at(self, begin: int, stop: int) -> memoryview:
        self.is_taken = True
        return super().take_at(begin, stop)


def test_chunks_summed_of_others_while_a_slice_closes_leave_its_bytes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    offers, _, arriving = _in_order_of_arrival(CODEC, GRID, (100, 300, 700), random.Random(1))
    results = _RecordsPlaces(len(span_bytes(CODEC, GRID, 0, GRID.num_chunks)))
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID), results)
    late = list[Callable[[], None]]()
    for offer, mine, chunk in arriving:
        if chunk == PART.first_chunk or offer.header.member != MEMBERS[1]:
            summing = reduction.take(offer, [(chunk, memoryview(mine.chunks[chunk]))])
            late += [summing] if summing is not None else []
    reduction.set_absent(SIGNERS[1].peer_id, "lost")
    known = [offer for number in (0, 2) if (offer := offers.get(SIGNERS[number].peer_id)) is not None]
    for offer in known:
        offer.header = _RecordsReads(*(getattr(offer.header, each.name) for each in fields(offer.header)))

    def sum_with_who_is_gone() -> None:
        if results.is_taken and late:
            late.pop()()

    monkeypatch.setattr(_RecordsReads, "read", staticmethod(sum_with_who_is_gone))
    result = reduction.reduce()
    assert not late, "nothing was summed meanwhile"
    assert result is not None
    assert result.chunks == _straightforward(CODEC, GRID, known, (100, 700))
    assert bytes(result.data) == b"".join(result.chunks)


def test_frames_that_bring_chunks_again_are_not_kept_for_the_one_that_is_new() -> None:
    offers, mine = new_offers(), contribution(1)
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    offer = offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, mine))
    frames = list[weakref.ref[np.ndarray]]()
    for first in range(PART.stop_chunk - 1, PART.first_chunk - 1, -1):
        frame = np.frombuffer(b"".join(mine.chunks[first : PART.stop_chunk]), dtype=np.uint8).copy()
        frames.append(weakref.ref(frame))
        batch = split_batch(frame.data.toreadonly(), first, PART.stop_chunk, CODEC, GRID)
        offers.check_batch(offer, batch)
        reduction.take(offer, batch)
        del frame, batch
    assert [frame() is not None for frame in frames] == [True, False, False]
    assert all(offer.chunks[chunk] == mine.chunks[chunk] for chunk in range(PART.first_chunk, PART.stop_chunk))


def test_chunks_of_an_undecodable_member_are_summed_without_it_also_where_it_was_summed_before() -> None:
    offers = new_offers()
    good = [offer_of(offers, number) for number in (0, 2)]
    theta_N = torch.ones(40)
    theta_N[25] = 10 * MAX_DELTA
    spoilt = encode_contribution(torch.zeros(40), theta_N, 100, CODEC, GRID)
    offer = offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, spoilt))
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    for chunk in range(PART.first_chunk, PART.stop_chunk):
        summing = reduction.take(offer, [(chunk, memoryview(spoilt.chunks[chunk]))])
        assert summing is not None
        summing()
    result = reduction.reduce()
    assert result is not None
    assert result.chunks == _straightforward(CODEC, GRID, good, (100, 100))
    named = {omission.peer: omission.reason for omission in result.header.omitted}
    assert named[SIGNERS[1].peer_id].startswith("not decodable: a delta of 1e+19 in chunk 2")


_NOT_SCALES = (float("nan"), float("inf"), -1.0, -0.0, 1e-40, 0.0)
_NOBODY_WRITES = [
    *((codec, 0, np.float32(scale).tobytes()) for codec in ("int8", "int4", "e3m0") for scale in _NOT_SCALES),
    *(("topk", 0, np.float32(level).tobytes()) for level in _NOT_SCALES),
    ("int8", -1, b"\x80"),
    ("topk", 8, b"\x01"),
    ("topk", 9, bytes(8)),
    ("topk", -1, b"\xff"),
    ("fp32", 4, np.float32("nan").tobytes()),
    ("fp16", 2, np.float16("inf").tobytes()),
]
"""Codec, where in a chunk, and what is put there: scales and levels that are none, places out of order, bits behind the last code."""


@pytest.mark.parametrize(("codec_name", "at", "bad"), _NOBODY_WRITES)
def test_a_signed_chunk_that_nobody_writes_leaves_its_sender_out_by_name_and_the_others_are_summed(
    codec_name: str, at: int, bad: bytes
) -> None:
    codec, grid = codec_by_name(codec_name), ChunkGrid(4 * 600 - 77, 600)
    offers = Offers(RUN, HashVerifier(), codec, grid)
    proposal = replace(PROPOSAL, codec=codec_name)
    reduction = Reduction(proposal, PART, offers, ChunkMeans(codec, grid))
    for number in range(3):
        theta_N = torch.randn(grid.num_elements, generator=torch.Generator().manual_seed(number))
        mine = encode_contribution(torch.zeros(grid.num_elements), theta_N, 100, codec, grid)
        chunks = [bytearray(chunk) for chunk in mine.chunks]
        if number == 1:
            begin = at % len(chunks[2])
            chunks[2][begin : begin + len(bad)] = bad
        signed = replace(mine, chunks=tuple(map(bytes, chunks)), tree=MerkleTree.over(tuple(map(leaf_hash, chunks))))
        offer = offers.admit(SIGNERS[number].peer_id, proposal, PART, new_hello(number, signed, codec=codec_name))
        batch = [(chunk, memoryview(signed.chunks[chunk])) for chunk in range(PART.first_chunk, PART.stop_chunk)]
        offers.check_batch(offer, batch)
        summing = reduction.take(offer, batch)
        if summing is not None:
            summing()
    result = reduction.reduce()
    assert result is not None
    good = [offer for number in (0, 2) if (offer := offers.get(SIGNERS[number].peer_id)) is not None]
    assert result.chunks == _straightforward(codec, grid, good, (100, 100))
    ((peer, reason),) = [(omission.peer, omission.reason) for omission in result.header.omitted]
    assert peer == SIGNERS[1].peer_id
    assert reason.startswith(f"not decodable: {codec_name} ")


def test_a_reason_of_any_length_and_kind_fits_into_the_result_that_names_it() -> None:
    offers = new_offers()
    offer_of(offers, 0)
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    reduction.set_refused(SIGNERS[1].peer_id, RemoteProtocolError("x" * 10_000 + "\n\0", "less"))
    result = reduction.reduce()
    assert result is not None
    assert decode_body(ResultHeader, encode_body(result.header)) == result.header
    named = {omission.peer: omission.reason for omission in result.header.omitted}
    assert named[SIGNERS[1].peer_id].startswith("what it sent was refused: xxx")
    assert named[SIGNERS[2].peer_id] == "late"


def test_a_lane_that_two_members_bring_is_summed_once_and_the_other_is_left_out_by_name() -> None:
    offers = new_offers()
    lane, other = LanePart(7, 3, 100), LanePart(8, 3, 100)
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    for number, parts in enumerate(((lane,), (lane,), (other,))):
        mine = contribution(number)
        offer = offers.admit(SIGNERS[number].peer_id, PROPOSAL, PART, new_hello(number, mine, lanes=parts))
        for chunk in range(PART.first_chunk, PART.stop_chunk):
            summing = reduction.take(offer, [(chunk, memoryview(mine.chunks[chunk]))])
            if summing is not None:
                summing()
    result = reduction.reduce()
    assert result is not None
    known = [offer for number in (0, 2) if (offer := offers.get(SIGNERS[number].peer_id)) is not None]
    assert result.chunks == _straightforward(CODEC, GRID, known, (100, 100))
    assert [entry.lanes for entry in result.header.included] == [(lane,), (other,)]
    (omission,) = result.header.omitted
    assert omission.peer == SIGNERS[1].peer_id
    assert omission.reason.startswith("its part of lane 7 is brought by ")


def test_who_was_left_out_for_a_lane_counts_after_all_where_the_other_cannot_be_read() -> None:
    offers, lanes = new_offers(), (LanePart(7, 3, 100),)
    theta_N = torch.full((40,), 10 * MAX_DELTA)
    spoilt = encode_contribution(torch.zeros(40), theta_N, 100, CODEC, GRID)
    for number, mine in enumerate((spoilt, contribution(1))):
        offer = offers.admit(SIGNERS[number].peer_id, PROPOSAL, PART, new_hello(number, mine, lanes=lanes))
        for chunk in range(PART.first_chunk, PART.stop_chunk):
            add_chunk(offers, offer, chunk, mine.chunks[chunk])
    result = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID)).reduce()
    assert result is not None
    assert [entry.peer for entry in result.header.included] == [SIGNERS[1].peer_id]


def test_contributions_are_read_in_their_codec_and_the_result_is_written_in_its_own() -> None:
    offers, results = new_offers(), codec_by_name("int8")
    for number in range(3):
        offer_of(offers, number)
    plain, coded = (Reduction(PROPOSAL, PART, offers, ChunkMeans(codec, GRID)).reduce() for codec in (CODEC, results))
    assert plain is not None
    assert coded is not None
    for chunk, (exact, data) in enumerate(zip(plain.chunks, coded.chunks, strict=True), start=PART.first_chunk):
        begin, stop = GRID.bounds(chunk)
        assert data == results.encode(CODEC.decode(exact, stop - begin))
    assert coded.header.included == plain.header.included


def test_what_a_result_left_out_does_not_come_with_the_next_one() -> None:
    grid, results = ChunkGrid(4 * 600, 600), codec_by_name("top6")
    offers, _, arriving = _in_order_of_arrival(CODEC, grid, (100, 300, 700), random.Random(2))
    for offer, mine, chunk in arriving:
        add_chunk(offers, offer, chunk, mine.chunks[chunk])
    first, second = (Reduction(PROPOSAL, PART, offers, ChunkMeans(results, grid)).reduce() for _ in range(2))
    assert first is not None
    assert second is not None
    assert not results.decode(first.chunks[0], 600).all(), "nothing was left out"
    assert second.chunks == first.chunks


def test_a_result_says_how_much_of_the_mean_its_codec_had_no_room_for() -> None:
    grid, lost = ChunkGrid(4 * 4096 - 77, 4096), {}
    for name in ("top6", "int8"):
        offers, whole, arriving = _in_order_of_arrival(CODEC, grid, (100, 300), random.Random(1))
        for offer, mine, chunk in arriving:
            add_chunk(offers, offer, chunk, mine.chunks[chunk])
        mean, result = (
            reduction.reduce()
            for reduction in (whole, Reduction(PROPOSAL, PART, offers, ChunkMeans(codec_by_name(name), grid)))
        )
        assert mean is not None
        assert result is not None
        assert mean.header.lost_ppm == 0
        lost[name] = result.header.lost_ppm
        if name == "top6":
            lengths = (4096, 4096, 4096 - 77)
            values_n, written_n = (
                torch.cat([codec.decode(data, n) for data, n in zip(each.chunks, lengths, strict=True)]).double()
                for codec, each in ((CODEC, mean), (codec_by_name(name), result))
            )
            share = float((values_n**2 * (written_n == 0)).sum() / (values_n**2).sum())
    assert lost["int8"] == 0
    assert lost["top6"] == pytest.approx(1e6 * share, abs=1.0)
    assert lost["top6"] > 500_000, "noise, of which six in a hundred values have room"


def test_a_delta_beyond_all_measure_is_left_out_and_named() -> None:
    offers = new_offers()
    offer_of(offers, 0)
    huge = encode_contribution(torch.zeros(40), torch.full((40,), 10 * MAX_DELTA), 100, CODEC, GRID)
    offer = offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, huge))
    offer.chunks.update(enumerate(huge.chunks))
    result = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID)).reduce()
    assert result is not None
    assert [entry.peer for entry in result.header.included] == [SIGNERS[0].peer_id]
    named = {omission.peer: omission.reason for omission in result.header.omitted}
    assert named[SIGNERS[1].peer_id].startswith("not decodable: a delta of 1e+19")


async def test_a_slice_closes_when_the_absent_are_accounted_for_and_says_why(
    autojump_clock: trio.testing.MockClock,
) -> None:
    offers = new_offers()
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    offer_of(offers, 0)
    offer_of(offers, 1)
    reduction.set_absent(SIGNERS[2].peer_id, "lost")
    await reduction.wait_ready(5.0)
    assert trio.current_time() < 1.0
    result = reduction.reduce()
    assert result is not None
    assert [(o.peer, o.reason) for o in result.header.omitted] == [(SIGNERS[2].peer_id, "lost")]


async def test_a_slice_closes_at_its_deadline_with_what_is_whole(autojump_clock: trio.testing.MockClock) -> None:
    offers = new_offers()
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    offer_of(offers, 0)
    half = contribution(1)
    partial = offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, half))
    add_chunk(offers, partial, 1, half.chunks[1])
    await reduction.wait_ready(5.0)
    assert trio.current_time() >= 5.0
    result = reduction.reduce()
    assert result is not None
    assert [entry.peer for entry in result.header.included] == [SIGNERS[0].peer_id]
    assert {o.reason for o in result.header.omitted} == {"late"}


async def test_a_slice_that_is_given_time_waits_so_long_from_its_beginning(
    autojump_clock: trio.testing.MockClock,
) -> None:
    offers = new_offers()
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    for number in (0, 1):
        offer_of(offers, number)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reduction.wait_ready, 5.0)
        await trio.sleep(4.0)
        reduction.give_time(30.0)
        reduction.give_time(10.0)
        await trio.sleep(20.0)
        assert len(nursery.child_tasks) == 1
        offer_of(offers, 2)
        reduction.wake()
    assert trio.current_time() - began_s == pytest.approx(24.0)
    result = reduction.reduce()
    assert result is not None
    assert len(result.header.included) == 3


async def test_time_that_is_given_to_a_slice_ends_as_well(autojump_clock: trio.testing.MockClock) -> None:
    offers = new_offers()
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    offer_of(offers, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reduction.wait_ready, 5.0)
        await trio.sleep(4.0)
        reduction.give_time(12.0)
    assert trio.current_time() == pytest.approx(12.0)
    reduction.give_time(99.0)
    assert reduction.reduce() is not None


def _most_of_them(index: int) -> Reduction:
    """A slice of three members that closes after two, in this round; everybody is waited for in every fourth."""
    rules = SumRules(close_share=0.6, patient_every=4)
    return Reduction(replace(PROPOSAL, index=index), PART, new_offers(), ChunkMeans(CODEC, GRID, rules))


@pytest.mark.parametrize(("index", "closes_s"), [(5, 4.0 * 1.25), (8, 20.0)])
async def test_a_slice_closes_a_while_after_enough_members_are_in_but_for_patient_rounds(
    index: int, closes_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    reduction = _most_of_them(index)
    offer_of(reduction._offers, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reduction.wait_ready, 20.0)
        await trio.sleep(4.0)
        offer_of(reduction._offers, 1)
        reduction.wake()
        await trio.sleep(0.5)
        reduction.give_time(16.0)  # more time for slow ones is none for a slice that has enough
    assert trio.current_time() == pytest.approx(closes_s)
    result = reduction.reduce()
    assert result is not None
    assert [entry.peer for entry in result.header.included] == [member.peer for member in MEMBERS[:2]]
    assert [(o.peer, o.reason) for o in result.header.omitted] == [(MEMBERS[2].peer, "late")]


async def test_a_member_that_comes_within_that_while_is_counted(autojump_clock: trio.testing.MockClock) -> None:
    reduction = _most_of_them(5)
    offer_of(reduction._offers, 0)
    offer_of(reduction._offers, 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reduction.wait_ready, 20.0)
        await trio.sleep(0.4)
        offer_of(reduction._offers, 2)
        reduction.wake()
    assert trio.current_time() == pytest.approx(0.4)
    result = reduction.reduce()
    assert result is not None
    assert len(result.header.included) == len(MEMBERS)


async def test_enough_members_are_enough_no_more_once_one_of_them_is_waited_for_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    reduction = _most_of_them(5)
    offer_of(reduction._offers, 0)
    for member in MEMBERS[1:]:
        reduction.set_absent(member.peer, "lost")
    reduction.set_present(MEMBERS[1].peer)
    reduction.set_present(MEMBERS[2].peer)
    await reduction.wait_ready(3.0)
    assert trio.current_time() == pytest.approx(3.0)


async def test_a_slice_of_strangers_alone_waits_for_a_keeper_beyond_its_deadline_and_bounds_them_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    offers, mine = Offers(RUN, HashVerifier(), CODEC, GRID, tells_strangers=True), [contribution(n) for n in range(3)]

    def bring(number: int, tokens: int, *, is_stranger: bool) -> None:
        hello = new_hello(number, mine[number], tokens, is_stranger=is_stranger)
        offer = offers.admit(SIGNERS[number].peer_id, PROPOSAL, PART, hello)
        offer.chunks.update({chunk: mine[number].chunks[chunk] for chunk in range(PART.first_chunk, PART.stop_chunk)})

    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    for number in (0, 1):
        bring(number, 900, is_stranger=True)
    assert reduction.reduce() is None
    assert [entry.reason for entry in reduction.without_contributions().omitted] == ["late"] * 3

    async def bring_late() -> None:
        await trio.sleep(30.0)
        bring(2, 300, is_stranger=False)
        reduction.wake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bring_late)
        await reduction.wait_ready(5.0)
        assert trio.current_time() == pytest.approx(30.0)
    result = reduction.reduce()
    assert result is not None
    known = [offer for signer in SIGNERS if (offer := offers.get(signer.peer_id)) is not None]
    assert result.chunks == _straightforward(CODEC, GRID, known, (50, 50, 300))
    assert (result.header.weight_sum, [entry.is_stranger for entry in result.header.included]) == (
        400,
        [True, True, False],
    )


def test_keepers_that_claim_no_token_leave_the_strangers_beside_them_without_a_sum() -> None:
    offers, mine = Offers(RUN, HashVerifier(), CODEC, GRID, tells_strangers=True), [contribution(n) for n in range(3)]
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    for number, tokens in enumerate((900, 0, 0)):
        hello = new_hello(number, mine[number], tokens, is_stranger=not number)
        offer = offers.admit(SIGNERS[number].peer_id, PROPOSAL, PART, hello)
        for chunk in range(PART.first_chunk, PART.stop_chunk):
            assert reduction.take(offer, [(chunk, memoryview(mine[number].chunks[chunk]))]) is None
    assert reduction.reduce() is None
    assert reduction.without_contributions().included == ()


async def test_nothing_is_made_up_when_nobody_contributed(autojump_clock: trio.testing.MockClock) -> None:
    reduction = Reduction(PROPOSAL, PART, new_offers(), ChunkMeans(CODEC, GRID))
    for member in MEMBERS:
        reduction.set_absent(member.peer, "nothing to offer")
    await reduction.wait_ready(5.0)
    assert reduction.reduce() is None
    reported = reduction.without_contributions()
    assert (reported.included, reported.weight_sum, reported.result_hash) == ((), 0, bytes(32))
    assert {(o.peer, o.reason) for o in reported.omitted} == {(member.peer, "nothing to offer") for member in MEMBERS}


def test_a_slice_is_nearly_in_when_each_member_has_few_chunks_left_and_of_another_session_all_count_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("averaging.rounds.exchange.reduction.NEARLY_SHARE", 0.5)
    offers, mine = new_offers(), [contribution(n) for n in range(3)]
    offer_of(offers, 0)
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))

    def brings(offer: OfferedContribution, number: int, *chunks: int) -> bool:
        reduction.take(offer, [(chunk, memoryview(mine[number].chunks[chunk])) for chunk in chunks])
        return reduction.nearly_in.is_set()

    second = offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, mine[1]))
    assert not brings(second, 1, 1, 2)
    third = offers.admit(SIGNERS[2].peer_id, PROPOSAL, PART, new_hello(2, mine[2]))
    assert not brings(third, 2, 1), "two of its three are to come"
    reborn = replace(MEMBERS[2], session=2)
    proposal = replace(PROPOSAL, members=(*MEMBERS[:2], reborn))
    later = offers.admit(SIGNERS[2].peer_id, proposal, PART, new_hello(2, mine[2], member=reborn))
    assert not brings(later, 2, 2)
    assert not brings(later, 2, 2), "what comes twice is no more for it"
    assert brings(later, 2, 3)


@pytest.mark.parametrize("is_closed", [True, False])
def test_who_is_absent_has_nothing_left_to_bring_and_a_closed_slice_is_in(is_closed: bool) -> None:
    offers = new_offers()
    offer_of(offers, 0)
    reduction = Reduction(PROPOSAL, PART, offers, ChunkMeans(CODEC, GRID))
    mine = contribution(1)
    second = offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, mine))
    if is_closed:
        reduction.close()
    else:
        reduction.set_absent(SIGNERS[2].peer_id, "gone")
        reduction.take(second, [(chunk, memoryview(mine.chunks[chunk])) for chunk in range(1, 4)])
    assert reduction.nearly_in.is_set()
