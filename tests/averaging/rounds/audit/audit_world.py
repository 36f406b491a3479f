"""Six members, one reducer, and the proofs that can be made of its signed sums."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from averaging.codecs import Codec, codec_by_name
from averaging.rounds.audit.chunk_fetch import Collecting, proof_of
from averaging.rounds.audit.sum_check import SumCheck
from averaging.rounds.exchange.chunk_means import ChunkMeans
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.exchange.reduction import Reduction
from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.kinds.codec_table import CODECS
from protocol.merkle import leaf_hash, merkle_root
from protocol.rounds.audit.sum_proof import SumProof
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, SignatureCheck, sum_in
from protocol.rounds.messages.claim import SliceSum, encode_sum
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import SliceRecord
from protocol.rounds.schedule.sum_rules import SumRules
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_contribution
from tests.averaging.rounds.offers_world import PART, PROPOSAL, RUN, UNIT, new_hello
from tests.simulation.signing import HashSigner, HashVerifier

LENGTH = 1024
GRID = ChunkGrid(4 * LENGTH - 77, LENGTH)
SIX = sorted((HashSigner(b"six %d" % number) for number in range(6)), key=lambda signer: signer.peer_id)
REDUCER = SIX[0]
CHUNK = 2


def sealed_by(signer: HashSigner, what: SliceSum, run_id: bytes = RUN) -> bytes:
    """A reducer's seal on a sum."""
    return seal_of(seal(signer, ROUND_DOMAIN, run_id, 7, NEVER_MS, encode_sum(what)))


@dataclass(frozen=True)
class Summed:
    """A slice that was summed by the real reducer."""

    check: SumCheck
    offers: Offers
    what: SliceSum
    chunks: tuple[bytes, ...]

    def proof(self, chunk: int = CHUNK) -> SumProof:
        """The proof that an audit of one chunk makes."""
        return self.proof_of_lie(self.chunks, chunk)

    def proof_of_lie(self, chunks: tuple[bytes, ...], chunk: int = CHUNK, **changes: object) -> SumProof:
        """As if the reducer had returned these chunks, and signed what `changes` says besides."""
        what = replace(self.what, result_hash=merkle_root([leaf_hash(each) for each in chunks]), **changes)  # type: ignore[arg-type]
        collected = Collecting(what, chunk, GRID.num_chunks, self.check.chunk_bytes)
        collected.take(self.offers.shown(chunk, frozenset(collected.missing)))
        assert not collected.missing
        part = SliceRecord(
            what.first_chunk, what.stop_chunk, REDUCER.peer_id, what.result_hash, (), seal=sealed_by(REDUCER, what)
        )
        return proof_of(collected, part, [leaf_hash(each) for each in chunks])


def with_one_wrong(chunks: tuple[bytes, ...], codec: Codec, chunk: int = CHUNK) -> tuple[bytes, ...]:
    """The same result with one chunk that says half of the truth."""
    begin, stop = GRID.bounds(chunk)
    place = chunk - PART.first_chunk
    halved = codec.encode(codec.decode(chunks[place], stop - begin) * 0.5)
    return (*chunks[:place], bytes(halved), *chunks[place + 1 :])


def summed(codec_name: str = "int8", robust: str = "off", strangers: Collection[int] = ()) -> Summed:
    """Six members on three chunks, one of which sends noise and one the opposite, with different weights; some are strangers."""
    codec = codec_by_name(codec_name)
    result_codec = codec_by_name("top25") if CODECS[codec_name].leaves_out else codec
    members = tuple(Member(signer.peer_id, 1, 1) for signer in SIX)
    part = replace(PART, reducer=REDUCER.peer_id)
    proposal = replace(PROPOSAL, codec=codec.name, members=members, slices=(PROPOSAL.slices[0], part))
    offers = Offers(RUN, HashVerifier(), codec, GRID, tells_strangers=True)
    common_N = torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(99))
    for number, signer in enumerate(SIX):
        own_N = torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(number))
        delta_N = own_N if number == 4 else (-1.0 if number == 5 else 1.0) * common_N + 0.3 * own_N
        mine = encode_contribution(torch.zeros(GRID.num_elements), -delta_N, 100, codec, GRID)
        told = {"codec": codec.name, "member": members[number], "is_stranger": number in strangers}
        hello = new_hello(0, mine, 100 * (number + 1), signer, **told)
        offer = offers.admit(signer.peer_id, proposal, part, hello)
        offer.chunks.update((chunk, mine.chunks[chunk]) for chunk in range(part.first_chunk, part.stop_chunk))
    means = ChunkMeans(result_codec, GRID, SumRules(robust=robust))
    result = Reduction(proposal, part, offers, means).reduce()
    assert result is not None
    check = SumCheck(UNIT, codec, means, SignatureCheck(HashVerifier(), RUN))
    what = sum_in(result.header, proposal)
    return Summed(check, offers, what, tuple(bytes(chunk) for chunk in result.chunks))
