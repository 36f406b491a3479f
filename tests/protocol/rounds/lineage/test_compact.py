from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal, taken_apart
from protocol.ids import CommitId, RunId
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.compact import acks_of, compacted
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.bounds import MAX_MEMBERS
from protocol.rounds.messages.messages import Ack, Certificate
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_certificate, encode_certificate, encode_message
from tests.protocol.rounds.made_commits import Made, certified, signed_record
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Table
from tests.simulation.signing import HashSigner, HashVerifier


def _made(num_peers: int = 5) -> tuple[Table, Made]:
    table = Table(num_peers)
    seats = table.live()
    return table, certified(table.genesis, signed_record(table.genesis, seats), seats)


def _verify(table: Table, certificate: Certificate) -> None:
    verify_certificate(certificate, table.genesis, verifier=HashVerifier(), run_id=RUN_ID)


def test_a_compact_certificate_has_the_same_acks_byte_for_byte_and_fewer_bytes() -> None:
    table, made = _made()
    short = compacted(made.certificate, RUN_ID)
    assert (short.acks, len(short.votes)) == ((), 5)
    assert acks_of(short, RUN_ID) == acks_of(made.certificate, RUN_ID) == made.certificate.acks
    assert len(encode_certificate(short)) < len(encode_certificate(made.certificate))
    assert decode_certificate(encode_certificate(short)) == short
    assert compacted(short, RUN_ID) is short
    _verify(table, short)


def test_both_forms_prove_the_same_commit_also_of_an_older_release() -> None:
    table, made = _made()
    old = decode_certificate(encode_certificate(made.certificate))
    assert old.votes == ()
    _verify(table, old)
    _verify(table, compacted(old, RUN_ID))


def test_a_compact_certificate_with_an_ack_too_few_is_refused_and_so_is_one_voter_twice() -> None:
    table, made = _made()
    short = compacted(made.certificate, RUN_ID)
    for votes in (short.votes[:2], short.votes[:1] * 5):
        with pytest.raises(RemoteProtocolError, match="a quorum of the 5"):
            _verify(table, replace(short, votes=votes))
    _verify(table, replace(short, votes=short.votes[:3]))
    with pytest.raises(RemoteProtocolError, match="0 ballots"):
        _verify(table, replace(short, ack=b"", votes=()))


def test_votes_of_peers_outside_the_roster_and_one_vote_in_both_forms_make_no_quorum() -> None:
    table, made = _made()
    short = compacted(made.certificate, RUN_ID)
    strangers = [HashSigner(f"stranger {number}".encode()) for number in range(3)]
    foreign = tuple(_vote(seal(one, ROUND_DOMAIN, RUN_ID, 1, NEVER_MS, short.ack)) for one in strangers)
    for certificate in (
        replace(short, votes=(*short.votes[:2], *foreign)),
        replace(short, votes=short.votes[:2], acks=made.certificate.acks[:2]),
        replace(short, votes=short.votes[:2], acks=made.certificate.acks[:1] * 5),
    ):
        with pytest.raises(RemoteProtocolError, match=r"quorum|voter|roster"):
            _verify(table, certificate)


def _vote(sealed: bytes) -> bytes:
    key, _, short = taken_apart(sealed)
    return key + short


def test_an_ack_that_says_more_than_the_others_stays_whole_and_counts() -> None:
    table, made = _made()
    seat, record = table.live()[0], made.link.record
    assert record is not None
    other = Ack(
        UNIT,
        record.parent,
        record.ballot,
        made.link.commit,
        before=Ballot(0, seat.peer),
        before_commit=CommitId(b"b" * 32),
        version=1,
    )
    whole = seat.sealed(encode_message(other))
    short = compacted(replace(made.certificate, acks=(whole, *made.certificate.acks[1:])), RUN_ID)
    assert (short.acks, len(short.votes)) == ((whole,), 4)
    _verify(table, short)
    assert set(acks_of(short, RUN_ID)) == {whole, *made.certificate.acks[1:]}


@pytest.mark.parametrize("place", [0, 33, 40, 60, -1], ids=["key", "version", "sequence", "signature", "its end"])
def test_a_vote_with_a_wrong_bit_is_refused(place: int) -> None:
    table, made = _made()
    short = compacted(made.certificate, RUN_ID)
    vote = bytearray(short.votes[0])
    vote[place] ^= 1
    with pytest.raises(Exception, match=r"signature|version") as refused:
        _verify(table, replace(short, votes=(bytes(vote), *short.votes[1:])))
    assert isinstance(refused.value, RemoteProtocolError) or "version" in str(refused.value)


def test_votes_of_another_run_prove_nothing() -> None:
    table, made = _made()
    other = RunId(bytes(32))
    assert compacted(made.certificate, other) == made.certificate, "they do not make the same bytes again"
    short = compacted(made.certificate, RUN_ID)
    with pytest.raises(RemoteProtocolError, match="signature"):
        verify_certificate(short, table.genesis, verifier=HashVerifier(), run_id=other)


@pytest.mark.parametrize(
    ("ack", "votes"), [(b"ack", ()), (b"", (bytes(114),)), (b"ack", (bytes(113),))], ids=["none", "no ack", "short"]
)
def test_votes_of_a_wrong_form_are_refused_when_they_are_read(ack: bytes, votes: tuple[bytes, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="vote"):
        Certificate(b"record", (), (), ack, votes)


def test_more_acks_than_a_round_has_members_are_refused() -> None:
    table, made = _made()
    short = compacted(made.certificate, RUN_ID)
    with pytest.raises(RemoteProtocolError, match=f"at most {MAX_MEMBERS}"):
        _verify(table, replace(short, votes=short.votes * 14))


def test_bytes_that_are_no_envelope_stay_as_they_are() -> None:
    certificate = Certificate(b"record", (b"junk", b"ack"))
    assert compacted(certificate, RUN_ID) == certificate
    assert compacted(Certificate(b"record"), RUN_ID) == Certificate(b"record")
