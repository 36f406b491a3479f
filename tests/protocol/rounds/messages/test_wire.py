from __future__ import annotations

import random
import typing
from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.pb import round_pb2
from protocol.rounds.messages import messages as m
from protocol.rounds.messages import record as rec
from protocol.rounds.messages import requests as r
from protocol.rounds.messages.bounds import LOST_ALL_PPM
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.wire import (
    commit_id,
    decode_body,
    decode_certificate,
    decode_fetch,
    decode_message,
    decode_record,
    encode_body,
    encode_certificate,
    encode_fetch,
    encode_message,
    encode_record,
    genesis_id,
)

UNIT = UnitName("fragment-0")
BASE, ROOT = CommitId(b"b" * 32), Root(b"r" * 32)
A, B = PeerId("alice"), PeerId("bob")
BALLOT = rec.Ballot(3, A)
MEMBERS = (m.Member(A, 1, 2), m.Member(B, 2**63, 4))
PROPOSAL = m.Proposal(UNIT, BASE, 5, BALLOT, MEMBERS, (m.SliceSpec(0, 3, A), m.SliceSpec(3, 9, B)), "int8", 1000, 2.5)
RECORD = rec.CommitRecord(
    UNIT,
    BASE,
    5,
    BALLOT,
    (rec.SliceRecord(0, 9, A, ROOT, (rec.Omission(B, "late"),)),),
    (rec.Contributor(A, 1, ROOT, 10, 10),),
    "int8",
    1000,
    99,
    rec.OuterStep("nesterov", 0.7, 0.9),
    500,
    (A, B),
    (1, 2),
    rec.Attestation(BASE, ROOT),
)
LANES = (LanePart(7, 4, 6), LanePart(1 << 31, 4, 4))
OF_LANES = replace(
    RECORD, slices=(rec.SliceRecord(0, 9, A, ROOT, ()),), contributors=(rec.Contributor(A, 1, ROOT, 10, 10, LANES),)
)
LOSSY = replace(RECORD, slices=(rec.SliceRecord(0, 9, A, ROOT, (), 1234),))
SIGNED = replace(
    RECORD,
    slices=(rec.SliceRecord(0, 9, A, ROOT, (rec.Omission(B, "", rec.OmissionCode.GONE),), seal=b"s" * 82),),
    contributors=(rec.Contributor(A, 1, ROOT, 10, 10, (), 2**32, b"c" * 82, 1, b"credential"),),
    rules=1,
    attestations=(rec.Attestation(BASE, ROOT),),
)
HEADER = m.ResultHeader(UNIT, BASE, BALLOT, 0, 9, A, (rec.Included(A, 1, ROOT, 10, BASE, ROOT),), (), 10, ROOT)
SEALED = replace(
    HEADER,
    included=(rec.Included(A, 1, ROOT, 10, BASE, ROOT, LANES, 2**32, b"c" * 82, b"credential"),),
    omitted=(rec.Omission(B, "too late by 2 s", rec.OmissionCode.LATE),),
    sum_seal=b"s" * 82,
)
DISAGREEING = replace(
    SIGNED, slices=(rec.SliceRecord(0, 9, A, ROOT, (), seal=b"s" * 82, disagreeing=(rec.Disagreement(A, 3, -74),)),)
)
IN_PART = replace(SEALED, included=(replace(SEALED.included[0], num_left_out=3, agreement_percent=-74),))
HEAD = m.UnitHead(UNIT, BASE, 4, 89, 17, True, BASE, ROOT)
ACKED = m.AckedRecord(BALLOT, b"record")
MESSAGES = [
    m.Heartbeat(MEMBERS[0], True, 1000, (HEAD,), 1250, (B,)),
    m.Leave(MEMBERS[1], UNIT, BASE),
    m.Leave(MEMBERS[1], UNIT, BASE, rec.Ballot(4, B), ACKED),
    PROPOSAL,
    replace(PROPOSAL, lone=True, level=1),
    m.Mend(UNIT, BASE, BALLOT, 2, (m.SliceSpec(0, 3, A), m.SliceSpec(3, 5, A), m.SliceSpec(5, 9, B))),
    m.ResultReady(UNIT, BASE, BALLOT, b"signed"),
    m.Settle(UNIT, BASE, BALLOT, encode_record(RECORD), (A,)),
    m.Ack(UNIT, BASE, BALLOT, BASE),
    m.Committed(UNIT, m.Certificate(encode_record(RECORD), (b"ack", b"ack2"), (b"leave",))),
    m.PreVoteRequest(UNIT, BASE, BALLOT, 2.5),
    m.PreVoteRequest(UNIT, BASE, BALLOT, 70.0, lone=True),
    m.PreVote(UNIT, BASE, BALLOT, "alice is alive"),
    m.PreVote(UNIT, BASE, BALLOT, ""),
    m.PromiseRequest(UNIT, BASE, BALLOT),
    m.Promise(UNIT, BASE, BALLOT, ACKED),
    m.Promise(UNIT, BASE, BALLOT, None),
    m.Refusal(UNIT, BASE, BALLOT),
    m.PreVote(UNIT, BASE, BALLOT, "leading attempt 0", leads_s=12.5),
    replace(PROPOSAL, pre_votes=(b"one", b"another")),
    m.Settle(UNIT, BASE, BALLOT, encode_record(SIGNED), (A,), (b"leave",), (b"promise", b"promise2")),
    m.PromiseRequest(UNIT, BASE, BALLOT, (b"one", b"another"), lone=True),
    m.Ack(UNIT, BASE, BALLOT, BASE, version=1),
    m.Ack(UNIT, BASE, BALLOT, BASE, before=rec.Ballot(1, B), before_commit=CommitId(b"e" * 32), version=1),
    m.Ack(UNIT, BASE, BALLOT, BASE, lone=True, version=1),
    m.DoubleVote(UNIT, b"one ack", b"another"),
    m.Committed(UNIT, m.Certificate(encode_record(RECORD), (b"ack2",), (b"leave",), b"ack", (bytes(114), b"v" * 114))),
    m.FalseSum(UNIT, BASE, PeerId("liar"), Root(b"r" * 32), b"p" * 32),
]
FETCHES = [
    r.FetchResult(UNIT, BASE, 0, 3, ROOT),
    r.FetchCommits(UNIT, (BASE, CommitId(b"c" * 32), CommitId(b"a" * 32))),
    r.FetchState(UNIT, 0, 9, BASE),
    r.FetchHashes(UNIT, BASE),
    r.FetchMilestones(UNIT),
    r.FetchChunk(UNIT, BASE, 3, (b"r" * 32, b"s" * 32)),
    r.FetchProof(UNIT, b"p" * 32),
    r.FetchSteps(UNIT, BASE, ROOT),
    r.FetchParts(UNIT, BASE, 4),
]


