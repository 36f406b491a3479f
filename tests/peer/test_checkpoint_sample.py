from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from averaging.data.texts import Text
from averaging.data.vocabulary import train_bpe
from averaging.genesis import genesis_anchor
from peer.checkpoint_sample import sample_from_checkpoint
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import StorageError

MODEL = DecoderConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)


def _write_checkpoint(folder: Path) -> None:
    schema = decoder_schema(MODEL)
    flat_N = genesis_anchor(schema, seed=1)
    tensors: dict[str, torch.Tensor] = {}
    for spec in schema.tensors:
        start = schema.offset(spec.name)
        tensors[spec.name] = flat_N[start : start + torch.Size(spec.shape).numel()].reshape(spec.shape).clone()
    save_file(tensors, folder / "fragment-0.safetensors")
    manifest = {"unit": "fragment-0", "model": MODEL.model_dump(), "index": 3}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf8")


def test_sample_starts_with_the_prompt_and_is_the_same_each_time(tmp_path: Path) -> None:
    _write_checkpoint(tmp_path)
    text = sample_from_checkpoint(tmp_path, prompt="def ", num_tokens=12)
    assert text.startswith("def ")
    assert text == sample_from_checkpoint(tmp_path, prompt="def ", num_tokens=12)


@pytest.mark.parametrize("damage", ["manifest.json", "fragment-0.safetensors"])
def test_sample_of_a_damaged_checkpoint_names_the_folder(tmp_path: Path, damage: str) -> None:
    _write_checkpoint(tmp_path)
    (tmp_path / damage).write_bytes(b"{}")
    with pytest.raises(StorageError, match="cannot be read as a checkpoint"):
        sample_from_checkpoint(tmp_path)


def test_a_checkpoint_with_a_tokenizer_is_read_with_it(tmp_path: Path) -> None:
    _write_checkpoint(tmp_path)
    trained = train_bpe([Text(b"potluck " * 20, "train")], 257)
    (tmp_path / "tokenizer.json").write_bytes(trained.file or b"")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["tokenizer"] = {"sha256": "0" * 64, "num_bytes": 5, "end": trained.end}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert sample_from_checkpoint(tmp_path, prompt="größer ", num_tokens=8).startswith("größer ")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StorageError, match=r"tokenizer\.json cannot be read"):
        sample_from_checkpoint(tmp_path)
