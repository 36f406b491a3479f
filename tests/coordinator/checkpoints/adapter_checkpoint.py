"""A host's folder with a checkpoint of a run with an adapter: HOST/checkpoints/NAME, and the base in HOST/data."""

from __future__ import annotations

from pathlib import Path

import torch

from averaging.data.base_files import BaseFile, StoredAdapter
from averaging.models.llama.config import LlamaConfig
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpoints import CheckpointContent, write_checkpoint
from protocol.ids import CommitId
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.tensor_schema import ChunkGrid
from tests.peer.adapter_world import base_shards

NUMBERS = AdapterConfig(rank=2, alpha=3.0, targets=("q_proj", "down_proj"))


def adapter_values(config: LlamaConfig, numbers: AdapterConfig = NUMBERS) -> torch.Tensor:
    """(N,) float32: noise in A and in B."""
    schema = adapter_schema(config, numbers)
    return torch.randn(schema.num_elements, generator=torch.Generator().manual_seed(2)) / 10


def checkpoint_of_adapter(host: Path, config: LlamaConfig, numbers: AdapterConfig = NUMBERS) -> Path:
    """The checkpoint's folder."""
    shards = base_shards(host / "data", config)
    schema = adapter_schema(config, numbers)
    grid, anchor_N = ChunkGrid(schema.num_elements, 64), adapter_values(config, numbers)
    state = UnitState(schema.unit, CommitId(b"c" * 32), 3, 600, anchor_N, torch.zeros_like(anchor_N))
    base = tuple(BaseFile(sha256=path.name, num_bytes=path.stat().st_size) for path in shards)
    adapter = StoredAdapter(numbers=numbers, base_name="models/base", base=base)
    root, model = state_root(state, grid), config.model_dump()
    content = CheckpointContent("run", "ab" * 32, schema, grid, model, state, root, adapter=adapter)
    return host / "checkpoints" / write_checkpoint(host / "checkpoints", content, now_unix_s=7).path
