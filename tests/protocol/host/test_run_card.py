"""Cards of open runs: signed, bounded, and harmless to show."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from protocol.errors import ConfigError, PotluckError, RemoteProtocolError
from protocol.host.run_card import (
    CARD_DOMAIN,
    CARD_LIFE_S,
    MAX_ABOUT,
    MAX_CARD_BYTES,
    MAX_NAME,
    RunCard,
    decode_cards,
    encode_cards,
    good_cards,
    one_line,
    open_card,
    seal_card,
)
from protocol.identity.credential import make_ca
from protocol.identity.envelope import seal
from protocol.identity.identity import Identity
from protocol.identity.invite import Invite
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import RunId

HOST, OTHER, NOW = Identity(b"h" * 32), Identity(b"o" * 32), 1_700_000_000.0
RUN, VERIFIER = RunId(b"r" * 32), Ed25519Verifier()
CA = make_ca(b"c" * 32, now_unix_s=NOW)
OPEN = Invite(
    ("192.0.2.7:4600",), CA.certificate_der, RUN, b"", 0, (f"/ip4/192.0.2.7/tcp/1/p2p/{HOST.peer_id}",), 0, True
)
CARD = RunCard("tiny", "a small model of plain words", "llama, 12M values", OPEN.encode(), 1000, 250, 3)


def _sealed(payload: object, run_id: RunId = RUN, made_unix_s: float = NOW) -> bytes:
    data = json.dumps(payload).encode("ascii")
    made = int(made_unix_s)
    return seal(HOST, CARD_DOMAIN, run_id, made, 1000 * (made + CARD_LIFE_S), data)


def _opened(raw: bytes, now_unix_s: float = NOW) -> RunCard:
    return open_card(raw, verifier=VERIFIER, now_unix_s=now_unix_s).card


def test_a_card_is_read_as_its_host_signed_it() -> None:
    found = open_card(seal_card(HOST, RUN, CARD, NOW), verifier=VERIFIER, now_unix_s=NOW + 60)
    assert (found.card, found.host, found.run_id, found.made_unix_s) == (CARD, HOST.peer_id, RUN, int(NOW))


def test_a_changed_or_old_card_and_one_from_the_future_are_refused() -> None:
    raw = seal_card(HOST, RUN, CARD, NOW)
    with pytest.raises(RemoteProtocolError, match="signature"):
        _opened(raw.replace(b'"num_peers":3', b'"num_peers":9'))
    with pytest.raises(RemoteProtocolError, match="expired"):
        _opened(raw, NOW + CARD_LIFE_S + 1)
    with pytest.raises(RemoteProtocolError, match="future"):
        _opened(raw, NOW - CARD_LIFE_S - 1)


def test_a_card_with_an_invite_or_for_another_run_than_its_line_is_refused() -> None:
    secret = replace(OPEN, secret=b"s" * 16, is_open=False).encode()
    with pytest.raises(RemoteProtocolError, match="with an invite"):
        _opened(_sealed({**asdict(CARD), "line": secret}))
    with pytest.raises(RemoteProtocolError, match="an envelope of run"):
        _opened(_sealed(asdict(CARD), RunId(b"x" * 32)))


@pytest.mark.parametrize(
    "changes",
    [
        {"line": "potluck2:junk"},
        {"line": 7},
        {"num_peers": -1},
        {"num_peers": "3"},
        {"num_peers": True},
        {"total_tokens": 1 << 80},
        {"total_tokens": 1.5},
        {"name": None, "line": "x" * 5000},
    ],
)
def test_junk_on_a_card_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(PotluckError):
        _opened(_sealed({**asdict(CARD), **changes}))


@pytest.mark.parametrize("payload", [[], "text", {"name": "x"}, 7])
def test_something_else_than_a_card_is_refused(payload: object) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        _opened(_sealed(payload))


def test_text_of_strangers_is_shown_without_control_letters_and_cut() -> None:
    nasty = "\x1b[31mred\u202egnp\r\nnext\x07" + "x" * 250
    found = _opened(_sealed({**asdict(CARD), "name": nasty, "about": nasty, "model": nasty}))
    for text, most in ((found.name, MAX_NAME), (found.about, MAX_ABOUT), (found.model, MAX_NAME)):
        assert text.isprintable()
        assert len(text) <= most
        assert "red" in text
    assert one_line("  plain  ", MAX_NAME) == "plain"


def test_a_card_that_is_too_long_is_neither_made_nor_read() -> None:
    addresses = tuple(f"host-{number}.example.org:4600" for number in range(60))
    long = replace(CARD, line=replace(OPEN, coordinator_addresses=addresses[:24]).encode(), about="a" * MAX_ABOUT)
    assert _opened(seal_card(HOST, RUN, long, NOW)) == long
    with pytest.raises(PotluckError):
        seal_card(HOST, RUN, replace(CARD, line=replace(OPEN, coordinator_addresses=addresses).encode()), NOW)
    with pytest.raises(RemoteProtocolError, match="bytes"):
        _opened(b"x" * (MAX_CARD_BYTES + 1))


def test_a_list_is_read_again_and_a_damaged_one_is_refused() -> None:
    cards = [seal_card(HOST, RUN, CARD, NOW), b"junk"]
    assert decode_cards(json.loads(json.dumps(encode_cards(cards))), 10) == cards
    assert decode_cards(encode_cards(cards), 1) == cards[:1]
    for values in (None, [], {"cards": 7}, {"cards": ["?"]}):
        with pytest.raises(RemoteProtocolError):
            decode_cards(values, 10)


def test_of_each_host_the_newest_good_card_is_shown_and_the_largest_run_first() -> None:
    old, new = seal_card(HOST, RUN, CARD, NOW - 60), seal_card(HOST, RUN, replace(CARD, num_peers=5), NOW)
    other = seal_card(OTHER, RUN, replace(CARD, name="other", num_peers=9), NOW)
    found = good_cards([new, b"junk", other, old], verifier=VERIFIER, now_unix_s=NOW)
    assert [(each.host, each.card.num_peers) for each in found] == [(OTHER.peer_id, 9), (HOST.peer_id, 5)]


def test_an_error_of_a_long_card_says_what_to_do() -> None:
    long = replace(CARD, line="potluck2:" + "x" * 2000, about="\u00e9" * MAX_ABOUT, name="\u00e9" * MAX_NAME)
    with pytest.raises(ConfigError, match="announce fewer addresses"):
        seal_card(HOST, RUN, long, NOW)
