"""A small run in fragments, with real processes: two peers average two fragments and the embeddings one after another, to the end. One
of them trains with two islands.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from coordinator.checkpoints.checkpoints import verify_checkpoint
from peer.models.checkpoint_sample import sample_from_checkpoint
from tests.e2e.live_trace import wait_for_whole_trace
from tests.e2e.processes import ROOT, run_of_two
from tests.e2e.run_file import run_toml
from tests.forked import Forked

RUN_TOML = run_toml(
    "streaming",
    40_000,
    model={"num_layers": 3},
    data={"heldout_every": 2},
    round={"mode": "streaming", "fragments": 2, "target_tokens": 1_536},
)


def test_a_run_in_fragments_goes_to_its_end_and_leaves_one_whole_model_and_a_live_round_shows_all_it_is_made_of(
    tmp_path: Path, forked: Forked
) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    for number in range(6):
        (tmp_path / f"{number}.md").write_text(f"{number} " + (ROOT / "README.md").read_text(encoding="utf8"))
    traced = partial(wait_for_whole_trace, folder=tmp_path / "a", target=tmp_path / "trace.json")
    run_of_two(tmp_path, forked, traced, ("--gpus", "0,1"))
    (checkpoint,) = (tmp_path / "host" / "checkpoints").glob("0*")
    manifest = verify_checkpoint(checkpoint)
    assert manifest.total_tokens >= 40_000
    assert manifest.units is not None
    assert [unit.unit for unit in manifest.units] == ["fragment-0", "fragment-1", "embeddings"]
    assert all(unit.index >= 1 for unit in manifest.units)
    for name in ("a", "b"):
        folders = {path.parent.name for path in (tmp_path / name).rglob("rounds.log")}
        assert folders >= {"fragment-0", "fragment-1", "embeddings"}, folders
    last = [json.loads((tmp_path / name / "final_status.json").read_bytes()) for name in ("a", "b")]
    assert last[0]["state_root"] == last[1]["state_root"]
    assert [(card["number"], card["left_out"]) for card in last[1]["cards"]] == [(0, ""), (1, "")]
    assert "2 islands" in last[1]["layout"]
    assert (last[0]["cards"], last[0]["layout"]) == ([], ""), "one device is told as ever"
    assert sample_from_checkpoint(checkpoint, prompt="Potluck trains", num_tokens=5)
