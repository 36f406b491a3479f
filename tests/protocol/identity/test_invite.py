from __future__ import annotations

import base64
from dataclasses import replace
from hashlib import sha256

import pytest

from protocol.errors import ConfigError, RefusedError, VersionError
from protocol.identity.credential import make_ca
from protocol.identity.invite import Invite, decode_invite, hash_secret
from protocol.ids import RunId

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


def test_marks_that_editors_and_chats_put_into_a_line_are_no_letters() -> None:
    text = INVITE.encode()
    assert decode_invite(f"\ufeff{text[:40]}\u200b{text[40:]}\u2060\r\n") == INVITE


def test_no_piece_of_an_invite_is_taken_for_an_option_wherever_the_line_was_broken() -> None:
    # All 64 letters, at every place of a group of four.
    letters = bytes(range(256)) * 3
    text = replace(INVITE, ca_certificate_der=letters).encode()
    assert "+" in text
    assert "-" not in text
    assert decode_invite(text.replace("+", "-")) == decode_invite(text)


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
        decode_invite("potluck3:abcdef")


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


def _line(body: bytes) -> str:
    return "potluck1:" + base64.urlsafe_b64encode(sha256(body).digest()[:4] + body).decode().rstrip("=")


BODY = base64.urlsafe_b64decode(INVITE.encode().removeprefix("potluck1:") + "==")[4:]


def test_an_invite_that_ends_too_early_under_a_right_checksum_is_one_clear_line() -> None:
    for length in range(len(BODY)):
        with pytest.raises(ConfigError, match="an invite without its parts"):
            decode_invite(_line(BODY[:length]))


@pytest.mark.parametrize(
    "body",
    [
        BODY + b"x",
        BODY.replace(b"10.0.0.1", b"\xff0.0.0.1"),
        BODY[: BODY.index(b"certificate")] + b"certificate" + bytes(2),
    ],
    ids=["more than its parts", "no UTF-8", "no address"],
)
def test_an_invite_whose_checksum_is_right_and_whose_parts_are_not_is_one_clear_line(body: bytes) -> None:
    with pytest.raises(ConfigError, match="an invite with"):
        decode_invite(_line(body))


NODE = "/dns4/host.example.org/tcp/1/p2p/12D3KooWBusdnuoWmPRGJqG6Gok78MF91e5Y4PxhXRANgB6PaQwD"


@pytest.mark.parametrize(
    "address",
    [NODE, NODE[:-1], NODE + "1", NODE + "l", NODE + "/p2p/", NODE + "/p2p-circuit", NODE[NODE.index("/p2p/") :]],
)
def test_any_bootstrap_address_comes_back_as_it_was(address: str) -> None:
    for bootstrap in ((address,), (address, NODE), ()):
        invite = replace(INVITE, bootstrap=bootstrap)
        assert decode_invite(invite.encode()) == invite


@pytest.mark.parametrize("seed", [b"a" * 32, b"b" * 32])
def test_of_the_certificate_of_a_run_only_what_is_its_own_is_carried(seed: bytes) -> None:
    invite = replace(INVITE, ca_certificate_der=make_ca(seed, now_unix_s=1_700_000_000.0).certificate_der)
    line = invite.encode()
    assert decode_invite(line) == invite
    assert len(line) < 335


def test_a_certificate_of_another_kind_is_carried_whole() -> None:
    ours = make_ca(b"a" * 32, now_unix_s=1_700_000_000.0).certificate_der
    other = replace(INVITE, ca_certificate_der=ours.replace(b"run authority", b"RUN authority"))
    assert decode_invite(other.encode()) == other


def test_the_whole_line_that_the_host_prints_is_an_invite_with_its_command() -> None:
    assert decode_invite(f"    potluck join {INVITE.encode()}\n") == INVITE
    assert decode_invite(f"$ potluck join {INVITE.encode()}") == INVITE
    with pytest.raises(ConfigError, match="begins with"):
        decode_invite(f"potluck leave {INVITE.encode()}")


def test_the_line_of_an_open_run_has_no_secret_no_end_and_another_beginning() -> None:
    authority = make_ca(b"c" * 32, now_unix_s=1_700_000_000.0).certificate_der
    line = Invite(("10.0.0.1:7000",), authority, RunId(b"r" * 32), b"", 0, ("/ip4/1.2.3.4",), 0, is_open=True)
    text = line.encode()
    assert text.startswith("potluck2:")
    found = decode_invite(f"potluck join {text[:30]}\n {text[30:]}")
    assert found == line
    found.ensure_fresh(4_000_000_000)
    assert len(text) < len(replace(line, secret=b"s" * 16, is_open=False).encode())


def test_an_open_line_that_is_cut_off_or_an_invite_with_its_beginning_is_refused() -> None:
    line = replace(INVITE, secret=b"", expires_unix_s=0, max_uses=0, is_open=True).encode()
    with pytest.raises(ConfigError):
        decode_invite(line[:-6])
    with pytest.raises(ConfigError):
        decode_invite(INVITE.encode().replace("potluck1:", "potluck2:"))
