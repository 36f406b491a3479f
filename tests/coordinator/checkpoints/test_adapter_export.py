"""Exports of an adapter: the names and numbers that `peft` reads, and a merged model with the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from averaging.models.llama.config import LlamaConfig
from coordinator.checkpoints import adapter_export
from coordinator.checkpoints.adapter_export import export_adapter, export_merged
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.checkpoints import read_manifest
from peer.models.checkpoint_sample import read_model
from protocol.errors import ConfigError, StorageError
from protocol.tensors.adapter_schema import AdapterConfig
from tests.coordinator.checkpoints.adapter_checkpoint import NUMBERS, checkpoint_of_adapter
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder
from tests.peer.adapter_world import base_decoder

TOKENS_BT = torch.randint(257, (2, 12), generator=torch.Generator().manual_seed(5))
LAYER = "base_model.model.model.layers.0"


def own_logits(checkpoint: Path) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = read_model(checkpoint).decoder()(TOKENS_BT)
    return logits


def test_the_adapter_has_the_names_and_numbers_of_peft(tmp_path: Path) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path, decoder())
    exported = export_adapter(checkpoint, tmp_path / "out")
    assert list(exported.files)[-1] == "adapter_config.json"
    assert set(exported.files) == {path.name for path in (tmp_path / "out").iterdir()}
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text()) == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "models/base",
        "inference_mode": True,
        "r": 2,
        "lora_alpha": 3.0,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj", "down_proj"],
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }
    shapes = {name: tuple(value.shape) for name, value in load_file(tmp_path / "out/adapter_model.safetensors").items()}
    assert {name: shape for name, shape in shapes.items() if name.startswith(LAYER)} == {
        f"{LAYER}.self_attn.q_proj.lora_A.weight": (2, 16),
        f"{LAYER}.self_attn.q_proj.lora_B.weight": (16, 2),
        f"{LAYER}.mlp.down_proj.lora_A.weight": (2, 24),
        f"{LAYER}.mlp.down_proj.lora_B.weight": (16, 2),
    }
    assert len(shapes) == 8


def test_the_base_with_the_exported_products_has_our_logits(tmp_path: Path) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path, decoder())
    export_adapter(checkpoint, tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "adapter_model.safetensors")
    model = base_decoder(decoder())
    matrices = {"q_proj": "wq", "down_proj": "w_down"}
    with torch.no_grad():
        for name, a_RI in tensors.items():
            place, _, kind = name.removesuffix(".weight").rpartition(".")
            if kind == "lora_A":
                layer, part = place.split(".")[4], matrices[place.split(".")[-1]]
                b_OR = tensors[f"{place}.lora_B.weight"]
                model.get_parameter(f"layers.{layer}.{part}.weight").add_(NUMBERS.scale * b_OR @ a_RI)
        torch.testing.assert_close(model(TOKENS_BT), own_logits(checkpoint), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("targets", [("q_proj",), ()])
def test_a_merged_model_has_our_logits_in_transformers(
    tmp_path: Path, is_tied: bool, targets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_export, "_VALUES_AT_ONCE", 40)  # some rows of a matrix at a time
    numbers = AdapterConfig(rank=3, alpha=6.0, targets=targets)
    checkpoint = checkpoint_of_adapter(tmp_path, decoder(is_tied=is_tied), numbers)
    export_merged(checkpoint, tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        logits = model(TOKENS_BT).logits
    torch.testing.assert_close(logits, own_logits(checkpoint), rtol=1e-4, atol=1e-4)


def test_a_base_elsewhere_is_named(tmp_path: Path) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path / "host", decoder())
    (tmp_path / "host" / "data").rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"the base of checkpoint .* is not in .*host/data.*--base"):
        export_merged(checkpoint, tmp_path / "out")
    export_merged(checkpoint, tmp_path / "out", tmp_path / "moved")
    assert (tmp_path / "out" / "config.json").exists()


def test_a_base_with_another_hash_is_refused(tmp_path: Path) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path, decoder())
    adapter = read_manifest(checkpoint).adapter
    assert adapter is not None
    shard = tmp_path / "data" / adapter.base[0].sha256
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(StorageError, match=f"{shard.name} is lost or damaged"):
        export_merged(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_not_exported_as_a_model_nor_a_model_as_an_adapter(tmp_path: Path) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path / "host", LlamaConfig.model_validate(decoder().model_dump()))
    with pytest.raises(ConfigError, match="has an adapter; expected one of its two forms; add --adapter"):
        export_checkpoint(checkpoint, tmp_path / "out")
    whole = checkpoint_of(tmp_path, decoder())
    for export in (export_adapter, export_merged):
        with pytest.raises(ConfigError, match=r"has no adapter; expected one of a run with \[adapter\]"):
            export(whole, tmp_path / "out")
