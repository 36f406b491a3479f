"""Some tensors of a flat vector."""

from __future__ import annotations

import torch

from protocol.tensors.tensor_schema import TensorSchema


def picked(values_N: torch.Tensor, of: TensorSchema, wanted: TensorSchema) -> torch.Tensor:
    """The wanted tensors' values, (wanted.num_elements,), from a vector (N,) with the layout `of`."""
    return torch.cat([values_N[of.offset(spec.name) :][: spec.num_elements] for spec in wanted.tensors])
