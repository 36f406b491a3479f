"""The demo's path with real processes: a host, three peers, one real SIGKILL, equal roots, a checkpoint that
verifies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_TOKENS = 60_000
LIMIT_S = 1500
CALM = {"POTLUCK_PEER_DUTY_PERCENT": "16"}
"""So few tokens would all be trained before who was killed is back: starting it takes processor time, too."""


@pytest.mark.timeout(LIMIT_S + 60)
def test_three_peers_end_on_one_root_although_one_was_killed_half_way(tmp_path: Path) -> None:
    summary_file = tmp_path / "summary.json"
    arguments = ["demo", "--dir", str(tmp_path / "demo"), "--json", str(summary_file), "--tokens", str(NUM_TOKENS)]
    arguments += ["--plot", str(tmp_path / "curve.png"), "--limit-s", str(LIMIT_S)]
    done = subprocess.run(
        [sys.executable, "-m", "potluck", *arguments], cwd=ROOT, env={**os.environ, **CALM},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S + 40, check=False,
    )  # fmt: skip
    logs = "\n".join(
        f"== {log.name}\n{log.read_text()[-4000:]}" for log in sorted((tmp_path / "demo").glob("logs/*.log"))
    )
    reported = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{logs}"
    assert summary_file.exists(), reported
    summary = json.loads(summary_file.read_text())
    assert (summary["ok"], summary["failures"]) == (True, []), reported
    assert len(set(summary["state_roots"].values())) == 1
    assert len(summary["state_roots"]) == 3
    assert summary["checkpoint_root"] in summary["state_roots"].values()
    assert summary["rejoin_s"] > 0
    # The run starts when all peers are there; each counts from when its training process has started and made a step.
    members = summary["members_per_round"]
    assert 3 in members, reported
    # After the kill the others meet again. On a busy machine one of them may have no step ready for a round in between.
    assert max(members[summary["rounds_before_kill"] :]) >= 2, reported
    assert summary["heldout_loss_end"] < summary["heldout_loss_start"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
