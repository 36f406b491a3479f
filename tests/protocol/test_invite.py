from __future__ import annotations

import base64
from dataclasses import replace
from hashlib import sha256

import pytest

from protocol.errors import ConfigError, RefusedError, VersionError
from protocol.ids import RunId
from protocol.invite import Invite, decode_invite, hash_secret

INVITE = Invite(
    ("10.0.0.1:7000",),
    b"certificate",
    RunId(b"r" * 32),
    b"s" * 16,
    2_000_000_000,
    ("/ip4/1.2.3.4",),
    3,
)


def test_an_invite_survives_pasting_with_line_breaks_and_spaces() -> None:
    text = INVITE.encode()
    assert decode_invite(text) == INVITE
    assert decode_invite(f"  {text[:40]}\n   {text[40:]}\n") == INVITE


def test_every_single_mistyped_letter_is_noticed() -> None:
    text = INVITE.encode()
    for position in range(len("potluck1:"), len(text)):
        letter = "A" if text[position] != "A" else "B"
        mistyped = text[:position] + letter + text[position + 1 :]
        try:
            assert decode_invite(mistyped) == INVITE  # unused bits of the last letter
            assert position == len(text) - 1
        except ConfigError:
            pass


@pytest.mark.parametrize(
    "text", ["", "hello", "potluck1:", "potluck1:!!!!", INVITE.encode()[:-5], "potluck1:" + "A" * 9000]
)
def test_what_is_no_invite_is_one_clear_line(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        decode_invite(text)
    assert "\n" not in error.value.one_line()
    assert error.value.remedy


def test_a_newer_invite_asks_for_a_newer_potluck() -> None:
    with pytest.raises(VersionError, match="newer potluck"):
        decode_invite("potluck2:abcdef")


def test_an_expired_invite_says_so_before_anything_is_sent() -> None:
    INVITE.ensure_fresh(1_999_999_999)
    with pytest.raises(RefusedError, match="expired 2 minutes ago"):
        INVITE.ensure_fresh(2_000_000_120)


def test_the_secret_is_neither_printed_nor_stored_as_it_is() -> None:
    secret = b"0123456789abcdef"
    invite = replace(INVITE, secret=secret)
    assert secret.hex() not in repr(invite)
    assert "0123456789" not in repr(invite)
    assert hash_secret(secret) != hash_secret(b"1" * 16)


@pytest.mark.parametrize("value", [b"Infinity", b"[" * 5_000], ids=["infinity", "nesting"])
def test_an_invite_whose_checksum_is_right_and_whose_parts_are_not_is_one_clear_line(value: bytes) -> None:
    raw = base64.urlsafe_b64decode(INVITE.encode().removeprefix("potluck1:") + "==")
    body = raw[4:].replace(b"2000000000", value)
    line = base64.urlsafe_b64encode(sha256(body).digest()[:4] + body).decode()
    with pytest.raises(ConfigError, match="an invite"):
        decode_invite(f"potluck1:{line}")
