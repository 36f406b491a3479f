from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError, VersionError
from protocol.identity.envelope import (
    MAX_SESSION,
    NEVER_MS,
    REPLAY_WINDOW,
    SEAL_BYTES,
    Envelope,
    ReplayGuard,
    enveloped,
    first_sequence,
    next_session,
    open_envelope,
    seal,
    seal_of,
    session_of,
)
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier

ALICE = Identity(b"a" * 32)
RUN = b"r" * 32


def _seal(payload: bytes = b"hello", sequence: int = 7, expires_ms: int = NEVER_MS) -> bytes:
    return seal(ALICE, "potluck test", RUN, sequence, expires_ms, payload)


def _open(data: bytes, now_ms: int | None = 1000, domain: str = "potluck test", run: bytes = RUN) -> Envelope:
    return open_envelope(data, verifier=Ed25519Verifier(), domain=domain, run_id=run, now_unix_ms=now_ms)


def test_an_envelope_opens_to_what_was_sealed() -> None:
    envelope = _open(_seal())
    assert (envelope.sender, envelope.sequence, envelope.payload) == (ALICE.peer_id, 7, b"hello")
    assert envelope.raw == _seal()


def test_no_byte_can_be_changed_unseen() -> None:
    data = _seal()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises((RemoteProtocolError, VersionError)):
            _open(bytes(changed))


def test_cut_or_padded_envelopes_are_refused() -> None:
    data = _seal()
    for wrong in (b"", data[:-1], data + b"\0", data[:50], bytes(1 << 21)):
        with pytest.raises(RemoteProtocolError):
            _open(wrong)


def test_another_purpose_or_run_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="envelope for"):
        _open(_seal(), domain="potluck other")
    with pytest.raises(RemoteProtocolError, match="run"):
        _open(_seal(), run=b"q" * 32)


def test_another_protocol_version_says_so_and_what_to_do() -> None:
    data = bytearray(_seal())
    data[17] = 9
    with pytest.raises(VersionError, match=r"version 9.*version 2.*install"):
        _open(bytes(data))


def test_an_expired_envelope_is_refused_unless_judged_as_of_its_round() -> None:
    data = _seal(expires_ms=5000)
    assert _open(data, now_ms=5000).payload == b"hello"
    with pytest.raises(RemoteProtocolError, match="expired"):
        _open(data, now_ms=8001)
    assert _open(data, now_ms=None).payload == b"hello"


def test_what_is_too_long_is_not_sealed() -> None:
    with pytest.raises(LocalProtocolError):
        _seal(bytes((1 << 20) + 1))
    with pytest.raises(LocalProtocolError):
        seal(ALICE, "a domain tag that is too long", RUN, 0, 0, b"")


def test_numbers_of_a_session_are_above_all_that_an_earlier_one_may_have_used() -> None:
    assert first_sequence(8) - first_sequence(7) == 1 << 32


def test_a_number_tells_the_session_it_belongs_to() -> None:
    for session in (1, 7, MAX_SESSION):
        assert session_of(first_sequence(session)) == session_of(first_sequence(session) + (1 << 32) - 1) == session


@pytest.mark.parametrize(
    ("last", "now_unix_s", "session"),
    [
        (0, 1_700_000_000.9, 1_700_000_000),
        (3, 1_700_000_000.0, 1_700_000_000),
        (1_700_000_000, 1_700_000_000.9, 1_700_000_001),
        (1_700_000_500, 1_700_000_000.0, 1_700_000_501),
        (0, 1e12, MAX_SESSION),
        (0, 0.0, 1),
    ],
)
def test_a_session_is_above_the_last_one_and_not_below_the_time(last: int, now_unix_s: float, session: int) -> None:
    assert next_session(last, now_unix_s) == session
    assert seal(ALICE, "potluck test", RUN, first_sequence(session) + 1, NEVER_MS, b"")


def test_of_two_copies_of_one_counter_the_one_started_later_has_the_higher_session() -> None:
    copied = 1_700_000_000
    older = next_session(copied, 1_700_001_000.0)
    assert next_session(copied, 1_700_001_001.0) > older


def test_after_the_last_session_there_is_none() -> None:
    with pytest.raises(LocalProtocolError, match="session"):
        next_session(MAX_SESSION, 0.0)


