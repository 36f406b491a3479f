from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.ledger.run_memory import Credits, RunPast
from coordinator.presence.presence import PeerEntry
from coordinator.progress.run_view import RunPicture
from coordinator.status.row_pages import MAX_SEARCH, PeerQuery, page_number, peer_page, round_page
from coordinator.status.run_json import PEERS_A_PAGE, ROUNDS_A_PAGE, now_json, status_json
from protocol.errors import RemoteProtocolError
from protocol.identity.chosen_name import ChosenName
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.lineage.round_row import Counted, Disagreed
from tests.coordinator.progress.test_run_view import peer, picture, timed

NOW_S = 100.0
IDS = [PeerId(f"peer{number:04d}") for number in range(250)]
AWAY = PeerId("somebody away")
PAST = RunPast(Credits(0, by_peer={AWAY: Counted(5000, 3)}))


def crowded() -> RunPicture:
    """250 peers of different speeds, of which every fifth is silent, and rounds for three pages."""
    entries = {
        each: PeerEntry(replace(peer(), tokens_per_s=float(number)), 95.0 if number % 5 else 1.0)
        for number, each in enumerate(IDS)
    }
    rounds = [timed(index, 300 * index, 100 + index) for index in range(1, 2 * ROUNDS_A_PAGE + 6)]
    return replace(picture(rounds), peers=entries)


def rows(found: object) -> list[dict[str, object]]:
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("order", ["name", "counted", "speed"])
def test_pages_have_every_peer_once_in_one_order(order: str) -> None:
    pages = [peer_page(crowded(), NOW_S, PAST, PeerQuery(page, order)) for page in range(3)]
    assert {page["num_pages"] for page in pages} == {3}
    assert {page["num_found"] for page in pages} == {251}
    shown = [row for page in pages for row in rows(page["peers"])]
    assert sorted(str(row["peer"]) for row in shown) == sorted([*IDS, AWAY])
    is_gone = [row["state"] in ("silent", "away") for row in shown]
    if order == "name":
        assert is_gone == sorted(is_gone), "those that are here come first"
        assert [row["name"] for row in shown if row["state"] == "training"] == sorted(
            peer_name(each) for number, each in enumerate(IDS) if number % 5
        )
    elif order == "counted":
        assert shown[0]["peer"] == AWAY
    else:
        assert shown[0]["peer"] == IDS[249]


def test_a_search_finds_names_nicknames_teams_and_ids_in_any_case() -> None:
    shown = crowded()
    chosen = replace(shown.peers[IDS[7]].report, chosen=ChosenName("Anna", "Oak"))
    shown = replace(shown, peers={**shown.peers, IDS[7]: replace(shown.peers[IDS[7]], report=chosen)})
    for search in ("anna", "OAK", "peer0007", peer_name(IDS[7]).upper()):
        found = rows(peer_page(shown, NOW_S, PAST, PeerQuery(search=search))["peers"])
        assert IDS[7] in [row["peer"] for row in found]
        assert len(found) < PEERS_A_PAGE
    none = peer_page(shown, NOW_S, PAST, PeerQuery(search="nobody is called so"))
    assert (none["peers"], none["num_found"], none["num_pages"]) == ([], 0, 1)


def test_status_and_pages_tell_how_much_of_a_peers_newest_work_was_left_out() -> None:
    shown, member = crowded(), IDS[0]
    row = replace(shown.rounds[-1].row, members=(member,), disagreed=(Disagreed(member, 0.5, -1.0),))
    shown = replace(
        shown, rounds=[replace(shown.rounds[-1], row=row)], peers={each: shown.peers[each] for each in IDS[:5]}
    )
    for peers in (now_json(shown, NOW_S)["peers"], peer_page(shown, NOW_S, PAST, PeerQuery())["peers"]):
        left_out = {row["peer"]: row["left_out"] for row in rows(peers) if row["peer"] != AWAY}
        assert left_out == {each: 0.5 if each == member else 0.0 for each in IDS[:5]}


def test_rounds_come_newest_page_first_and_oldest_first_in_a_page() -> None:
    shown = crowded()
    pages = [round_page(shown, page) for page in range(3)]
    indices = [[row["index"] for row in rows(page["rounds"])] for page in pages]
    assert indices[0][-1] == 125
    assert [index for page in reversed(indices) for index in page] == list(range(1, 126))
    assert rows(status_json(shown, NOW_S)["rounds"]) == rows(pages[0]["rounds"])
    assert status_json(shown, NOW_S)["num_rounds"] == 125


@pytest.mark.parametrize("page", [3, 10**8])
def test_a_page_that_is_not_there_is_refused_with_those_that_are(page: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"page {page}; expected 0 to 2"):
        peer_page(crowded(), NOW_S, PAST, PeerQuery(page))
    with pytest.raises(RemoteProtocolError, match=f"page {page}; expected 0 to 2"):
        round_page(crowded(), page)


@pytest.mark.parametrize("text", ["-1", "1.5", "", "x", "9" * 10, "\u0661", "1e3"])
def test_a_page_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a whole number from 0 on"):
        page_number(text)


def test_another_order_and_a_search_without_end_are_refused_by_name() -> None:
    with pytest.raises(RemoteProtocolError, match="order 'wealth'; expected one of name, counted, speed"):
        PeerQuery(order="wealth")
    with pytest.raises(RemoteProtocolError, match=f"at most {MAX_SEARCH}"):
        PeerQuery(search="x" * (MAX_SEARCH + 1))


def test_the_status_of_a_large_run_names_the_peers_of_one_page_and_counts_all() -> None:
    status = now_json(crowded(), NOW_S, PAST)
    assert len(rows(status["peers"])) == PEERS_A_PAGE
    assert {row["state"] for row in rows(status["peers"])} == {"training"}
    assert (status["num_peers"], status["num_here"], status["num_away"]) == (250, 200, 1)
