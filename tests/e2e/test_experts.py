"""A small run of two experts, with real processes: each peer holds the trunk and one of them, to the end, on documents that are known
by the trunk's embeddings.
"""

from __future__ import annotations

import json
from pathlib import Path

from averaging.data.shards import MANIFEST_NAME, DatasetManifest
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.checkpoints import verify_checkpoint
from coordinator.experts.merge_inputs import merge_checkpoints
from peer.models.checkpoint_sample import sample_from_checkpoint
from peer.models.merging import merge_with_text
from tests.e2e.processes import ROOT, run_of_two
from tests.e2e.run_file import run_toml
from tests.forked import Forked

RUN_TOML = run_toml(
    "experts",
    24_000,
    run={"shards": "expert"},
    model={"num_layers": 2},
    data={"heldout_every": 2},
    round={"target_tokens": 1_024},
    checkpoint={"every_rounds": 2},
    experts={"num_experts": 2, "ffn_dim": 24, "min_documents": 4, "router_features": "embeddings"},
)


def test_a_run_of_experts_goes_to_its_end_and_leaves_the_trunk_and_all_of_them(tmp_path: Path, forked: Forked) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    for number in range(24):
        text = (ROOT / ("README.md", "potluck.py")[number % 2]).read_text(encoding="utf8")
        (tmp_path / f"{number}.md").write_text(f"{number} {text[100 * number :]}")
    run_of_two(tmp_path, forked)
    newest = max((tmp_path / "host" / "checkpoints").glob("0*"))
    manifest = verify_checkpoint(newest)
    assert manifest.total_tokens >= 24_000
    assert manifest.units is not None
    assert [unit.unit for unit in manifest.units] == ["trunk", "expert-0", "expert-1"]
    assert all(unit.index >= 1 for unit in manifest.units)
    for expert in range(2):
        export_checkpoint(newest, tmp_path / f"model-{expert}", expert)
        assert (tmp_path / f"model-{expert}" / "model.safetensors").exists()
    merge_checkpoints([newest], tmp_path / "merged", merge_with_text, tune_steps=1)
    assert (tmp_path / "merged" / "config.json").exists()
    assert sample_from_checkpoint(newest, prompt="Potluck trains", num_tokens=5)
    held = {name: _experts(tmp_path / name) for name in ("a", "b")}
    assert sorted(held.values()) == [[0], [1]]
    for name, experts in held.items():
        folders = {path.parent.name for path in (tmp_path / name).rglob("rounds.log")}
        assert folders == {"trunk", *(f"expert-{expert}" for expert in experts)}
        _check_data(tmp_path, name, experts)


def _check_data(folder: Path, name: str, experts: list[int]) -> None:
    """The peer has fetched the text of its own experts, and no other."""
    dataset = DatasetManifest.model_validate_json((folder / "host" / "data" / MANIFEST_NAME).read_bytes())
    fetched = {path.name for path in (folder / name / "data").iterdir()}
    assert fetched == {file.sha256 for file in dataset.files_of(experts)}
    assert fetched < {file.sha256 for file in dataset.files}


def _experts(state_dir: Path) -> list[int]:
    (path,) = state_dir.rglob("experts")
    experts: list[int] = json.loads(path.read_bytes())
    return experts
