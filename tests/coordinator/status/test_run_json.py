"""The run as JSON for the pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from coordinator.ledger.ledger import LossPoint
from coordinator.ledger.run_memory import Credits, RunPast
from coordinator.policy.audited_work_core import AuditedWork
from coordinator.policy.standing_core import PeerTrust
from coordinator.presence.presence import PeerEntry
from coordinator.progress.unit_holders import UnitHolders
from coordinator.status.run_json import MAX_TEAMS, PEERS_A_PAGE, now_json, public_json, status_json
from protocol.host.reports import OwnCounts
from protocol.identity.chosen_name import ChosenName
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.round_row import Counted
from tests.browser.runs import AWAY_ROUNDS, NUM_ROUNDS, after_outage
from tests.coordinator.progress.test_run_view import COMMIT, ROOT, A, B, C, peer, picture, timed


def test_status_says_for_how_long_a_peer_is_here_and_of_one_that_is_gone_nothing() -> None:
    entries = {
        A: PeerEntry(peer(), 95.0, 40.0), B: PeerEntry(peer(), 40.0, 10.0), C: PeerEntry(peer(state="left"), 99.0, 1.0),
    }  # fmt: skip
    rows = status_json(replace(picture(()), peers=entries), 100.0)["peers"]
    assert isinstance(rows, list)
    assert {row["peer"]: row["here_s"] for row in rows} == {A: 60.0, B: None, C: None}


def test_status_has_everything_and_is_json() -> None:
    points = (
        LossPoint("heldout", 1, 300, 3.0, A),
        LossPoint("heldout", 1, 300, 3.1, B),
        LossPoint("heldout", 0, 0, 5.5, A),
        LossPoint("prose", 1, 300, 3.5, A),
        LossPoint("train", 1, 300, 2.9, PeerId("")),
    )
    status = json.loads(json.dumps(status_json(picture((timed(1, 300, 100), timed(2, 600, 110)), points), 100.0)))
    assert (status["phase"], status["index"], status["total_tokens"]) == ("training", 2, 600)
    assert (status["bans"], status["forks"]) == (2, 1)
    assert status["restarted"] == "restarted at round 2; nothing was lost"
    assert status["heldout"] == [{"index": 0, "tokens": 0, "nats": 5.5}, {"index": 1, "tokens": 300, "nats": 3.0}]
    assert status["prose"] == [{"index": 1, "tokens": 300, "nats": 3.5}]
    assert status["train_loss"] == [{"index": 1, "tokens": 300, "nats": 2.9}]
    last = status["rounds"][-1]
    assert (last["weights"], last["coverage"]) == ({A: 0.25, B: 0.75}, 0.9)
    assert last["omitted"] == [{"peer": C, "reason": "too late"}]
    assert status["checkpoints"][0]["path"] == "/state/checkpoints/00000002-cc"
    by_peer = {row["peer"]: row for row in status["peers"]}
    assert (by_peer[A]["state"], by_peer[A]["state_root"]) == ("training", ROOT.hex())
    assert (by_peer[B]["state"], by_peer[B]["tokens_per_s"]) == ("silent", 0.0)
    assert status["yardsticks"] == {"zlib_bits_per_byte": 1.9, "pairs_nats_per_byte": 2.5}


def test_status_names_every_member_also_those_that_this_host_has_not_heard_and_gives_the_speed_of_the_rounds() -> None:
    burst = tuple(timed(index, 300 * index, 100 if index < 3 else 1000) for index in range(1, 9))
    status = status_json(picture(burst), 100.0)
    assert status["names"] == {peer: peer_name(peer) for peer in (A, B, C)}
    assert status["speeds"] == [[2400, 1800 / 900]]


def test_status_of_many_peers_names_those_that_hold_units_though_they_are_on_another_page() -> None:
    peers = {PeerId(f"peer {number}"): PeerEntry(peer(), 90.0) for number in range(3 * PEERS_A_PAGE)}
    last = max(peers, key=lambda each: peer_name(each))
    status = status_json(replace(picture(), peers=peers, units=(UnitHolders(UnitName("expert-0"), (last,)),)), 100.0)
    assert last not in {row["peer"] for row in status["peers"]}
    assert status["names"][last] == peer_name(last)


def test_rounds_that_came_at_once_after_an_outage_have_the_speed_of_the_time_in_which_they_were_made() -> None:
    seen = after_outage(Path("checkpoints"), 1_700_000_000)
    status = status_json(seen.picture, seen.now_s)
    points = cast("list[list[float]]", status["speeds"])
    assert len(points) == NUM_ROUNDS - 1 - (AWAY_ROUNDS - 1)
    assert [speed for _, speed in points] == [pytest.approx(25_000.0, rel=0.01)] * len(points)
    assert status["eta_s"] == pytest.approx((600_000_000 - NUM_ROUNDS * 25_000 * 180) / 25_000, rel=0.01)


def test_a_banned_peer_is_told_as_banned_to_the_host_alone_also_while_it_is_away() -> None:
    here = {B: PeerEntry(peer(), 95.0), C: PeerEntry(peer(), 95.0)}
    past = RunPast(Credits(1, COMMIT, {A: Counted(5, 1)}))
    shown = status_json(replace(picture(), peers=here, banned=frozenset((A, C))), 100.0, past)
    marks = {row["peer"]: row["is_banned"] for row in (*_rows(shown["peers"]), *_rows(shown["away"]))}
    assert marks == {A: True, B: False, C: True}
    public = public_json(shown)
    assert not any("is_banned" in row for row in (*_rows(public["peers"]), *_rows(public["away"])))


def test_the_standing_of_each_peer_and_why_is_told_of_those_that_are_here_and_away() -> None:
    trust = {A: PeerTrust(PeerStanding.MEMBER), B: PeerTrust(PeerStanding.STRANGER, AuditedWork(num_passes=3))}
    past = RunPast(Credits(1, COMMIT, {A: Counted(5, 1)}), trust=trust)
    here = {B: PeerEntry(peer(), 95.0), C: PeerEntry(peer(), 95.0)}
    shown = status_json(replace(picture(), peers=here), 100.0, past)
    rows = {row["peer"]: row for row in (*_rows(shown["peers"]), *_rows(shown["away"]))}
    assert {each: row["standing"] for each, row in rows.items()} == {A: "member", B: "stranger", C: "keeper"}
    assert (rows[B]["audits_passed"], rows[C]["audits_passed"]) == (3, 0)
    assert "3 of 10 passes by auditors" in str(rows[B]["standing_reason"])


def _rows(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def test_names_and_teams_that_peers_chose_are_told_beside_their_own_also_of_those_that_are_away() -> None:
    oak, fir = ChosenName("<b>anna</b>", "oak"), ChosenName("", "fir")
    past = RunPast(Credits(1, COMMIT, {A: Counted(5, 1), B: Counted(9, 1), C: Counted(7, 1)}), chosen={A: oak, B: oak})
    here = {
        B: PeerEntry(replace(peer(), chosen=fir), 95.0),
        C: PeerEntry(replace(peer(), chosen=ChosenName("anna", "oak")), 95.0),
    }
    shown = status_json(replace(picture(), peers=here), 100.0, past)
    told = {
        row["peer"]: (row["name"], row["nickname"], row["team"])
        for row in (*_rows(shown["peers"]), *_rows(shown["away"]))
    }
    assert told == {
        A: (peer_name(A), oak.nickname, "oak"),
        B: (peer_name(B), fir.nickname, "fir"),
        C: (peer_name(C), "anna", "oak"),
    }
    assert shown["teams"] == [
        {"team": "oak", "num_peers": 2, "tokens_counted": 12},
        {"team": "fir", "num_peers": 1, "tokens_counted": 9},
    ]
    assert public_json(shown)["teams"] == shown["teams"]


def test_no_more_teams_are_told_than_the_cap() -> None:
    past = RunPast(chosen={PeerId(f"p{n}"): ChosenName("", f"team {n}") for n in range(2 * MAX_TEAMS)})
    assert len(_rows(status_json(picture(), 100.0, past)["teams"])) == MAX_TEAMS


def test_a_peer_that_left_has_no_speed() -> None:
    left = replace(picture(), peers={A: PeerEntry(peer(state="left"), 99.0)})
    (row,) = json.loads(json.dumps(status_json(left, 100.0)))["peers"]
    assert (row["state"], row["tokens_per_s"]) == ("left", 0.0)


def test_the_text_that_was_read_of_each_source_is_the_sum_of_what_peers_tell() -> None:
    told = {A: (30, 10), B: (50, 10), C: (7,)}  # the last one is of an older release, or lies
    peers = {each: PeerEntry(replace(peer(), counts=OwnCounts(tokens)), 95.0) for each, tokens in told.items()}
    mixed = replace(picture(), peers=peers, source_names=("talk", "books"))
    assert now_json(mixed, 100.0)["sources"] == [
        {"name": "talk", "tokens": 87, "share": pytest.approx(87 / 107)},
        {"name": "books", "tokens": 20, "share": pytest.approx(20 / 107)},
    ]
    nothing = now_json(replace(picture(), source_names=("talk", "books")), 100.0)["sources"]
    assert [source["share"] for source in nothing] == [None, None]
    assert now_json(picture(), 100.0)["sources"] == []