def test_messages_that_overtake_each_other_are_admitted_once_each() -> None:
    guard = ReplayGuard()
    arriving = [3, 1, 2, 9, 4, 9, 3, 1]
    assert [guard.admit(_open(_seal(sequence=n))) for n in arriving] == [True] * 5 + [False] * 3


def test_what_is_older_than_the_window_counts_as_a_replay() -> None:
    guard = ReplayGuard()
    assert guard.admit(_open(_seal(sequence=REPLAY_WINDOW + 5)))
    assert guard.admit(_open(_seal(sequence=6)))
    assert not guard.admit(_open(_seal(sequence=5)))
    assert guard.admit(_open(_seal(sequence=first_sequence(2))))
    assert not guard.admit(_open(_seal(sequence=REPLAY_WINDOW + 6)))


def test_the_newest_session_of_a_sender_is_that_of_its_highest_number() -> None:
    guard = ReplayGuard()
    assert guard.newest_session(ALICE.peer_id) == 0
    for number in (first_sequence(7) + 3, first_sequence(7) + 1, first_sequence(6)):
        guard.admit(_open(_seal(sequence=number)))
        assert guard.newest_session(ALICE.peer_id) == 7


def test_a_replay_is_not_admitted_twice_and_senders_do_not_disturb_each_other() -> None:
    guard = ReplayGuard()
    first, later = _open(_seal(sequence=5)), _open(_seal(sequence=6))
    assert guard.admit(first)
    assert not guard.admit(first)
    assert guard.admit(later)
    assert not guard.admit(first)
    bob = seal(Identity(b"b" * 32), "potluck test", RUN, 1, NEVER_MS, b"")
    assert guard.admit(_open(bob))


# --- seals --------------------------------------------------------------------------------------------------------------------


def _rebuilt(seal_bytes: bytes, payload: bytes = b"hello", key: bytes = ALICE.public_key, run: bytes = RUN) -> bytes:
    return enveloped(seal_bytes, domain="potluck test", run_id=run, public_key=key, payload=payload)


def test_an_envelope_is_built_again_from_its_seal_and_what_its_reader_knows() -> None:
    data = _seal(sequence=9, expires_ms=5000)
    packed = seal_of(data)
    assert len(packed) == SEAL_BYTES == 82
    assert _rebuilt(packed) == data
    assert _open(_rebuilt(packed)).sequence == 9


def test_a_seal_fits_one_payload_signer_and_run_only() -> None:
    packed, other = seal_of(_seal()), Identity(b"b" * 32)
    for wrong in (
        _rebuilt(packed, payload=b"hallo"),
        _rebuilt(packed, payload=b""),
        _rebuilt(packed, key=other.public_key),
    ):
        with pytest.raises(RemoteProtocolError, match="bad signature"):
            _open(wrong)
    with pytest.raises(RemoteProtocolError, match="bad signature"):
        _open(_rebuilt(packed, run=b"q" * 32), run=b"q" * 32)


def test_no_byte_of_a_seal_can_be_changed_unseen() -> None:
    packed = seal_of(_seal())
    for place in range(len(packed)):
        changed = bytearray(packed)
        changed[place] ^= 1
        with pytest.raises((RemoteProtocolError, VersionError)):
            _open(_rebuilt(bytes(changed)))


def test_what_is_no_seal_or_too_short_for_an_envelope_is_refused() -> None:
    packed = seal_of(_seal())
    for wrong in (b"", packed[:-1], packed + b"\0"):
        with pytest.raises(RemoteProtocolError, match=f"a seal of {len(wrong)} bytes; expected 82 bytes"):
            _rebuilt(wrong)
    with pytest.raises(RemoteProtocolError, match="an envelope of 10 bytes"):
        seal_of(bytes(10))


def _of_version(version: int) -> bytes:
    body = bytearray(_seal()[:-64])
    body[16:18] = version.to_bytes(2, "big")
    return bytes(body) + ALICE.sign(bytes(body))


def test_what_an_older_release_signed_is_read_where_it_is_stored_and_not_where_it_is_said_now() -> None:
    assert _open(_of_version(1), now_ms=None).payload == b"hello"
    with pytest.raises(VersionError, match="version 1"):
        _open(_of_version(1))
    for unknown in (0, 3):
        with pytest.raises(VersionError, match=f"version {unknown}"):
            _open(_of_version(unknown), now_ms=None)
