"""Keepers of an open run do strangers' work again: honest work passes, work on other text puts its peer aside."""

from __future__ import annotations

import json
import sqlite3
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, Running, running_potluck
from tests.e2e.run_file import run_toml
from tests.forked import Forked

STEPS = 32
RUN_TOML = run_toml(
    "audited",
    100_000_000,
    run={"min_members": 3},
    model={"dim": 32, "num_heads": 2, "num_kv_heads": 2, "ffn_dim": 64, "context_tokens": 64},
    data={"glob": "texts/*.txt"},
    inner={"learning_rate": 0.003},
    round={
        "target_tokens": 5 * STEPS * 64,
        "longest_interval_s": 20.0,
        "chunk_elements": 2048,
        "loss_gate": False,
    },
    admission={"open": True, "puzzle_bits": 3},
    checkpoint={"every_rounds": 1000},
)
OFTEN = """
import peer.audits.work_audit_core, peer.scores.scoring_core
peer.audits.work_audit_core.STRANGERS_WEIGHT = 1
peer.scores.scoring_core.SHARE_OF_TIME = 1.0
"""
"""Keepers' work is drawn as often as strangers', so that the run's usual fit is soon known, and audits take their time."""

OTHER_TEXT = """
import peer.daemon
whole = peer.daemon.training_plan
peer.daemon.training_plan = lambda *given, **named: whole(*given, **named).model_copy(update={"peer": "another"})
"""
"""It trains on windows that were not assigned to it."""


class Row(TypedDict):
    """A peer as the host's page tells it, as far as it is looked at here."""

    peer: str
    audits_passed: int
    audits_failed: int
    standing: str
    standing_reason: str


PASSES = 2
ASIDE = "auditors did its work again and found other work"


def _own_id(peer: Running) -> str:
    url = peer.wait_for(r"status page: (http://\S+?)/?\s") + "/status.json"
    with urllib.request.urlopen(url, timeout=30) as reply:
        return str(json.loads(reply.read())["peer"])


def _verdicts(state: Path) -> Sequence[tuple[str, str]]:
    with sqlite3.connect(state / "ledger.sqlite3") as db:
        return db.execute("SELECT auditor, contributor FROM verdicts").fetchall()


def _rows(host: Running) -> Mapping[str, Row]:
    url = host.wait_for(r"status +(http://\S+?)/?\s") + "/api/status"
    with urllib.request.urlopen(url, timeout=30) as reply:
        rows: list[Row] = json.loads(reply.read())["peers"]
    return {row["peer"]: row for row in rows}


def test_honest_work_of_a_stranger_passes_and_work_on_other_text_puts_its_peer_aside(
    tmp_path: Path, forked: Forked
) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    (tmp_path / "texts").mkdir()
    for name in ("LICENSE", "CHANGELOG.md", "README.md", "CONTRIBUTING.md", "SECURITY.md"):
        (tmp_path / "texts" / f"{name}.txt").write_text((ROOT / name).read_text())
    hosting = ("host", str(tmp_path / "run.toml"), "--open", "--state-dir", str(tmp_path / "host"), *LOOPBACK)
    with ExitStack() as stack:
        host = stack.enter_context(running_potluck(tmp_path, "host process", *hosting, "--no-helper", forked=forked))
        published, invite = host.wait_for(r"(potluck2:\S+)\n"), host.wait_for(r"(potluck1:\S+)\n")
        keepers = ("keeper a", "keeper b", "keeper c")
        lines = {**dict.fromkeys(keepers, invite), "honest": published, "liar": published}
        peers: dict[str, Running] = {}
        for name, line in lines.items():
            # the keepers' audits take time, and work of few steps is not judged
            slow = ("--slowdown", "3") if line == published else ()
            joining = ("join", line, "--state-dir", str(tmp_path / name), *PEER_FLAGS, "--audit-share", "1", *slow)
            before = OTHER_TEXT if name == "liar" else OFTEN
            peers[name] = stack.enter_context(
                running_potluck(tmp_path, f"peer {name}", *joining, forked=forked, before=before)
            )
        ids = {name: _own_id(peer) for name, peer in peers.items()}
        index, was_aside = 0, False
        while not (was_aside and _rows(host)[ids["honest"]]["audits_passed"] >= PASSES):
            index += 1
            peers["keeper a"].wait_for(r"round \d+ committed", index)
            row = _rows(host)[ids["liar"]]
            was_aside = was_aside or ASIDE in row["standing_reason"]
        said = host.said() + "".join(peer.said() for peer in peers.values())
        verdicts = _verdicts(tmp_path / "host")
    assert "Traceback" not in said
    assert {auditor for auditor, _ in verdicts} <= {ids[name] for name in keepers}, "strangers judge nobody"
    assert all(auditor != contributor for auditor, contributor in verdicts)