def test_every_kind_of_message_and_request_is_among_those_tested_here() -> None:
    assert {type(message) for message in MESSAGES} == set(typing.get_args(m.RoundMessage))
    assert {type(request) for request in FETCHES} == set(typing.get_args(r.FetchRequest))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_round_message_survives_the_wire(message: m.RoundMessage) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize("request_", FETCHES, ids=lambda request: type(request).__name__)
def test_every_fetch_request_survives_the_wire(request_: r.FetchRequest) -> None:
    assert decode_fetch(encode_fetch(request_)) == request_


def test_records_and_certificates_survive_the_wire_and_the_lone_flag_does_too() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD
    assert decode_record(encode_record(LOSSY)) == LOSSY
    assert decode_record(encode_record(SIGNED)) == SIGNED
    lone = replace(RECORD, lone=True, attested=None)
    assert decode_record(encode_record(lone)) == lone
    certificate = m.Certificate(b"record", (b"a", b"b"), (b"leave",))
    assert decode_certificate(encode_certificate(certificate)) == certificate


@pytest.mark.parametrize("strange", [b"\x20\x01", b"\x0a\x06record", b"\x3a\x00"])
def test_a_certificate_with_bytes_that_nobody_signed_is_refused(strange: bytes) -> None:
    raw = encode_certificate(m.Certificate(b"record", (b"a", b"b")))
    with pytest.raises(RemoteProtocolError, match="its own bytes only"):
        decode_certificate(raw + strange)


def test_random_and_damaged_bytes_never_raise_anything_but_a_protocol_error() -> None:
    chooser = random.Random(5)
    wires = [encode_message(message) for message in MESSAGES]
    for _ in range(4000):
        data = bytearray(chooser.choice(wires))
        for _ in range(chooser.randint(1, 4)):
            data[chooser.randrange(len(data))] = chooser.randrange(256)
        cut = bytes(data[: chooser.randint(0, len(data))]) if chooser.random() < 0.5 else bytes(data)
        try:
            decode_message(cut)
        except RemoteProtocolError:
            continue


def test_an_oversized_or_unknown_message_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode_message(bytes((1 << 20) + 1))
    with pytest.raises(RemoteProtocolError, match="unknown kind"):
        decode_message(b"")
    with pytest.raises(RemoteProtocolError):
        decode_body(m.SliceSpec, encode_body(RECORD))


