from __future__ import annotations

from dataclasses import replace

import pytest

from averaging.rounds.exchange.carried_contribution import CarriedContribution
from averaging.rounds.exchange.offered_contributions import MAX_CARRIED, Offers
from protocol.errors import RemoteProtocolError, TransportError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, Root
from protocol.merkle import MerkleTree
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import encode_claim
from protocol.rounds.messages.messages import Member, SliceSpec
from protocol.rounds.messages.requests import CarryHello, ContributionHeader
from tests.averaging.rounds.offers_world import (
    BASE,
    CODEC,
    GRID,
    MEMBERS,
    PART,
    PROPOSAL,
    RUN,
    SIGNERS,
    UNIT,
    contribution,
    new_hello,
    new_offers,
)
from tests.simulation.signing import HashSigner, HashVerifier, admission_of

LEAVER, OTHER = SIGNERS[2], SIGNERS[1]


def _hello(seed: int = 2, signer: HashSigner = LEAVER, member: Member = MEMBERS[2], **changes: object) -> CarryHello:
    header = ContributionHeader(UNIT, BASE, member, 100, "fp32", contribution(seed).root, BASE, Root(bytes(32)))
    header = replace(header, **changes)  # type: ignore[arg-type]
    return CarryHello(UNIT, BASE, seal(signer, ROUND_DOMAIN, RUN, 0, NEVER_MS, encode_claim(header)))


def _carried(offers: Offers, seed: int = 2) -> CarriedContribution:
    carried = offers.begin_carried(LEAVER.peer_id, _hello(seed))
    carried.know(contribution(seed).tree)
    return carried


def test_each_chunk_is_checked_when_it_comes_and_a_slice_is_there_when_all_of_its_chunks_are() -> None:
    carried, mine = _carried(new_offers()), contribution(2)
    for chunk in range(PART.first_chunk, PART.stop_chunk):
        assert not carried.has(PART)
        carried.keep(chunk, memoryview(mine.chunks[chunk]))
    assert carried.has(PART)
    assert not carried.is_whole
    carried.keep(0, memoryview(mine.chunks[0]))
    assert carried.is_whole
    assert bytes(carried.data) == bytes(mine.data)
    with pytest.raises(RemoteProtocolError, match="chunk 1 with another hash"):
        carried.keep(1, memoryview(mine.chunks[2]))


def test_without_the_signed_hashes_nothing_of_it_counts() -> None:
    offers = new_offers()
    carried = offers.begin_carried(LEAVER.peer_id, _hello())
    assert not carried.is_known
    assert not carried.has(SliceSpec(0, 1, LEAVER.peer_id))
    assert offers.carried_in(PROPOSAL) == []
    with pytest.raises(RemoteProtocolError, match="without the hashes"):
        carried.keep(0, memoryview(contribution(2).chunks[0]))
    with pytest.raises(RemoteProtocolError, match="do not make the signed root"):
        carried.know(MerkleTree.over(contribution(1).hashes))


@pytest.mark.parametrize(
    ("hello", "found"),
    [
        (_hello(signer=OTHER), "from"),
        (_hello(member=MEMBERS[1]), "from"),
        (_hello(base=CommitId(b"o" * 32)), "another round"),
        (_hello(codec="int8"), "another codec"),
        (replace(_hello(), unit="trunk"), "another round"),
    ],
    ids=["signed by another", "of another member", "on another base", "in another codec", "of another unit"],
)
def test_what_does_not_fit_the_leaver_or_the_base_is_refused(hello: CarryHello, found: str) -> None:
    with pytest.raises(RemoteProtocolError, match=found):
        new_offers().begin_carried(LEAVER.peer_id, hello)


def test_one_process_has_one_contribution_on_a_base_whoever_brings_it() -> None:
    offers = new_offers()
    carried = _carried(offers)
    assert offers.begin_carried(LEAVER.peer_id, _hello()) is carried, "sent again after a broken stream"
    with pytest.raises(RemoteProtocolError, match="two contributions"):
        offers.begin_carried(LEAVER.peer_id, _hello(seed=1))
    newer = replace(MEMBERS[2], session=2)
    assert offers.begin_carried(LEAVER.peer_id, _hello(seed=1, member=newer)).member == newer


def test_a_carried_contribution_is_on_offer_in_attempts_that_name_its_process() -> None:
    offers, mine = new_offers(), contribution(2)
    carried = _carried(offers)
    carried.keep(1, memoryview(mine.chunks[1]))
    (found,) = offers.carried_in(PROPOSAL)
    assert found is carried
    offer = offers.get(LEAVER.peer_id)
    assert offer is not None
    assert offer.hashes == dict(enumerate(mine.hashes))
    assert list(offer.chunks) == [1]
    newer = (*MEMBERS[:2], replace(MEMBERS[2], session=2))
    assert offers.carried_in(replace(PROPOSAL, members=newer)) == []


def test_a_peer_carries_a_few_contributions_and_refuses_the_next() -> None:
    offers = new_offers()
    signers = [HashSigner(b"leaver %d" % number) for number in range(MAX_CARRIED + 1)]
    for signer in signers[:MAX_CARRIED]:
        offers.begin_carried(signer.peer_id, _hello(signer=signer, member=Member(signer.peer_id, 1, 1)))
    last = signers[-1]
    with pytest.raises(TransportError, match="ask another peer"):
        offers.begin_carried(last.peer_id, _hello(signer=last, member=Member(last.peer_id, 1, 1)))


def test_a_leaver_without_a_vote_shows_its_admission() -> None:
    offers = Offers(RUN, HashVerifier(), CODEC, GRID, frozenset({OTHER.peer_id}))
    with pytest.raises(RemoteProtocolError, match="without its admission"):
        offers.begin_carried(LEAVER.peer_id, _hello())
    hello = replace(_hello(), credential=admission_of(LEAVER.peer_id, RUN))
    assert offers.begin_carried(LEAVER.peer_id, hello).credential == hello.credential


def test_a_leaver_that_gave_its_carrier_another_contribution_than_it_offers_itself_stops_no_exchange() -> None:
    offers = new_offers()
    _carried(offers)
    offered = offers.admit(LEAVER.peer_id, PROPOSAL, PART, new_hello(2, contribution(9)))
    assert list(offers.carried_in(PROPOSAL)) == []
    assert offers.get(LEAVER.peer_id) is offered
