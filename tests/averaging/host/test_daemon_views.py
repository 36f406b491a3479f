"""The status of a machine's daemons, as text and as JSON."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace

import pytest

from averaging.host.daemon_views import (
    WIDTH,
    DaemonView,
    PeerOrder,
    columns_of_output,
    peers_json,
    peers_text,
    rounds_json,
    rounds_text,
    runs_json,
    runs_text,
    sorted_peers,
    status_json,
    status_text,
    table,
)

A, B = "12D3KooWA" + "a" * 43, "12D3KooWB" + "b" * 43


def _round(index: int) -> dict[str, object]:
    return {
        "index": index,
        "commit": "ab" * 32,
        "members": [A, B],
        "weights": {A: 0.25, B: 0.75},
        "coverage": 0.9,
        "omitted": [{"peer": "c", "reason": "too late"}],
        "lone": False,
        "total_tokens": 1_000_000 * index,
        "unix_s": None,
    }


PEERS: tuple[dict[str, object], ...] = (
    {
        "peer": A,
        "name": "brisk-lentil",
        "state": "training",
        "index": 7,
        "tokens_per_s": 1234.0,
        "loss": 1.386,
        "tokens_counted": 14_745_600,
        "here_s": 9000.0,
    },
    {"peer": B, "name": "calm-otter", "state": "silent", "index": 6, "tokens_per_s": None, "last_seen_s": 95.0},
)
HOST = DaemonView("host", "/state/host", True, "", {"run": "r"}, ("the host's line",), PEERS, (_round(1), _round(2)))
GONE = DaemonView("peer", "/state/peer", False, "no peer runs from /state/peer", {})


def test_that_no_daemon_runs_is_left_to_the_error_that_follows() -> None:
    left = replace(GONE, status={"state": "left"}, lines=("calm-otter: left",))
    assert status_text([left, GONE]) == ["last status of the peer in /state/peer", "calm-otter: left"]
    assert status_text([GONE]) == peers_text([left]) == rounds_text([left], 5) == []


def test_status_says_what_runs_and_what_does_not() -> None:
    assert status_text([HOST, GONE]) == [
        "host, running, in /state/host",
        "the host's line",
        "",
        "no peer runs from /state/peer",
    ]


def test_json_always_has_both_kinds() -> None:
    both = json.loads(json.dumps(status_json([HOST, GONE])))
    assert both["host"] == {"folder": "/state/host", "is_running": True, "note": "", "status": {"run": "r"}}
    assert (both["peer"]["is_running"], both["peer"]["status"]) == (False, None)
    assert status_json([GONE])["host"] is None
    assert peers_json([HOST])["peer"] is None
    assert rounds_json([HOST], 1) == {"host": [_round(2)], "peer": None}


def test_peers_are_a_table_that_fits() -> None:
    lines = peers_text([HOST])
    assert lines[0].split() == ["NAME", "STATE", "ROUND", "TOKENS/S", "BITS/BYTE", "COUNTED", "HERE", "SILENT"]
    assert lines[1].split() == ["brisk-lentil", "training", "7", "1,234", "2.000", "14.7M", "2.5", "h", "-"]
    assert lines[2].split() == ["calm-otter", "silent", "6", "-", "-", "-", "-", "2", "min"]
    assert max(map(len, lines)) <= WIDTH


def test_peers_whose_work_was_left_out_get_a_column_of_their_own() -> None:
    assert "OUT" not in peers_text([HOST])[0].split()
    first, *others = PEERS
    longest = {**first, "left_out": 0.37, "here_s": 900.0, "last_seen_s": 900.0}
    header, line, *_ = peers_text([replace(HOST, peers=(longest, *others))])
    assert "OUT" in header.split()
    assert "37%" in line
    assert max(map(len, (header, line))) <= WIDTH


def test_a_pipe_gets_each_column_of_a_peer_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    name = "brisk-lentil-of-the-far-north-by-the-cold-and-quiet-sea"
    row = {**PEERS[0], "name": name, "nickname": "n" * 32, "team": "t" * 32, "left_out": 0.5}
    text = "\n".join(peers_text([replace(HOST, peers=(row,))]))
    assert "…" not in text
    assert all(word in text for word in (name, "n" * 32, "t" * 32, "SILENT"))


def test_peers_that_came_by_the_open_door_are_told_with_their_standing_and_why() -> None:
    first, *others = ({**row, "standing": "keeper"} for row in PEERS)
    assert len(peers_text([replace(HOST, peers=(first, *others))])) == len(peers_text([HOST])), "nothing of keepers"
    audited = {"standing": "stranger", "audits_passed": 7, "audits_failed": 1, "standing_reason": "7 of 10 passed"}
    *_, header, line = peers_text([replace(HOST, peers=({**first, **audited}, *others))])
    assert header.split() == ["NAME", "STANDING", "PASSED", "FAILED", "WHY"]
    assert line.split() == ["brisk-lentil", "stranger", "7", "1", "7", "of", "10", "passed"]
    *_, line = peers_text([replace(HOST, peers=({**first, "standing": "member"}, *others))])
    assert line.split() == ["brisk-lentil", "member"], "a peer knows of no audits"


def test_the_reason_for_a_standing_is_whole_however_long_it_is() -> None:
    first, *others = PEERS
    reason = "it came by the open door, and its work was not yet counted on enough days; 3 of 10 audits passed"
    *_, line = peers_text(
        [replace(HOST, peers=({**first, "standing": "stranger", "standing_reason": reason}, *others))]
    )
    assert line.endswith(reason)


def test_peers_are_sorted_by_name_or_with_the_largest_contribution_or_speed_first() -> None:
    rows = [
        {"name": "calm-otter", "tokens_counted": 5, "tokens_per_s": None},
        {"name": "brisk-lentil", "tokens_counted": 900, "tokens_per_s": 10.0},
        {"name": "amber-fig", "tokens_per_s": 70.0},
    ]
    look = replace(HOST, peers=rows)
    found = {order: [row["name"] for row in sorted_peers(look, order).peers] for order in PeerOrder}
    assert found == {
        PeerOrder.NAME: ["amber-fig", "brisk-lentil", "calm-otter"],
        PeerOrder.COUNTED: ["brisk-lentil", "calm-otter", "amber-fig"],
        PeerOrder.SPEED: ["amber-fig", "brisk-lentil", "calm-otter"],
    }
    assert look.peers == rows


def test_rounds_are_a_table_that_fits_with_the_largest_shares_by_name() -> None:
    lines = rounds_text([HOST], 1)
    assert len(lines) == 2
    assert lines[1].split()[:5] == ["2", "abababab", "2,000,000", "90%", "1"]
    assert lines[1].endswith("2: calm-otter 75%, brisk-lentil 25%")
    assert max(map(len, lines)) <= WIDTH


def test_a_pipe_cuts_no_name_of_a_member_of_a_round_and_a_terminal_gets_as_many_as_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = {f"{A[:-2]}{number:02}": 0.05 for number in range(20)}
    view = replace(HOST, rounds=[{**_round(2), "members": list(weights), "weights": weights}])
    assert rounds_text([view], 1, columns_of_output())[1].endswith(" more")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, rounds_text([view], 1, columns_of_output()))) <= 100


def _on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def test_runs_are_told_folder_by_folder_in_tables_that_fit_and_what_is_damaged_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _on_a_terminal(monkeypatch)
    hosted = {"folder": "/state/host", "name": "n" * 64, "phase": "training", "index": 120, "note": ""}
    hosted |= {"total_tokens": 14_745_600, "target_total_tokens": 20_000_000, "disk_bytes": 412_000_000}
    joined = {"folder": "/state/peer/runs/00ff", "name": "first-light", "index": 120, "disk_bytes": 9_000, "note": ""}
    damaged = {"folder": "/state/peer/runs/11ff", "name": None, "index": 3, "disk_bytes": None, "note": "bad\x1b"}
    lines = runs_text([hosted], [joined, damaged])
    assert [line.split()[:7] for line in lines] == [
        ["hosted", "from", "/state/host"],
        ["PHASE", "ROUND", "TOKENS", "OF", "SIZE", "NAME"],
        ["training", "120", "14,745,600", "20,000,000", "412.0", "MB", "n" * 28 + "…"],
        [],
        ["joined,", "in", "/state/peer/runs"],
        ["RUN", "ROUND", "SIZE", "NAME"],
        ["00ff", "120", "9.0", "kB", "first-light"],
        ["11ff", "3", "-", "?"],
        ["cannot", "be", "read", "whole:", "bad\\x1b"],
    ]
    assert max(map(len, lines)) == WIDTH
    assert json.loads(json.dumps(runs_json([hosted], [damaged]))) == {"host": [hosted], "peer": [damaged]}


def test_two_daemons_are_two_titled_tables() -> None:
    lines = peers_text([HOST, GONE])
    assert lines[0] == "host, running, in /state/host"
    assert lines[-1] == "no peer is known"
    assert "no round was committed yet" in rounds_text([HOST, GONE], 5)


def test_strange_rows_are_no_error() -> None:
    strange = DaemonView("host", "f", True, "", {}, (), ({},), ({}, {"weights": {1: "x"}, "omitted": 3, "commit": 5}))
    assert peers_text([strange])[1].split()[:2] == ["?", "?"]
    assert len(rounds_text([strange], 9)) == 3


def test_table_lines_up_and_fits_a_terminal_however_long_the_last_cell_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _on_a_terminal(monkeypatch)
    lines = table(
        ("NAME", "ROUND", "WHY"), [("brisk-lentil", 7, "x" * 200), ("a", 12345, "")], right=frozenset({"ROUND"})
    )
    assert lines[0] == "NAME          ROUND  WHY"
    assert lines[1].startswith("brisk-lentil      7  xxx")
    assert lines[1].endswith("…")
    assert lines[2] == "a             12345"
    assert max(len(line) for line in lines) == WIDTH


def test_table_without_rows_is_its_header() -> None:
    assert table(("A", "B"), []) == ["A  B"]


def test_cells_of_strangers_cannot_move_the_cursor_or_give_orders_to_the_table() -> None:
    assert table(("A", "B"), [("\r\x07", "[red]:smile:")]) == ["A       B", "\\r\\x07  [red]:smile:"]


def test_chosen_names_and_teams_are_listed_below_the_peers_beside_their_own_names() -> None:
    assert not any("TEAM" in line for line in peers_text([HOST]))
    hostile = {**PEERS[0], "nickname": "calm-otter", "team": "oak\x1b[2J"}
    lines = peers_text([replace(HOST, peers=(hostile, PEERS[1]))])
    assert lines[-6:] == [
        "",
        "NAME          NICKNAME    TEAM",
        "brisk-lentil  calm-otter  oak\\x1b[2J",
        "",
        "COUNTED  PEERS  TEAM",
        "  14.7M      1  oak\\x1b[2J",
    ]


def test_peer_that_is_gone_has_no_round_that_it_never_told_and_no_speed() -> None:
    row = {
        "name": "calm-otter",
        "state": "left",
        "is_banned": True,
        "index": 0,
        "tokens_per_s": 0.0,
        "tokens_counted": 5,
    }
    view = DaemonView("host", "h", is_running=True, note="", status={}, peers=[row])
    (line,) = [line for line in peers_text([view]) if "calm-otter" in line]
    assert line.split()[:5] == ["calm-otter", "banned", "-", "-", "-"]