@pytest.mark.parametrize(
    "change",
    [
        {"base": CommitId(b"short")},
        {"members": ()},
        {"members": (MEMBERS[0], MEMBERS[0])},
        {"slices": ()},
        {"slices": (m.SliceSpec(1, 3, A),)},
        {"slices": (m.SliceSpec(0, 3, A), m.SliceSpec(4, 9, B))},
        {"weight_cap_tokens": 0},
        {"reduce_within_s": 0.0},
        {"reduce_within_s": float("nan")},
    ],
)
def test_a_proposal_out_of_bounds_cannot_be_made(change: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        replace(PROPOSAL, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"roster": ()},
        {"roster": (A, A)},
        {"incarnations": (1,)},
        {"contributors": ()},
        {"contributors": (rec.Contributor(A, 1, ROOT, 10, 10), rec.Contributor(A, 1, ROOT, 10, 10))},
        {"slices": (rec.SliceRecord(1, 9, A, ROOT, ()),)},
        {"parent": CommitId(b"short")},
    ],
)
def test_a_record_out_of_bounds_cannot_be_made(change: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        replace(RECORD, **change)


def test_a_record_or_a_result_with_a_lane_twice_in_one_slice_can_neither_be_made_nor_read() -> None:
    twice = (rec.Contributor(A, 1, ROOT, 10, 10, LANES), rec.Contributor(B, 1, ROOT, 6, 6, LANES[:1]))
    with pytest.raises(RemoteProtocolError, match="a lane twice"):
        replace(OF_LANES, contributors=twice)
    included = rec.Included(B, 1, ROOT, 6, BASE, ROOT, LANES[:1])
    with pytest.raises(RemoteProtocolError, match="a lane twice"):
        replace(HEADER, included=(replace(included, peer=A), included), weight_sum=12)
    halves = (
        rec.SliceRecord(0, 5, A, ROOT, (rec.Omission(A, "late"),)),
        rec.SliceRecord(5, 9, A, ROOT, (rec.Omission(B, "late"),)),
    )
    assert replace(OF_LANES, slices=halves, contributors=twice).contributors == twice, "each chunk has it once"
    message = round_pb2.CommitRecord.FromString(encode_record(OF_LANES))
    message.contributors.add().CopyFrom(message.contributors[0])
    message.contributors[1].peer = B
    with pytest.raises(RemoteProtocolError, match="a lane twice"):
        decode_record(message.SerializeToString())


def test_what_a_lane_brings_crosses_the_wire_with_its_name_and_costs_nothing_where_there_are_none() -> None:
    assert decode_record(encode_record(OF_LANES)) == OF_LANES
    plain = replace(OF_LANES, contributors=(rec.Contributor(A, 1, ROOT, 10, 10),))
    one = replace(plain, contributors=(rec.Contributor(A, 1, ROOT, 1 << 20, 10, (LanePart(1 << 31, 500, 1 << 20),)),))
    unnamed = replace(plain, contributors=(rec.Contributor(A, 1, ROOT, 1 << 20, 10),))
    assert len(encode_record(one)) - len(encode_record(unnamed)) <= 16
    header = r.ContributionHeader(UNIT, BASE, MEMBERS[0], 10, "int8", ROOT, BASE, ROOT, LANES)
    assert decode_body(r.ContributionHeader, encode_body(header)) == header
    with pytest.raises(RemoteProtocolError, match="lanes' parts of 10 tokens"):
        replace(header, tokens=11)


@pytest.mark.parametrize("lost_ppm", [-1, LOST_ALL_PPM + 1, 1 << 32])
def test_more_left_out_than_there_is_cannot_be_said(lost_ppm: int) -> None:
    with pytest.raises(RemoteProtocolError, match="millionths left out"):
        rec.SliceRecord(0, 9, A, ROOT, (), lost_ppm)
    with pytest.raises(RemoteProtocolError, match="millionths left out"):
        replace(HEADER, lost_ppm=lost_ppm)


def test_other_messages_out_of_bounds_cannot_be_made() -> None:
    whole = (m.SliceSpec(0, 9, A),)
    for make in (
        lambda: m.Mend(UNIT, BASE, BALLOT, 0, whole),
        lambda: m.Mend(UNIT, BASE, BALLOT, 1, ()),
        lambda: m.Mend(UNIT, BASE, BALLOT, 1, (m.SliceSpec(1, 9, A),)),
        lambda: m.PreVoteRequest(UNIT, BASE, BALLOT, -1.0),
        lambda: m.PreVoteRequest(UNIT, BASE, BALLOT, float("nan")),
        lambda: m.PreVote(UNIT, BASE, BALLOT, "", leads_s=-1.0),
        lambda: m.PreVote(UNIT, BASE, BALLOT, "", leads_s=float("inf")),
        lambda: rec.Ballot(1 << 32, A),
        lambda: m.Heartbeat(MEMBERS[0], True, 0, (), 0, (B,) * (m.MAX_MEMBERS + 1)),
        lambda: m.Heartbeat(MEMBERS[0], True, 0, (HEAD,) * (m.MAX_MEMBERS + 1)),
    ):
        with pytest.raises(RemoteProtocolError):
            make()


def test_a_commit_id_names_its_parent_and_every_byte_of_its_record() -> None:
    record = encode_record(RECORD)
    ids = {
        commit_id(BASE, record),
        commit_id(CommitId(b"c" * 32), record),
        commit_id(BASE, record + b"\0"),
        genesis_id(record),
    }
    assert len(ids) == 4
