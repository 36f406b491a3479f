"""From weights that somebody has to weights that they can use: a checkpoint of transformers becomes a run.toml, a host and two real
peers train it on for two rounds, and transformers loads the export.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from coordinator.checkpoints.checkpoints import verify_checkpoint
from peer.models.checkpoint_sample import read_model
from tests.averaging.models.llama.test_layout import saved, theirs
from tests.e2e.processes import ROOT, environment, run_of_two
from tests.forked import Forked

CHANGES = {
    "total_tokens = 20_000_000": "total_tokens = 16_384",
    'source = "python-stdlib"': 'source = "text"\nglob = "*.md"',
    "heldout_every = 20": "heldout_every = 2",
    "learning_rate = 2e-5": "learning_rate = 2e-4",
    "warmup_tokens = 400_000": "warmup_tokens = 0",
    "target_tokens = 7_680": "target_tokens = 1_024",
    "longest_interval_s = 60.0": "longest_interval_s = 4.0",
    "every_rounds = 5": "every_rounds = 100",
}


def test_a_checkpoint_of_transformers_is_trained_on_by_two_peers_and_comes_back_to_it(
    tmp_path: Path, forked: Forked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = saved(tmp_path / "weights", theirs("qwen3", head_dim=12, num_key_value_heads=1, sharded=True))
    for number in range(4):
        (tmp_path / f"{number}.md").write_text(f"{number} " + (ROOT / "README.md").read_text(encoding="utf8"))

    def potluck(*arguments: str) -> None:
        done: subprocess.CompletedProcess[str] = forked.run(*arguments, cwd=ROOT, environment=environment())
        assert done.returncode == 0, done.stderr

    run_file = tmp_path / "run.toml"
    potluck("init", str(run_file), "--from", str(tmp_path / "weights"))
    text = run_file.read_text()
    for old, new in CHANGES.items():
        assert old in text
        text = text.replace(old, new, 1)
    run_file.write_text(text)
    run_of_two(tmp_path, forked)

    last = [json.loads((tmp_path / name / "final_status.json").read_bytes()) for name in ("a", "b")]
    assert last[0]["state_root"] == last[1]["state_root"]
    (checkpoint,) = (tmp_path / "host" / "checkpoints").glob("0*")
    assert verify_checkpoint(checkpoint).index >= 2
    potluck("checkpoint", "export", str(tmp_path / "a"), str(tmp_path / "out"))
    after, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    assert type(after) is type(before)
    tokens_BT = torch.randint(257, (3, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        was, found = (model(tokens_BT).logits for model in (before, after))
        torch.testing.assert_close(found, read_model(checkpoint).decoder()(tokens_BT), rtol=1e-4, atol=1e-4)
    moved = float((found - was).abs().mean() / was.std())
    assert 0.001 < moved < 0.5, "trained, and from these weights on"
