"""A run with an open door, with real processes: a stranger joins by the published line, trains and is counted, and decides nothing."""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from coordinator.ledger.ledger import open_ledger
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.rule_numbers import is_open
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.wire import decode_certificate, decode_record
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, environment, running_potluck, wait_until
from tests.e2e.run_file import run_toml, write_texts
from tests.forked import Forked
from tests.ports import free_port

RUN_TOML = run_toml(
    "open",
    5_000,
    data={"glob": "texts/*.txt"},
    round={"target_tokens": 512, "longest_interval_s": 3.0},
    admission={"open": True, "puzzle_bits": 3},
    checkpoint={"every_rounds": 4},
)

LIGHT = """
import protocol.host.card_stamp
protocol.host.card_stamp.STAMP_BITS = 3
"""
"""Stamps of a moment's work."""


def _records(state: Path) -> list[CommitRecord]:
    with open_ledger(state / "ledger.sqlite3") as ledger:
        rows = ledger.commits(UnitName("fragment-0"))
    return [decode_record(decode_certificate(row.certificate).record) for row in rows]


def _juniors(state: Path) -> Sequence[tuple[str, int, str]]:
    with sqlite3.connect(state / "ledger.sqlite3") as db:
        return db.execute("SELECT peer, standing, prefix FROM juniors").fetchall()


def _leaders(url: str) -> dict[str, dict[str, Any]]:
    """The leaderboard by standing."""
    with urllib.request.urlopen(f"{url}/api/status", timeout=30) as reply:
        return {row["standing"]: row for row in json.loads(reply.read())["leaders"]}


def test_a_stranger_that_joins_by_the_published_line_trains_and_has_no_say(tmp_path: Path, forked: Forked) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    write_texts(tmp_path)
    state = tmp_path / "host"
    port = free_port()
    own_list = f"http://127.0.0.1:{port}"
    listing = ("--http-port", str(port), "--keep-list", "--list-at", own_list)
    node = ("directory", "--port", "0", "--listen-host", "127.0.0.1", "--state-dir", str(tmp_path / "directory"))
    with ExitStack() as stack:
        directory = stack.enter_context(running_potluck(tmp_path, "directory", *node, forked=forked, before=LIGHT))
        address = directory.wait_for(r"directory (/\S+)\n")
        listing = (*listing, "--announce-dht", address)
        hosting = ("host", str(tmp_path / "run.toml"), "--open", *listing, "--state-dir", str(state), *LOOPBACK)
        host = stack.enter_context(running_potluck(tmp_path, "host process", *hosting, forked=forked, before=LIGHT))
        published, invite = host.wait_for(r"(potluck2:\S+)\n"), host.wait_for(r"(potluck1:\S+)\n")
        named = {"stranger": ("--name", "a <b>guest</b>")}
        lines = {"stranger": published, "keeper a": invite, "keeper b": invite}
        peers = [
            stack.enter_context(
                running_potluck(
                    tmp_path,
                    f"peer {name}",
                    *(
                        "join",
                        line,
                        *named.get(name, ()),
                        "--state-dir",
                        str(tmp_path / name),
                        *PEER_FLAGS,
                        "--slowdown",
                        "3",
                    ),
                    forked=forked,
                )
            )
            for name, line in lines.items()
        ]
        host.wait_for("run_listed")
        host.wait_for("run_announced")
        for where in (own_list, address):
            found = forked.run("find", where, cwd=ROOT, environment=environment(), before=LIGHT)
            assert f"potluck join {published}" in found.stdout, found.stdout + found.stderr
        for peer in peers:
            assert peer.exit_code() == 0, peer.said()
        # work is counted once a second, also after the last round
        wait_until("the stranger on the leaderboard", lambda: "stranger" in _leaders(own_list), host)
        leaders = _leaders(own_list)
        assert (leaders["stranger"]["nickname"], leaders["keeper"]["nickname"]) == ("a <b>guest</b>", "")
        assert leaders["stranger"]["tokens"] > 0
        said = host.said() + "".join(peer.said() for peer in peers)
    assert "Traceback" not in said
    ((stranger, standing, prefix),) = _juniors(state)
    assert (standing, prefix) == (int(PeerStanding.STRANGER), "127.0.0.0/24")
    records, peer = _records(state), PeerId(stranger)
    assert all(is_open(record.rules) for record in records)
    assert any(record.contributor(peer) for record in records), "it is counted"
    assert not any(peer in record.roster for record in records), "it never votes"
    assert not any(part.reducer == peer for record in records for part in record.slices), "it sums nothing"
    assert not any(record.ballot.peer == peer for record in records), "it leads nothing"
