"""A slice of a small vector, three members, and what they offer for it."""

from __future__ import annotations

from dataclasses import replace

import torch

from averaging.codecs import codec_by_name
from averaging.rounds.exchange.offered_contributions import OfferedContribution, Offers
from averaging.rounds.traffic.contribution import EncodedContribution, hello_of
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, Root, RunId, UnitName
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import encode_claim
from protocol.rounds.messages.messages import Member, Proposal, SliceSpec
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import ContributionHeader, ExchangeHello
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_contribution
from tests.simulation.signing import HashSigner, HashVerifier

GRID = ChunkGrid(40, 10)
CODEC = codec_by_name("fp32")
RUN, UNIT, BASE = RunId(b"r" * 32), UnitName("fragment-0"), CommitId(b"b" * 32)
SIGNERS = sorted((HashSigner(bytes([i])) for i in range(3)), key=lambda signer: signer.peer_id)
MEMBERS = tuple(Member(signer.peer_id, 1, 1) for signer in SIGNERS)
PART = SliceSpec(1, 4, SIGNERS[0].peer_id)
PROPOSAL = Proposal(
    UNIT,
    BASE,
    1,
    Ballot(0, SIGNERS[0].peer_id),
    MEMBERS,
    (SliceSpec(0, 1, SIGNERS[1].peer_id), PART),
    "fp32",
    1000,
    5.0,
)


def contribution(seed: int) -> EncodedContribution:
    theta_N = torch.randn(40, generator=torch.Generator().manual_seed(seed))
    return encode_contribution(torch.zeros(40), theta_N, 100, CODEC, GRID)


def new_hello(
    number: int, mine: EncodedContribution, tokens: int = 100, signer: HashSigner | None = None, **changes: object
) -> ExchangeHello:
    header = ContributionHeader(UNIT, BASE, MEMBERS[number], tokens, "fp32", mine.root, BASE, Root(bytes(32)))
    header = replace(header, **changes)  # type: ignore[arg-type]
    signed = seal(signer or SIGNERS[number], ROUND_DOMAIN, RUN, 0, NEVER_MS, encode_claim(header))
    return hello_of(PROPOSAL, PART, replace(mine, header=signed))


def new_offers() -> Offers:
    return Offers(RUN, HashVerifier(), CODEC, GRID)


def add_chunk(offers: Offers, offer: OfferedContribution, chunk: int, data: bytes) -> None:
    """As an exchange does it: checked, then kept."""
    offers.check_batch(offer, [(chunk, memoryview(data))])
    offer.chunks[chunk] = data


def offer_of(offers: Offers, number: int, tokens: int = 100) -> OfferedContribution:
    mine = contribution(number)
    offer = offers.admit(SIGNERS[number].peer_id, PROPOSAL, PART, new_hello(number, mine, tokens))
    for chunk in range(PART.first_chunk, PART.stop_chunk):
        add_chunk(offers, offer, chunk, mine.chunks[chunk])
    return offer
