"""The host's signed word that a peer takes part no more: what it says, who may say it, and how it is passed on."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError, RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.identity.revocation import (
    FINGERPRINT_BYTES,
    MAX_ANSWER_BYTES,
    MAX_ENTRY_BYTES,
    MAX_REASON_BYTES,
    MAX_REVOCATIONS,
    REVOKE_DOMAIN,
    Revocation,
    RevocationBook,
    check_fingerprints,
    fingerprint,
    has_others,
    join_entries,
    missing,
    open_revocation,
    seal_revocation,
    split_entries,
)
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

RUN = RunId(b"r" * 32)
HOST, STRANGER, ALICE, BOB = (Identity(letter * 32) for letter in (b"h", b"s", b"a", b"b"))
VERIFIER = Ed25519Verifier()
BAN = Revocation(ALICE.peer_id, "sent forged results", 1_700_000_000, 3)


def _entry(peer: Identity = ALICE, number: int = 1, host: Identity = HOST, run: RunId = RUN) -> bytes:
    return seal_revocation(host, run, Revocation(peer.peer_id, "why", 1_700_000_000, number))


def _open(entry: bytes) -> Revocation:
    return open_revocation(entry, verifier=VERIFIER, run_id=RUN, host_public_key=HOST.public_key)


def _with(book: RevocationBook, *entries: bytes) -> RevocationBook:
    return book.with_entries(entries, verifier=VERIFIER, run_id=RUN, host_public_key=HOST.public_key)


def test_an_entry_says_what_the_host_signed() -> None:
    assert _open(seal_revocation(HOST, RUN, BAN)) == BAN


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (_entry(host=STRANGER), "did not sign"),
        (_entry(run=RunId(b"x" * 32)), "of run"),
        (_entry()[:-1] + bytes([_entry()[-1] ^ 1]), "bad signature"),
        (seal(HOST, "potluck start", RUN, 1, NEVER_MS, b"payload"), "an envelope for"),
        (seal(HOST, REVOKE_DOMAIN, RUN, 1, NEVER_MS, b""), "cannot be read"),
        (seal(HOST, REVOKE_DOMAIN, RUN, 1, NEVER_MS, bytes(8) + b"\x04abcd"), "peer id|base58"),
        (seal(HOST, REVOKE_DOMAIN, RUN, 1, NEVER_MS, bytes(8) + b"\x34" + ALICE.peer_id.encode() + b"\x1b"), "shown"),
        (bytes(MAX_ENTRY_BYTES + 1), "at most"),
    ],
)
def test_what_is_no_word_of_this_runs_host_is_refused_with_its_reason(entry: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        _open(entry)


def test_a_reason_that_cannot_be_shown_on_one_line_is_not_signed() -> None:
    for reason in ("two\nlines", "x" * (MAX_REASON_BYTES + 1)):
        with pytest.raises(ConfigError, match="a reason of"):
            seal_revocation(HOST, RUN, Revocation(ALICE.peer_id, reason, 0, 1))


def test_the_longest_entry_is_within_what_others_take() -> None:
    entry = seal_revocation(HOST, RUN, Revocation(ALICE.peer_id, "\N{SNOWMAN}" * (MAX_REASON_BYTES // 3), 1 << 40, 1))
    assert len(entry) <= MAX_ENTRY_BYTES
    assert MAX_REVOCATIONS * FINGERPRINT_BYTES <= MAX_ANSWER_BYTES


def test_a_book_holds_each_entry_once_and_names_the_banned() -> None:
    book = _with(RevocationBook(), _entry(), _entry(), _entry(BOB, 2))
    assert len(book.entries) == 2
    assert {peer: ban.number for peer, ban in book.by_peer.items()} == {ALICE.peer_id: 1, BOB.peer_id: 2}
    assert _with(book, _entry()) is book


def test_one_forged_entry_among_good_ones_is_refused_with_all_of_them() -> None:
    with pytest.raises(RemoteProtocolError, match="did not sign"):
        _with(RevocationBook(), _entry(), _entry(BOB, host=STRANGER))


def test_the_first_word_about_a_peer_stands_in_whatever_order_they_come() -> None:
    first, second = _entry(number=1), _entry(number=2)
    for entries in ((first, second), (second, first)):
        assert _with(RevocationBook(), *entries).by_peer[ALICE.peer_id].number == 1


def test_two_who_tell_each_other_what_is_missing_know_the_same_afterwards() -> None:
    one = _with(RevocationBook(), _entry(number=1), _entry(BOB, 2))
    other = _with(RevocationBook(), _entry(BOB, 2), _entry(STRANGER, 3))
    both = _with(one, *split_entries(join_entries(other.missing_at(one.fingerprints))))
    assert _with(other, *one.missing_at(other.fingerprints)).fingerprints == both.fingerprints
    assert both.missing_at(both.fingerprints) == ()


def test_what_somebody_has_beyond_ours_is_seen_from_its_fingerprints() -> None:
    ours, other = [_entry(), _entry(BOB, 2)], _entry(STRANGER, 3)
    assert not has_others(ours, b"")
    assert not has_others(ours, fingerprint(ours[1]))
    assert has_others(ours, fingerprint(ours[0]) + fingerprint(other))
    assert has_others([], fingerprint(other))


def test_an_answer_is_bounded_and_the_rest_comes_with_the_next() -> None:
    entries = [number.to_bytes(2, "big") + bytes(MAX_ENTRY_BYTES - 2) for number in range(MAX_REVOCATIONS)]
    known = b""
    num_answers = 0
    while answer := missing(entries, known):
        assert len(join_entries(answer)) <= MAX_ANSWER_BYTES
        known += b"".join(map(fingerprint, answer))
        num_answers += 1
    assert num_answers == 3
    assert len(known) == MAX_REVOCATIONS * FINGERPRINT_BYTES


@pytest.mark.parametrize("known", [b"1234567", bytes(FINGERPRINT_BYTES * (MAX_REVOCATIONS + 1))])
def test_fingerprints_that_are_not_whole_or_too_many_are_refused(known: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="fingerprints"):
        check_fingerprints(known)


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x05abc", b"\x00\x00" * (MAX_REVOCATIONS + 1)])
def test_an_answer_that_is_cut_off_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="whole ones"):
        split_entries(data)


def test_nobody_keeps_more_than_the_cap() -> None:
    full = RevocationBook({bytes([i // 256, i % 256]): b"" for i in range(MAX_REVOCATIONS)}, {})
    assert _with(full, _entry()) is full
    assert PeerId(ALICE.peer_id) not in full.by_peer
