"""A tiny frozen base with an adapter, for tests."""

from __future__ import annotations

from pathlib import Path

import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.packing.base_shards import BaseWeights, write_base
from peer.models.adapted_decoder import adapted_decoder, base_of
from peer.models.decoder import Decoder, load_flat
from peer.training.training_plan import TrainingPlan
from protocol.tensors.adapter_schema import AdapterConfig
from protocol.tensors.model_config import ModelConfig, model_schema
from tests.peer.training_world import MODEL, training_plan

ADAPTER = AdapterConfig(rank=2, alpha=4.0, targets=("q_proj", "v_proj", "down_proj"))
CPU = torch.device("cpu")


def base_values(config: ModelConfig = MODEL, seed: int = 5) -> torch.Tensor:
    """(N,) float32: values of a base that bfloat16 has, three times as large as first values."""
    return (genesis_anchor(model_schema(config), seed) * 3).bfloat16().float()


def base_shards(folder: Path, config: ModelConfig = MODEL, seed: int = 5, shard_bytes: int = 4096) -> tuple[Path, ...]:
    """The shards of that base."""
    folder.mkdir(exist_ok=True, parents=True)
    bits = base_values(config, seed).bfloat16().view(torch.uint16).numpy()
    entries = write_base(BaseWeights(len(bits), iter([bits[:7], bits[7:]])), folder, shard_bytes)
    return tuple(folder / entry.sha256 for entry in entries)


def base_decoder(config: ModelConfig = MODEL, seed: int = 5) -> Decoder:
    """The base as an ordinary decoder in float32."""
    made = Decoder(config)
    load_flat(made, model_schema(config), base_values(config, seed))
    return made


def adapted(folder: Path, config: ModelConfig = MODEL, adapter: AdapterConfig = ADAPTER) -> Decoder:
    """The base with an adapter, whose values are noise."""
    made = adapted_decoder(config, adapter, base_of(base_shards(folder, config), config), CPU)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 20)
    return made


def adapter_plan(folder: Path, **changes: object) -> TrainingPlan:
    """A plan of training with that base."""
    shards = base_shards(folder / "base")
    return training_plan(folder, adapter=ADAPTER, base_shards=shards, **changes)
