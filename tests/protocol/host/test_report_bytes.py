"""Reports and their answers as bytes: they come as they went, and what is out of bounds is refused."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest

from protocol.errors import (
    RemoteProtocolError,
)
from protocol.host.host_statements import HostStatements, RevocationNews
from protocol.host.report_bytes import decode_report, decode_report_reply, encode_report, encode_report_reply
from protocol.host.report_delta import report_digest
from protocol.host.reports import (
    MAX_DOUBLE_VOTES,
    MAX_FALSE_SUMS,
    MAX_JOULES,
    MAX_SIGNED_BYTES,
    AckPair,
    EnergySpent,
    OwnCounts,
    PeerReport,
    Proofs,
    ReportReply,
    UnitBytes,
    UnitStanding,
)
from protocol.identity.chosen_name import ChosenName
from protocol.identity.revocation import MAX_REVOCATIONS
from protocol.ids import PeerId, Root, UnitName
from protocol.pb import coordinator_pb2 as pb
from protocol.rounds.messages.messages import FalseSum
from tests.protocol.host.test_reports import COMMIT, REPORT


def test_report_survives_the_wire() -> None:
    assert decode_report(encode_report(REPORT)) == REPORT
    bare = PeerReport("joining", "", UnitName("fragment-0"))
    assert decode_report(encode_report(bare)) == bare
    several = replace(REPORT, beside=(UnitStanding(UnitName("embeddings"), COMMIT, Root(b"e" * 32)),))
    assert decode_report(encode_report(several)) == several
    holder = replace(
        REPORT,
        experts=(0, 255),
        expert_room=2,
        beside=(UnitStanding(UnitName("expert-0"), COMMIT, Root(b"e" * 32), 12),),
    )
    assert decode_report(encode_report(holder)) == holder
    moved = replace(
        REPORT, unit_bytes=(UnitBytes(UnitName("trunk"), 1 << 40, 7), UnitBytes(UnitName("expert-0"), 0, 1))
    )
    assert decode_report(encode_report(moved)) == moved
    mixed = replace(REPORT, counts=OwnCounts((1 << 40, 0, 7)))
    assert decode_report(encode_report(mixed)) == mixed
    for lane in (0, (1 << 32) - 1):
        serving = replace(REPORT, lane=lane, could_tokens_per_s=7000.5)
        assert decode_report(encode_report(serving)) == serving


@pytest.mark.parametrize(
    "energy",
    [
        EnergySpent(0.0),
        EnergySpent(MAX_JOULES, 1 << 60, 5000.0),
        EnergySpent(3.6e6, 12, 0.0),
        None,
    ],
)
def test_energy_survives_the_wire_and_its_absence_too(energy: EnergySpent | None) -> None:
    report = replace(REPORT, counts=OwnCounts((3,), energy))
    assert decode_report(encode_report(report)) == report


def test_report_with_a_poisoned_loss_is_refused_on_arrival() -> None:
    body = pb.ReportBody.FromString(encode_report(REPORT))
    body.loss_nats = math.nan
    with pytest.raises(RemoteProtocolError, match="finite"):
        decode_report(body.SerializeToString())
    with pytest.raises(RemoteProtocolError, match="no ReportBody"):
        decode_report(b"\xff\xff\xff")


def test_answer_survives_the_wire() -> None:
    reply = ReportReply("training", COMMIT, 3, 4, True)
    assert decode_report_reply(encode_report_reply(reply)) == reply


def test_what_is_known_of_bans_and_what_is_missing_go_there_and_back() -> None:
    signed = HostStatements(b"start", bytes(16), (b"three",), bytes(8), (b"milestone",))
    report = replace(REPORT, signed=signed)
    assert decode_report(encode_report(report)) == report
    reply = ReportReply(
        "training",
        COMMIT,
        1,
        2,
        bans=RevocationNews((b"one", b"two"), asks_revocations=True, known_revocations=bytes(8)),
        milestones=(b"one",),
    )
    assert decode_report_reply(encode_report_reply(reply)) == reply


def test_more_milestones_than_a_host_needs_make_no_report_and_no_reply() -> None:
    body = pb.ReportBody.FromString(encode_report(REPORT))
    body.milestones.extend([b""] * 1000)
    with pytest.raises(RemoteProtocolError, match="milestones"):
        decode_report(body.SerializeToString())
    reply = ReportReply("training", COMMIT, 1, 2, milestones=(b"",) * 1025)
    with pytest.raises(RemoteProtocolError, match="milestones"):
        decode_report_reply(encode_report_reply(reply))


def test_more_bans_than_anybody_keeps_make_no_reply() -> None:
    reply = ReportReply("training", COMMIT, 1, 2, bans=RevocationNews((b"",) * (MAX_REVOCATIONS + 1)))
    with pytest.raises(RemoteProtocolError, match="revocations"):
        decode_report_reply(encode_report_reply(reply))


def test_a_field_of_the_wire_has_the_name_of_the_value_that_it_carries() -> None:
    """Encoding and decoding go by names: a number that is added to one of the two alone would be lost."""
    parts = {
        field.name for part in (ChosenName, OwnCounts, HostStatements, Proofs) for field in dataclasses.fields(part)
    }
    news = {field.name for field in dataclasses.fields(RevocationNews)}
    kinds = (
        (PeerReport, pb.ReportBody, parts),
        (ReportReply, pb.ReportReply, news),
        (EnergySpent, pb.EnergyBody, set()),
    )
    for kind, body, apart in kinds:
        assert {field.name for field in dataclasses.fields(kind)} - {
            "chosen",
            "counts",
            "signed",
            "bans",
            "proofs",
        } | apart == {field.name for field in body.DESCRIPTOR.fields}


def test_proofs_of_double_votes_survive_the_wire_up_to_a_bound() -> None:
    pair = AckPair(b"1" * MAX_SIGNED_BYTES, b"2" * MAX_SIGNED_BYTES)
    full = replace(REPORT, proofs=Proofs((pair,) * MAX_DOUBLE_VOTES))
    assert decode_report(encode_report(full)) == full
    with pytest.raises(RemoteProtocolError, match=f"{MAX_DOUBLE_VOTES + 1} double votes"):
        Proofs((pair,) * (MAX_DOUBLE_VOTES + 1))
    body = pb.ReportBody.FromString(encode_report(REPORT))
    for _ in range(2 * MAX_DOUBLE_VOTES):
        body.double_votes.add(one=b"1", other=b"2")
    with pytest.raises(RemoteProtocolError, match="double votes"):
        decode_report(body.SerializeToString())
    with pytest.raises(RemoteProtocolError, match=f"a signed message of {MAX_SIGNED_BYTES + 1} bytes"):
        AckPair(b"1" * (MAX_SIGNED_BYTES + 1), b"2")


@pytest.mark.parametrize("name", ["a" * 200, "a\nb", "\x1b[2J", "\u202eanna", "an\u200bna"])
def test_a_report_with_a_hostile_name_is_taken_without_the_name(name: str) -> None:
    found = decode_report(encode_report(replace(REPORT, chosen=ChosenName(name, "oak"))))
    assert found == replace(REPORT, chosen=ChosenName("", "oak"))


def test_an_older_host_reads_a_report_with_a_name_and_no_name_adds_no_byte() -> None:
    named, plain = replace(REPORT, chosen=ChosenName("anna", "oak")), encode_report(REPORT)
    assert encode_report(named) == plain + b"\x9a\x02\x04anna\xa2\x02\x03oak"
    assert report_digest(named) == report_digest(REPORT), "so an older host, which drops it, still takes short ones"
    assert decode_report(encode_report(named)) == named


def test_accusations_of_reducers_survive_the_wire_up_to_a_bound() -> None:
    notice = FalseSum(UnitName("fragment-0"), COMMIT, PeerId("liar"), Root(b"r" * 32), b"p" * 32)
    full = replace(REPORT, proofs=Proofs((), (notice,) * MAX_FALSE_SUMS))
    assert decode_report(encode_report(full)) == full
    with pytest.raises(RemoteProtocolError, match=f"{MAX_FALSE_SUMS + 1} false sums"):
        Proofs((), (notice,) * (MAX_FALSE_SUMS + 1))
    for name in ("base", "result_hash", "proof_hash"):
        body = pb.ReportBody.FromString(encode_report(full))
        setattr(body.false_sums[0], name, b"short")
        with pytest.raises(RemoteProtocolError):
            decode_report(body.SerializeToString())
    body = pb.ReportBody.FromString(encode_report(REPORT))
    for _ in range(2 * MAX_FALSE_SUMS):
        body.false_sums.add(unit="u", base=COMMIT, reducer="liar", result_hash=b"r" * 32, proof_hash=b"p" * 32)
    with pytest.raises(RemoteProtocolError):
        decode_report(body.SerializeToString())
