from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from averaging.arithmetic.robust_mean import robust_mean
from averaging.arithmetic.weighted_mean import sum_dtype
from averaging.codecs import Codec, codec_by_name
from averaging.rounds.exchange.chunk_means import MAX_DELTA, ChunkMeans, UndecodableError
from averaging.rounds.exchange.offered_contributions import OfferedContribution, Offers
from averaging.rounds.exchange.reduction import Reduction
from averaging.rounds.traffic.contribution import EncodedContribution
from protocol.kinds.codec_table import CONTRIBUTION_CODECS
from protocol.rounds.messages.messages import Member
from protocol.rounds.schedule.sum_rules import SumRules
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_contribution
from tests.averaging.rounds.offers_world import CODEC, PART, PROPOSAL, RUN, new_hello
from tests.simulation.signing import HashSigner, HashVerifier

SIX = sorted((HashSigner(b"six %d" % i) for i in range(6)), key=lambda signer: signer.peer_id)
AGREE = SumRules(robust="clip-agree")
LENGTH = 2048


def _robust_arrivals(
    codec: Codec, seed: int
) -> tuple[Offers, Reduction, list[tuple[OfferedContribution, EncodedContribution, int]], ChunkMeans]:
    """Six members on three chunks; the second turns its delta around in the second chunk, and the fifth sends noise everywhere."""
    grid, chance = ChunkGrid(4 * LENGTH - 77, LENGTH), random.Random(seed)
    members = tuple(Member(signer.peer_id, 1, 1) for signer in SIX)
    proposal = replace(PROPOSAL, codec=codec.name, members=members)
    offers, arriving = Offers(RUN, HashVerifier(), codec, grid), []
    common_N = torch.randn(grid.num_elements, generator=torch.Generator().manual_seed(99))
    for number, signer in enumerate(SIX):
        own_N = torch.randn(grid.num_elements, generator=torch.Generator().manual_seed(number))
        delta_N = own_N if number == 4 else common_N + 0.3 * own_N
        if number == 1:
            delta_N[2 * LENGTH : 3 * LENGTH] *= -3.0
        mine = encode_contribution(torch.zeros(grid.num_elements), -delta_N, 100, codec, grid)
        hello = new_hello(0, mine, 100, signer, codec=codec.name, member=members[number])
        offer = offers.admit(signer.peer_id, proposal, PART, hello)
        arriving += [(offer, mine, chunk) for chunk in range(PART.first_chunk, PART.stop_chunk)]
    chance.shuffle(arriving)
    means = ChunkMeans(codec_by_name("top25") if codec.leaves_out else codec, grid, AGREE)
    return offers, Reduction(proposal, PART, offers, means), arriving, means


def _guarded(means: ChunkMeans, codec: Codec, offers: Sequence[OfferedContribution]) -> tuple[bytes, ...]:
    """Everything decoded, then judged and summed chunk by chunk in the order of the offers, then encoded."""
    chunks = []
    for chunk in range(PART.first_chunk, PART.stop_chunk):
        begin, stop = means.grid.bounds(chunk)
        rows_mn = torch.stack([codec.decode(offer.chunks[chunk], stop - begin) for offer in offers])
        dtype = sum_dtype(means.result_codec.name)
        mean_n, _ = robust_mean(rows_mn, [100] * len(offers), means.rules.guard, dtype)
        chunks.append(means.result_codec.encode(mean_n))
    return tuple(chunks)


@pytest.mark.parametrize("codec_name", CONTRIBUTION_CODECS)
def test_chunks_that_disagree_are_left_out_as_they_arrive_and_named_in_the_result(codec_name: str) -> None:
    codec = codec_by_name(codec_name)
    offers, reduction, arriving, means = _robust_arrivals(codec, 1)
    num_early = 0
    for offer, mine, chunk in arriving:
        summing = reduction.take(offer, [(chunk, memoryview(mine.chunks[chunk]))])
        if summing is not None:
            num_early += 1
            summing()
    result = reduction.reduce()
    assert result is not None
    assert num_early == 3, "each chunk is summed once all members have brought it"
    known = [offer for signer in SIX if (offer := offers.get(signer.peer_id)) is not None]
    assert result.chunks == _guarded(means, codec, known)
    found = {SIX.index(next(s for s in SIX if s.peer_id == e.peer)): e for e in result.header.included}
    assert {number: entry.num_left_out for number, entry in found.items()} == {0: 0, 1: 1, 2: 0, 3: 0, 4: 3, 5: 0}
    assert found[1].agreement_percent < -80
    assert -30 < found[4].agreement_percent < 30


def test_a_chunk_is_judged_again_without_a_member_that_turned_out_to_be_gone() -> None:
    offers, reduction, arriving, means = _robust_arrivals(CODEC, 2)
    gone = SIX[4].peer_id  # with its noise two of six are wrong, without it one of five is
    for offer, mine, chunk in arriving:
        if chunk == PART.first_chunk or offer.header.member.peer != gone:
            summing = reduction.take(offer, [(chunk, memoryview(mine.chunks[chunk]))])
            if summing is not None:
                summing()
    reduction.set_absent(gone, "lost")
    result = reduction.reduce()
    assert result is not None
    known = [offer for signer in SIX if signer.peer_id != gone and (offer := offers.get(signer.peer_id)) is not None]
    assert result.chunks == _guarded(means, CODEC, known)
    assert [entry.num_left_out for entry in result.header.included] == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("rule", ["off", "clip", "clip-agree"])
def test_a_value_beyond_the_bound_names_its_member_under_every_rule(rule: str) -> None:
    offers, _, arriving, means = _robust_arrivals(CODEC, 3)
    for offer, mine, chunk in arriving:
        offer.chunks[chunk] = mine.chunks[chunk]
    counted = [(signer.peer_id, offer) for signer in SIX if (offer := offers.get(signer.peer_id)) is not None]
    counted[3][1].chunks[2] = CODEC.encode(torch.full((LENGTH,), 2 * MAX_DELTA))
    with pytest.raises(UndecodableError, match=r"a delta of 2e\+18 in chunk 2") as caught:
        replace(means, rules=SumRules(robust=rule)).of(range(1, 4), CODEC, counted, [100] * 6)
    assert caught.value.peer == SIX[3].peer_id


def test_off_sums_what_everybody_sends_and_names_nobody() -> None:
    offers, _, arriving, means = _robust_arrivals(CODEC, 4)
    for offer, mine, chunk in arriving:
        offer.chunks[chunk] = mine.chunks[chunk]
    counted = [(signer.peer_id, offer) for signer in SIX if (offer := offers.get(signer.peer_id)) is not None]
    mean_n, left_out = replace(means, rules=SumRules()).of(range(1, 3), CODEC, counted, [100] * 6)
    assert list(left_out) == [(), ()]
    rows_mn = torch.stack([torch.cat([CODEC.decode(offer.chunks[c], LENGTH) for c in (1, 2)]) for _, offer in counted])
    torch.testing.assert_close(mean_n, rows_mn.mean(0), rtol=1e-5, atol=1e-6)
