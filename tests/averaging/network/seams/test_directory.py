from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from averaging.network.seams import directory
from averaging.network.seams.bulk_address import MAX_ADDRESSES as MAX_BULK_ADDRESSES
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.directory import (
    MAX_ADDRESS_LETTERS,
    MAX_ADDRESSES,
    MAX_RECORD_BYTES,
    PeerRecord,
    Record,
    decode_peer_record,
    member_record_rule,
    open_record,
    seal_record,
    signed_record_rule,
)
from protocol.errors import RemoteProtocolError
from protocol.identity.chosen_name import ChosenName
from protocol.identity.credential import make_ca, make_request, make_tls_key, open_request
from protocol.identity.envelope import seal
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

RUN = RunId(bytes(32))
NOW_S = 1_700_000_000.0
OWNER = Identity(bytes([1]) * 32)
OTHER = Identity(bytes([2]) * 32)
RULE = signed_record_rule(Ed25519Verifier(), RUN)
CA = make_ca(b"c" * 32, now_unix_s=NOW_S)
MEMBERS_RULE = member_record_rule(Ed25519Verifier(), RUN, CA.certificate_der)
HERE = f"/ip4/192.0.2.1/tcp/4001/p2p/{OWNER.peer_id}"


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


def test_what_a_record_says_may_be_a_reason_to_refuse_it() -> None:
    def check(owner: PeerId, payload: bytes, now_unix_s: float) -> None:
        if (owner, payload, now_unix_s) != (OWNER.peer_id, b"welcome", NOW_S):
            raise RemoteProtocolError("other words", "a welcome")

    rule = signed_record_rule(Ed25519Verifier(), RUN, check)
    assert rule(Record(OWNER.peer_id, _value(payload=b"welcome"), NOW_S + 60), NOW_S) == ""
    assert "other words" in rule(Record(OWNER.peer_id, _value(), NOW_S + 60), NOW_S)


def _credential(identity: Identity = OWNER, run: RunId = RUN) -> bytes:
    request = open_request(
        make_request(identity, run, make_tls_key(), NOW_S), verifier=Ed25519Verifier(), run_id=run, now_unix_s=NOW_S
    )
    return CA.issue(request, run, now_unix_s=NOW_S, days=1, serial=1)


def _judged(payload: bytes, now_unix_s: float = NOW_S) -> str:
    value = seal_record(OWNER, RUN, 1, now_unix_s + 60, payload)
    return MEMBERS_RULE(Record(OWNER.peer_id, value, now_unix_s + 60), now_unix_s)


def test_a_member_has_a_place_while_its_credential_lasts() -> None:
    payload = PeerRecord(_credential(), (HERE,)).encode()
    assert _judged(payload) == ""
    assert "ended" in _judged(payload, NOW_S + 2 * 86400)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "cannot be read"),
        (b"\xff\xffshort", "other contents"),
        (PeerRecord(b"").encode(), "did not issue"),
        (PeerRecord(b"no certificate").encode(), "did not issue"),
        (PeerRecord(_credential(OTHER)).encode(), "another peer"),
        (PeerRecord(_credential(run=RunId(b"x" * 32))).encode(), "another peer or run"),
        (PeerRecord(_credential(), (f"/ip4/192.0.2.1/tcp/1/p2p/{OTHER.peer_id}",)).encode(), "other contents"),
        (PeerRecord(_credential(), (HERE,)).encode() + b"\n", "other contents"),
        (PeerRecord(_credential(), (HERE,)).encode() + b"\xff", "cannot be read"),
    ],
)
def test_who_shows_no_good_credential_has_no_place(payload: bytes, reason: str) -> None:
    assert reason in _judged(payload)


def test_the_largest_record_of_a_member_fits() -> None:
    address = f"/dns4/{'x' * (MAX_ADDRESS_LETTERS - len(HERE))}/tcp/4001/p2p/{OWNER.peer_id}"
    assert _judged(PeerRecord(_credential(), (address,) * MAX_ADDRESSES).encode()) == ""


def test_an_owner_leaves_out_addresses_that_nobody_would_take() -> None:
    useless = ("/dns4/" + "x" * MAX_ADDRESS_LETTERS + HERE, "/dns4/\N{SNOWMAN}" + HERE)
    record = PeerRecord(b"credential", (*useless, *[HERE] * (MAX_ADDRESSES + 1)))
    assert decode_peer_record(record.encode(), OWNER.peer_id) == PeerRecord(b"credential", (HERE,) * MAX_ADDRESSES)


def test_a_record_names_the_experts_of_its_owner_with_and_without_addresses() -> None:
    for record in (PeerRecord(b"credential", (HERE,), (0, 12)), PeerRecord(b"credential", (), (3,))):
        assert decode_peer_record(record.encode(), OWNER.peer_id) == record


