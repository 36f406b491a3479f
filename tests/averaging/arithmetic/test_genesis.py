from __future__ import annotations

from hashlib import sha256

import torch

from averaging.arithmetic.genesis import INIT_STD, genesis_anchor
from averaging.models.llama.config import LlamaConfig
from protocol.tensors.model_config import model_schema

SCHEMA = model_schema(LlamaConfig(dim=64, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=176, context_tokens=16))


def _tensor(anchor_N: torch.Tensor, name: str) -> torch.Tensor:
    spec = next(spec for spec in SCHEMA.tensors if spec.name == name)
    return anchor_N[SCHEMA.offset(name) :][: spec.num_elements]


def test_a_seed_gives_the_same_bytes_for_ever() -> None:
    digest = sha256(genesis_anchor(SCHEMA, 1).numpy().astype("<f4").tobytes()).hexdigest()
    assert digest == sha256(genesis_anchor(SCHEMA, 1).numpy().astype("<f4").tobytes()).hexdigest()
    assert not torch.equal(genesis_anchor(SCHEMA, 1), genesis_anchor(SCHEMA, 2))


def test_norms_begin_at_one_and_weights_have_the_stated_spread() -> None:
    anchor_N = genesis_anchor(SCHEMA, 1)
    assert bool((_tensor(anchor_N, "layers.2.ffn_norm.weight") == 1.0).all())
    wide, narrow = _tensor(anchor_N, "layers.0.w_up.weight"), _tensor(anchor_N, "layers.0.w_down.weight")
    assert abs(float(wide.std()) / INIT_STD - 1) < 0.05
    assert abs(float(narrow.std()) / (INIT_STD / 8**0.5) - 1) < 0.05
    assert abs(float(wide.mean())) < INIT_STD / 20


def test_two_tensors_of_one_shape_differ() -> None:
    anchor_N = genesis_anchor(SCHEMA, 1)
    assert not torch.equal(_tensor(anchor_N, "layers.0.wq.weight"), _tensor(anchor_N, "layers.1.wq.weight"))
