"""`potluck find` as its user sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from averaging.open_runs import card_lists, card_network
from peer.finding.find_command import WARNING, add_find_command, card_lines
from protocol.host.run_card import RunCard, good_cards, seal_card
from protocol.identity.identity import Identity
from protocol.identity.names import peer_name
from tests.protocol.host.test_run_card import CARD, HOST, NOW, OTHER, RUN, VERIFIER

NODE = f"/ip4/192.0.2.1/tcp/4700/p2p/{HOST.peer_id}"


def _cli() -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_find_command(app, "For volunteers")
    return app


def _listed(monkeypatch: pytest.MonkeyPatch, *cards: tuple[Identity, RunCard]) -> None:
    raw = [seal_card(host, RUN, card, time.time()) for host, card in cards]
    monkeypatch.setattr(card_lists, "get_cards", lambda _url: [*raw, b"junk"])


def test_each_run_is_shown_with_its_host_its_words_and_the_line_that_joins_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _listed(monkeypatch, (HOST, CARD), (OTHER, replace(CARD, name="large", num_peers=40, about="")))
    result = CliRunner().invoke(_cli(), ["find", "http://list.example.org"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "large: llama, 12M values, 40 peers, 25% trained"
    assert lines[1] == f"  no words about it (host {peer_name(OTHER.peer_id)})"
    assert f"  potluck join {CARD.line}" in lines
    assert lines[-1] == WARNING


def test_cards_are_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    _listed(monkeypatch, (HOST, CARD))
    result = CliRunner().invoke(_cli(), ["find", "http://list.example.org", "--json"])
    ((found,)) = json.loads(result.output)
    assert (found["name"], found["line"], found["host"]) == (CARD.name, CARD.line, HOST.peer_id)


def test_something_else_than_an_address_is_refused_before_anything_is_asked() -> None:
    result = CliRunner().invoke(_cli(), ["find", "file:///etc/passwd"])
    assert result.exit_code != 0
    assert "no list of runs" in str(result.exception)
    assert "addresses of a directory" in str(result.exception)


@pytest.mark.parametrize("line", ["potluck1:AAAA", CARD.line])
def test_an_invite_is_no_address_and_its_reader_is_told_what_takes_it(line: str) -> None:
    result = CliRunner().invoke(_cli(), ["find", line])
    assert result.exit_code != 0
    assert "potluck join LINE" in str(result.exception)


def test_cards_of_a_directory_are_shown_like_those_of_a_list_and_those_left_out_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cards_in_directory(addresses: Sequence[str], _unix_s: object) -> tuple[list[bytes], int]:
        assert addresses == (NODE, NODE)
        return [seal_card(HOST, RUN, CARD, time.time()), b"junk"], 2

    monkeypatch.setattr(card_network, "cards_in_directory", cards_in_directory)
    result = CliRunner().invoke(_cli(), ["find", f"{NODE},{NODE}"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert f"  potluck join {CARD.line}" in lines
    assert "3 cards left out: false, too old, replaced by a newer one, or too many" in lines


def test_an_address_of_a_directory_without_its_key_is_refused_before_anything_is_asked() -> None:
    result = CliRunner().invoke(_cli(), ["find", "/ip4/192.0.2.1/tcp/4700"])
    assert result.exit_code != 0
    assert "no directory of runs" in str(result.exception)


def test_an_empty_list_says_so_and_letters_of_strangers_cannot_leave_their_line() -> None:
    assert card_lines([]) == ["no open run is listed there now"]
    assert len(card_lines([], 1)) == 2
    raw = seal_card(HOST, RUN, replace(CARD, about="\x1b[2J\nevil"), NOW)
    lines = card_lines(good_cards([raw], verifier=VERIFIER, now_unix_s=NOW))
    assert all(line.isprintable() for line in lines)
