from __future__ import annotations

from dataclasses import replace

import pytest

from averaging.rounds.traffic.contribution import hello_of
from protocol.errors import RemoteProtocolError
from protocol.rounds.messages.messages import Member, SliceSpec
from protocol.rounds.messages.record import Ballot
from tests.averaging.rounds.offers_world import (
    MEMBERS,
    PART,
    PROPOSAL,
    SIGNERS,
    add_chunk,
    contribution,
    new_hello,
    new_offers,
    offer_of,
)


def test_a_chunk_with_another_hash_length_or_number_is_refused_and_not_kept() -> None:
    offers, mine = new_offers(), contribution(1)
    offer = offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, mine))
    for chunk, data in ((1, mine.chunks[2]), (1, mine.chunks[1][:-4]), (9, mine.chunks[1])):
        with pytest.raises(RemoteProtocolError):
            add_chunk(offers, offer, chunk, data)
    assert offer.chunks == {}


def test_hashes_that_do_not_make_the_signed_root_are_refused() -> None:
    good = new_hello(1, contribution(1))
    for hello in (replace(good, chunk_hashes=bytes(32 * 3)), replace(good, path=bytes(len(good.path)))):
        with pytest.raises(RemoteProtocolError, match="signed root"):
            new_offers().admit(SIGNERS[1].peer_id, PROPOSAL, PART, hello)


def test_hashes_of_another_number_of_chunks_than_the_slice_has_are_refused() -> None:
    mine = contribution(1)
    hello = replace(new_hello(1, mine), chunk_hashes=b"".join(mine.hashes), path=b"")
    with pytest.raises(RemoteProtocolError, match="chunk hashes"):
        new_offers().admit(SIGNERS[1].peer_id, PROPOSAL, PART, hello)


def test_the_hashes_of_one_slice_vouch_for_no_chunk_of_another_until_these_are_brought_too() -> None:
    offers, mine = new_offers(), contribution(1)
    other, sender = SliceSpec(0, 1, SIGNERS[0].peer_id), SIGNERS[1].peer_id
    offer = offers.admit(sender, PROPOSAL, PART, new_hello(1, mine))
    with pytest.raises(RemoteProtocolError, match="another hash"):
        add_chunk(offers, offer, 0, mine.chunks[0])
    second = hello_of(PROPOSAL, other, replace(mine, header=new_hello(1, mine).contribution))
    assert offers.admit(sender, PROPOSAL, other, second) is offer
    add_chunk(offers, offer, 0, mine.chunks[0])
    add_chunk(offers, offer, 1, mine.chunks[1])


def test_a_second_root_of_one_member_on_one_base_is_refused() -> None:
    offers = new_offers()
    offer_of(offers, 1)
    with pytest.raises(RemoteProtocolError, match="two contributions"):
        offers.admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, contribution(9)))


def test_a_new_session_that_the_proposal_names_may_offer_again_and_the_one_before_counts_no_more() -> None:
    offers = new_offers()
    offer_of(offers, 1)
    reborn = replace(MEMBERS[1], session=2)
    proposal = replace(PROPOSAL, ballot=Ballot(1, SIGNERS[0].peer_id), members=(MEMBERS[0], reborn, MEMBERS[2]))
    mine = contribution(9)
    offer = offers.admit(SIGNERS[1].peer_id, proposal, PART, new_hello(1, mine, member=reborn))
    assert (offer.header.root, offer.chunks) == (mine.root, {})
    assert offers.get(SIGNERS[1].peer_id) is offer
    with pytest.raises(RemoteProtocolError):
        offers.admit(SIGNERS[1].peer_id, proposal, PART, new_hello(1, contribution(1)))


@pytest.mark.parametrize(
    "changes",
    [{"member": Member(SIGNERS[1].peer_id, 1, 2)}, {"member": MEMBERS[2]}, {"base": bytes(32)}, {"codec": "int8"}],
)
def test_another_session_peer_base_or_codec_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        new_offers().admit(SIGNERS[1].peer_id, PROPOSAL, PART, new_hello(1, contribution(1), **changes))


def test_a_stranger_cannot_bring_a_members_contribution() -> None:
    with pytest.raises(RemoteProtocolError):
        new_offers().admit(SIGNERS[2].peer_id, PROPOSAL, PART, new_hello(1, contribution(1)))
