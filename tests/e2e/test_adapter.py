"""A small run of an adapter over a base that the host packs, with real processes: two peers fetch the base, train the adapter to the
end, and have the same state. Its checkpoint writes text, and is exported in both forms.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from averaging.data.shards import ShardCache
from averaging.models.llama.config import LlamaConfig
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.checkpoints import verify_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of
from tests.e2e.processes import ROOT, environment, run_of_two
from tests.e2e.run_file import USUAL, run_toml
from tests.forked import Forked

RUN_TOML = run_toml(
    "adapter",
    6_000,
    run={"start_from": "base"},
    adapter={"rank": 2, "alpha": 4, "targets": ["q_proj", "v_proj", "down_proj"]},
    data={"heldout_every": 2},
    round={"target_tokens": 1_536, "error_feedback": 0.9, "chunk_elements": None},
)


def test_two_peers_train_an_adapter_over_a_base_to_the_end_of_the_run(tmp_path: Path, forked: Forked) -> None:
    export_checkpoint(checkpoint_of(tmp_path, LlamaConfig.model_validate(USUAL["model"])), tmp_path / "base")
    (tmp_path / "run.toml").write_text(RUN_TOML)
    for number in range(4):
        (tmp_path / f"{number}.md").write_text(f"{number} " + (ROOT / "README.md").read_text(encoding="utf8"))
    run_of_two(tmp_path, forked)
    last = [json.loads((tmp_path / name / "final_status.json").read_bytes()) for name in ("a", "b")]
    assert last[0]["state_root"] == last[1]["state_root"]
    (checkpoint,) = (tmp_path / "host" / "checkpoints").glob("0*")
    manifest = verify_checkpoint(checkpoint)
    assert (manifest.unit, manifest.state_root) == ("adapter", last[0]["state_root"])
    assert manifest.adapter is not None
    assert all(
        ShardCache(tmp_path / name / "data").path(file.sha256).exists()
        for name in ("a", "b")
        for file in manifest.adapter.base
    )

    def potluck(*arguments: str) -> subprocess.CompletedProcess[str]:
        return forked.run(*arguments, cwd=ROOT, environment=environment())

    own = [potluck("generate", str(tmp_path / name), "--prompt", "Pot", "--tokens", "5") for name in ("host", "a")]
    assert [(done.returncode, done.stderr) for done in own] == [(0, "")] * 2
    assert own[0].stdout == own[1].stdout
    for form, file in (("--adapter", "adapter_config.json"), ("--merged", "config.json")):
        done = potluck("checkpoint", "export", str(tmp_path / "b"), str(tmp_path / form), form)
        assert (done.returncode, (tmp_path / form / file).exists()) == (0, True), done.stderr