def test_a_record_says_where_its_owner_takes_bulk() -> None:
    here = (BulkAddress("192.0.2.1", 4242), BulkAddress("2001:db8::1", 4242), BulkAddress("peer.example", 1))
    for record in (PeerRecord(b"credential", (HERE,), (3,), here), PeerRecord(b"credential", bulk=here[:1])):
        assert decode_peer_record(record.encode(), OWNER.peer_id) == record
    many = PeerRecord(b"credential", bulk=here * MAX_BULK_ADDRESSES)
    assert len(decode_peer_record(many.encode(), OWNER.peer_id).bulk) == MAX_BULK_ADDRESSES


@pytest.mark.parametrize(
    "line", ["bulk ", "bulk 192.0.2.1", "bulk 192.0.2.1 0", "bulk -x 1", "bulk " + ",".join(["192.0.2.1 1"] * 9)]
)
def test_places_for_bulk_that_are_none_are_refused(line: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_peer_record(PeerRecord(b"credential").encode() + line.encode(), OWNER.peer_id)


def test_a_line_of_other_releases_about_speed_is_passed_over() -> None:
    without = PeerRecord(b"credential", (HERE,)).encode()
    for line, experts in (("\npace 1200", ()), ("\npace 1200\nexperts 3", (3,))):
        assert decode_peer_record(without + line.encode(), OWNER.peer_id) == PeerRecord(b"credential", (HERE,), experts)


def test_a_signature_that_was_good_is_not_checked_again_and_a_bad_one_is() -> None:
    verifier = _Counting()
    rule = signed_record_rule(verifier, RUN)
    value = seal_record(OWNER, RUN, 1, NOW_S + 60, b"")
    record = Record(OWNER.peer_id, value, NOW_S + 60)
    assert [rule(record, NOW_S) for _ in range(3)] == [""] * 3
    assert len(verifier.checked) == 1
    assert "expires in" in rule(record, NOW_S + 120), "what depends on the time is looked at each time"
    bad = record._replace(value=value[:-1] + bytes([value[-1] ^ 1]))
    assert all("bad signature" in rule(bad, NOW_S) for _ in range(2))
    assert len(verifier.checked) == 3


def test_of_more_records_than_are_remembered_the_latest_are_and_one_of_another_owner_is_refused_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(directory, "MAX_REMEMBERED", 4)
    verifier = _Counting()
    rule = signed_record_rule(verifier, RUN)
    records = [
        Record(OWNER.peer_id, seal_record(OWNER, RUN, number, NOW_S + 60, b""), NOW_S + 60) for number in range(5)
    ]
    assert [rule(record, NOW_S) for record in records] == [""] * 5
    assert [rule(record, NOW_S) for record in records[1:]] == [""] * 4
    assert len(verifier.checked) == 5
    assert rule(records[0], NOW_S) == ""
    assert len(verifier.checked) == 6
    for _ in range(2):
        assert "stored for another" in rule(records[0]._replace(subkey="another"), NOW_S)
    assert len(verifier.checked) == 6


@dataclass(frozen=True)
class _Counting(Ed25519Verifier):
    """Which signatures it looked at."""

    checked: list[bytes] = field(default_factory=list)

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        self.checked.append(signature)
        return super().verify(public_key, message, signature)


@pytest.mark.parametrize(
    "line", ["experts ", "experts one", "experts 1,2", "experts 1  2", "experts " + "1 " * 300 + "1"]
)
def test_experts_that_are_no_numbers_are_refused(line: str) -> None:
    with pytest.raises(RemoteProtocolError, match="other contents"):
        decode_peer_record(PeerRecord(b"credential").encode() + line.encode(), OWNER.peer_id)


def test_nobody_takes_more_or_longer_addresses() -> None:
    for addresses in ((HERE,) * (MAX_ADDRESSES + 1), ("/dns4/" + "x" * MAX_ADDRESS_LETTERS + HERE,)):
        payload = PeerRecord(b"credential").encode() + "\n".join(addresses).encode()
        with pytest.raises(RemoteProtocolError, match="other contents"):
            decode_peer_record(payload, OWNER.peer_id)


def test_a_record_tells_the_chosen_name_in_a_line_that_older_releases_skip() -> None:
    address = "/ip4/192.0.2.1/tcp/1/p2p/alice"
    named = PeerRecord(b"c", (address,), (0, 3), chosen=ChosenName("An na\u00e9", "<b>\u5c71"))
    assert decode_peer_record(named.encode(), PeerId("alice")) == named
    assert b"\npace = " in named.encode()
    assert named._replace(chosen=ChosenName()).encode() == PeerRecord(b"c", (address,), (0, 3)).encode()
    for line in ("pace 123.5", "pace = %0aroot %1b[2J", "pace = " + "a" * 5000):
        payload = PeerRecord(b"c", (address,)).encode() + b"\n" + line.encode()
        assert decode_peer_record(payload, PeerId("alice")) == PeerRecord(b"c", (address,))
