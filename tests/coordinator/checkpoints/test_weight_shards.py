"""Large models go out in several files with an index, which transformers and we read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from coordinator.checkpoints import weight_shards
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.tensor_files import source_of
from coordinator.checkpoints.weights_import import read_weights
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder

TENSORS = {name: source_of(torch.zeros(size)) for name, size in (("c", 5), ("a", 5), ("b", 40), ("d", 1))}


def test_tensors_keep_their_order_and_a_large_one_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_shards, "MOST_SHARD_BYTES", 40)
    shards = weight_shards.weight_shards(TENSORS)
    assert {name: [*part] for name, part in shards.items()} == {
        "model-00001-of-00003.safetensors": ["c", "a"],
        "model-00002-of-00003.safetensors": ["b"],
        "model-00003-of-00003.safetensors": ["d"],
    }
    index = weight_shards.weights_index(shards)
    assert index["metadata"] == {"total_size": 4 * 51}


def test_what_fits_into_one_file_has_no_index() -> None:
    assert list(weight_shards.weight_shards(TENSORS)) == ["model.safetensors"]


def test_an_export_in_several_files_is_read_by_transformers_and_by_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(weight_shards, "MOST_SHARD_BYTES", 20_000)
    config, out = decoder(is_tied=False), tmp_path / "out"
    path = checkpoint_of(tmp_path, config)
    exported = export_checkpoint(path, out)
    assert {name for name in exported.files if name.startswith("model")} == {
        "model.safetensors.index.json",
        *set(json.loads((out / "model.safetensors.index.json").read_text())["weight_map"].values()),
    }
    assert len(list(out.glob("*.safetensors"))) > 2
    anchor_N = load_checkpoint(path)[1].anchor_N
    assert torch.equal(read_weights(out, config), anchor_N)
    model, reported = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(reported.values())
    assert sum(parameter.numel() for parameter in model.parameters()) == len(anchor_N)
