from __future__ import annotations

import pytest

from averaging.network.directory import MAX_RECORD_BYTES, Record, open_record, seal_record, signed_record_rule
from protocol.envelope import seal
from protocol.errors import RemoteProtocolError
from protocol.identity import Ed25519Verifier, Identity
from protocol.ids import RunId

RUN = RunId(bytes(32))
NOW_S = 1_700_000_000.0
OWNER = Identity(bytes([1]) * 32)
OTHER = Identity(bytes([2]) * 32)
RULE = signed_record_rule(Ed25519Verifier(), RUN)


def _value(life_s: float = 60.0, payload: bytes = b"here") -> bytes:
    return seal_record(OWNER, RUN, 1, NOW_S + life_s, payload)


def test_the_owners_fresh_record_may_stand_and_can_be_read() -> None:
    assert RULE(Record(OWNER.peer_id, _value(), NOW_S + 60), NOW_S) == ""
    assert open_record(_value(), verifier=Ed25519Verifier(), run_id=RUN).payload == b"here"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(OTHER.peer_id, _value(), NOW_S + 60), "stored for"),
        (Record(OWNER.peer_id, _value(), NOW_S + 61), "kept longer"),
        (Record(OWNER.peer_id, _value(-60), NOW_S - 60), "expires in"),
        (Record(OWNER.peer_id, _value(1e6), NOW_S + 1e6), "expires in"),
        (Record(OWNER.peer_id, _value(payload=bytes(MAX_RECORD_BYTES)), NOW_S + 60), "at most"),
        (Record(OWNER.peer_id, b"", NOW_S + 60), "envelope"),
        (Record(OWNER.peer_id, _value(), float("nan")), "expires in"),
    ],
)
def test_a_record_that_breaks_the_rule_is_refused_with_its_reason(record: Record, reason: str) -> None:
    assert reason in RULE(record, NOW_S)


def test_an_envelope_of_another_purpose_is_no_record() -> None:
    other_purpose = seal(OWNER, "round", RUN, 1, round((NOW_S + 60) * 1000), b"here")
    assert "envelope for" in RULE(Record(OWNER.peer_id, other_purpose, NOW_S + 60), NOW_S)
    with pytest.raises(RemoteProtocolError):
        open_record(other_purpose, verifier=Ed25519Verifier(), run_id=RUN)


def test_a_peer_that_is_not_admitted_has_no_record() -> None:
    rule = signed_record_rule(Ed25519Verifier(), RUN, admits=lambda peer: peer == OTHER.peer_id)
    assert "not admitted" in rule(Record(OWNER.peer_id, _value(), NOW_S + 60), NOW_S)
