from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import UnitName
from protocol.rounds.chain import ChainLink, genesis_link, link_after, verify_certificate
from protocol.rounds.messages import Certificate
from protocol.wire import decode_record, encode_record
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Table
from tests.simulation.signing import HashVerifier


def _first_commit(num_peers: int = 3) -> tuple[ChainLink, Certificate]:
    table = Table(num_peers)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    return genesis_link(table.start_record, UNIT), table.live()[0].certificates[0]


def _verify(certificate: Certificate, parent: ChainLink) -> ChainLink:
    return verify_certificate(certificate, parent, verifier=HashVerifier(), run_id=RUN_ID)


def test_a_certificate_of_a_quorum_continues_its_parent() -> None:
    parent, certificate = _first_commit()
    link = _verify(certificate, parent)
    assert link.index == 1
    assert link.total_tokens == 300
    assert len(link.roster) == 3


def test_too_few_acks_are_refused_and_so_is_one_voter_twice() -> None:
    parent, certificate = _first_commit(5)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        _verify(replace(certificate, acks=certificate.acks[:2]), parent)
    with pytest.raises(RemoteProtocolError, match="quorum"):
        _verify(replace(certificate, acks=certificate.acks[:1] * 5), parent)


def test_a_tampered_ack_or_record_is_refused() -> None:
    parent, certificate = _first_commit()
    ack = bytearray(certificate.acks[0])
    ack[-1] ^= 1
    with pytest.raises(RemoteProtocolError):
        _verify(replace(certificate, acks=(bytes(ack), *certificate.acks[1:])), parent)
    record = replace(decode_record(certificate.record), next_target_tokens=1)
    with pytest.raises(RemoteProtocolError, match="another commit"):
        _verify(replace(certificate, record=encode_record(record)), parent)


def test_a_certificate_does_not_fit_another_parent() -> None:
    parent, certificate = _first_commit()
    with pytest.raises(RemoteProtocolError, match="another base"):
        _verify(certificate, replace(parent, commit=bytes(32)))  # type: ignore[arg-type]


def test_a_record_whose_sums_are_wrong_is_refused() -> None:
    parent, certificate = _first_commit()
    record = decode_record(certificate.record)
    with pytest.raises(RemoteProtocolError, match="tokens"):
        link_after(parent, encode_record(replace(record, total_tokens=record.total_tokens + 1)))
    greedy = replace(record.contributors[0], credited_tokens=10**6)
    inflated = replace(record, contributors=(greedy, *record.contributors[1:]), total_tokens=10**6 + 200)
    with pytest.raises(RemoteProtocolError, match="credited"):
        link_after(parent, encode_record(inflated))


def test_a_start_record_without_the_unit_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="without unit"):
        genesis_link(Table(3).start_record, UnitName("expert-9"))
