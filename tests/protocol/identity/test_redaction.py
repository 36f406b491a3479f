"""Secrets out of text."""

from __future__ import annotations

import base64
import json

import pytest

from protocol.identity.identity import Identity
from protocol.identity.redaction import HIDDEN, Redactor, spellings
from tests.protocol.identity.test_invite import INVITE

KEY = bytes(range(100, 120)) + b"\xfb\xef\xbe\xff\xff\xff" * 2
"""With the letters in which the alphabets of base64 differ."""

PEM = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\nAwEHBG0wawIBAQQg\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "text",
    [
        INVITE.encode(),
        f"join {INVITE.encode()} now",
        PEM,
        json.dumps({"pem": PEM}),
        PEM[:50],
        "Authorization: Bearer abcdefghijklmnop",
        "hf_abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnopqrstuvwx",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIx.abcdef",
        "https://user:hunter2hunter2@example.org/x",
        '"hub_token": "hunter2hunter2"',
        "password = 'hunter2hunter2'",
        "API_KEY=hunter2hunter2",
        "credential=" + "QUJD" * 10,
        "blob " + base64.b64encode(bytes(range(90))).decode(),
        "blob " + base64.urlsafe_b64encode(bytes(range(160, 250))).decode(),
    ],
)
def test_what_looks_like_a_secret_goes(text: str) -> None:
    cleaned = Redactor().clean(text)
    assert HIDDEN in cleaned
    for word in ("hunter2", "abcdefghijklmnop", "MIGHAgEA", "QUJDQUJD", "ABCDEFGHIJKLMNOP", INVITE.encode()[20:60]):
        assert word not in cleaned


@pytest.mark.parametrize("before", [b"", b"1", b"12", b"123"])
def test_known_secret_goes_in_every_spelling_and_at_every_place(before: bytes) -> None:
    clean = Redactor([KEY]).clean
    for encoded in (KEY.hex(), KEY.hex().upper()):
        assert clean(f"x {encoded} y") == f"x {HIDDEN} y"
    for encode in (base64.b64encode, base64.urlsafe_b64encode, lambda data: base64.b64encode(data, altchars=b"+_")):
        cleaned = clean(encode(before + KEY + b"after").decode())
        assert encode(KEY).decode()[4:-6] not in cleaned
        assert HIDDEN in cleaned


def test_text_secret_goes_as_it_is_and_short_ones_take_nothing_out() -> None:
    assert Redactor([b"correct horse battery"]).clean("correct horse battery!") == f"{HIDDEN}!"
    assert spellings(b"short") == []


def test_what_a_report_is_about_stays() -> None:
    peer = Identity(b"a" * 32).peer_id
    for text in (
        f"peer={peer}",
        "state root " + "ab" * 32,
        "round 7, 1,234 tokens/s",
        "/tmp/a/long-path/" + "x/" * 50 + "y",
    ):
        assert Redactor().clean(text) == text
    for text in ("tokens_ready=5 total_tokens: 7", '"tokens_per_s": 1.5', '"credential_left_s": 5.0'):
        assert Redactor().clean(text) == text


def test_addresses_of_others_get_names_that_stay_the_same() -> None:
    clean = Redactor(home="/home/ann").clean
    assert clean("/ip4/192.0.2.7/tcp/1 and 192.0.2.8, 192.0.2.7:80") == (
        "/ip4/[address 1]/tcp/1 and [address 2], [address 1]:80"
    )
    assert clean("2001:db8::1 and /dns4/ann.example/tcp/1") == "[address 4] and /dns4/[address 3]/tcp/1"
    assert clean("127.0.0.1 0.0.0.0 ::1 12:30:45 1.2.3.4.5") == "127.0.0.1 0.0.0.0 ::1 12:30:45 1.2.3.4.5"
    assert clean("/home/ann/x") == "~/x"
    assert Redactor(hides_addresses=False).clean("192.0.2.7") == "192.0.2.7"
