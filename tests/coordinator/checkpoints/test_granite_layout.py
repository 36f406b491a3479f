"""The files that other programs load of a merged model give its logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from averaging.models.llama.config import LlamaConfig
from coordinator.checkpoints.granite_layout import granite_config, granite_tensors
from peer.models.mixture import MixtureDecoder
from protocol.tensors.expert_schema import MixtureConfig


@pytest.mark.parametrize(
    ("top_k", "others"),
    [
        (1, {}),
        (2, {"is_tied": False}),
        (1, {"is_tied": False, "head_dim": 6}),
        (2, {"rope_scaling": "linear", "rope_factor": 4.0}),
    ],
    ids=["tied", "untied", "wide heads", "stretched positions"],
)
def test_transformers_finds_the_logits_of_our_own_mixture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, top_k: int, others: dict[str, object]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(7)
    sizes = {"dim": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 24, "context_tokens": 16}
    decoder = LlamaConfig.model_validate({**sizes, **others})
    mixture = MixtureConfig(num_experts=5, ffn_dim=12, top_k=top_k)
    held = [0, 2, 3]
    model = MixtureDecoder(decoder, mixture, held, is_merged=True)
    for name, parameter in model.named_parameters():
        if name.endswith("router.weight"):
            torch.nn.init.normal_(parameter)
    save_file(granite_tensors(decoder, model.state_dict()), tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(granite_config(decoder, mixture, len(held))))
    loaded, reported = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(reported[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tokens_BT = torch.randint(257, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(loaded(tokens_BT).logits, model(tokens_BT), rtol=0.0, atol=1e-5)
