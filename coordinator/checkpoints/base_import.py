"""Reads a checkpoint on this machine's disk as the frozen base of a run with an adapter, rounded to bfloat16. Blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from averaging.data.packing.base_shards import BaseWeights, Bits
from coordinator.checkpoints.weights_import import weights_in_order
from protocol.errors import ConfigError
from protocol.tensors.model_config import ModelConfig, model_schema


def base_weights(folder: Path, config: ModelConfig) -> BaseWeights:
    """The weights in `folder`, in the order of the model's schema. They are read while they are packed.

    Raises:
        ConfigError, StorageError: as `read_weights` in coordinator/checkpoints/weights_import.py, while they are read.
    """
    return BaseWeights(model_schema(config).num_elements, _parts(folder, config))


def _parts(folder: Path, config: ModelConfig) -> Iterator[Bits]:
    for rows in weights_in_order(folder, config):
        halves = rows.to(torch.bfloat16)
        if not bool(torch.isfinite(halves).all()):
            raise ConfigError(f"{folder}: weights beyond the largest bfloat16", "smaller numbers")
        yield halves.reshape(-1).view(torch.uint16).numpy()
