from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.identity.envelope import open_envelope
from protocol.identity.verifier import Ed25519Verifier
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.bundle import (
    LENGTH_BYTES,
    MAX_BUNDLE_BYTES,
    MAX_BUNDLED,
    MAX_REASON_BYTES,
    TAG,
    decode_answer,
    decode_bundle,
    encode_answer,
    encode_bundle,
    is_bundle,
)

MESSAGES = st.lists(st.binary(max_size=200), min_size=2, max_size=MAX_BUNDLED)
REASONS = st.lists(st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=40), min_size=1, max_size=4)


@given(MESSAGES)
def test_what_was_bundled_comes_out_as_it_was_and_in_its_order(messages: list[bytes]) -> None:
    raw = encode_bundle(messages)
    assert is_bundle(raw)
    assert decode_bundle(raw) == tuple(messages)


@given(st.binary(max_size=300))
def test_bytes_of_a_stranger_are_a_bundle_or_are_refused(data: bytes) -> None:
    try:
        messages = decode_bundle(TAG + data)
    except RemoteProtocolError:
        return
    assert sum(LENGTH_BYTES + len(message) for message in messages) == len(data)


def test_who_knows_no_bundles_finds_a_message_for_something_else() -> None:
    raw = encode_bundle([bytes(100), bytes(100)])
    with pytest.raises(RemoteProtocolError, match="an envelope for b'potluck bundle'"):
        open_envelope(raw, verifier=Ed25519Verifier(), domain=ROUND_DOMAIN, run_id=None, now_unix_ms=None)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", "nothing in it"),
        (b"\0\0\0", "cut off at byte 16"),
        (b"\0\0\0\x05abcd", "a part of 5 bytes at byte 16 of a bundle"),
        (b"\xff\xff\xff\xff", "a part of 4294967295 bytes"),
        (b"\0\0\0\0" * (MAX_BUNDLED + 1), f"more than {MAX_BUNDLED} messages"),
        (bytes(MAX_BUNDLE_BYTES + 1), "a bundle of"),
    ],
)
def test_a_bundle_that_is_empty_torn_or_too_much_is_refused(body: bytes, found: str) -> None:
    with pytest.raises(RemoteProtocolError, match=found):
        decode_bundle(TAG + body)


@pytest.mark.parametrize(
    "messages", [[], [b"alone"], [b""] * (MAX_BUNDLED + 1), [b"", bytes(MAX_BUNDLE_BYTES)]], ids=len
)
def test_more_than_a_bundle_may_have_is_not_bundled(messages: list[bytes]) -> None:
    with pytest.raises(LocalProtocolError, match="in a bundle"):
        encode_bundle(messages)


def test_an_answer_takes_no_bytes_where_all_were_taken() -> None:
    assert encode_answer(["", ""]) == b""
    assert decode_answer(b"", 2) == ("", "")


@given(REASONS)
def test_each_message_has_its_own_answer(reasons: list[str]) -> None:
    assert decode_answer(encode_answer(reasons), len(reasons)) == tuple(reasons)


def test_a_long_reason_is_cut_and_what_cannot_be_shown_is_not() -> None:
    assert decode_answer(encode_answer(["x" * 1000, "a\nb"]), 2) == ("x" * MAX_REASON_BYTES, "a b")


@pytest.mark.parametrize(
    ("answer", "num_messages"),
    [
        (encode_answer(["no", "no"]), 3),
        (encode_answer(["no", "no", "no"]), 2),
        (b"\0", 2),
        (b"\x01\x00x", 2),
        (bytes(2 * (2 + MAX_REASON_BYTES) + 1), 2),
    ],
)
def test_an_answer_to_something_else_is_refused(answer: bytes, num_messages: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_answer(answer, num_messages)
