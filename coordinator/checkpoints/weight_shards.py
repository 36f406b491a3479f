"""Weights of a large model in several files with an index, as transformers writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coordinator.checkpoints.tensor_files import TensorSource

WEIGHTS_NAME: Final = "model.safetensors"
INDEX_NAME: Final = "model.safetensors.index.json"

MOST_SHARD_BYTES: Final = 5_000_000_000
"""Bytes of the tensors in one file. A larger tensor has a file of its own."""


def weight_shards(tensors: Mapping[str, TensorSource]) -> dict[str, dict[str, TensorSource]]:
    """The tensors of each file, by the file's name, in their order. One file for all if they are not more than a file takes."""
    parts: list[dict[str, TensorSource]] = [{}]
    left = MOST_SHARD_BYTES
    for name, tensor in tensors.items():
        if tensor.num_bytes > left and parts[-1]:
            parts.append({})
            left = MOST_SHARD_BYTES
        parts[-1][name] = tensor
        left -= tensor.num_bytes
    if len(parts) == 1:
        return {WEIGHTS_NAME: parts[0]}
    return {f"model-{place:05d}-of-{len(parts):05d}.safetensors": part for place, part in enumerate(parts, 1)}


def weights_index(shards: Mapping[str, Mapping[str, TensorSource]]) -> dict[str, object]:
    """Content of the index: the file of each tensor, and the bytes of all."""
    total = sum(tensor.num_bytes for part in shards.values() for tensor in part.values())
    places = {name: file for file, part in shards.items() for name in part}
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
