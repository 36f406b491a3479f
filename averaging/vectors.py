"""Memory for whole vectors of a unit, and what of them belongs to which tensors."""

from __future__ import annotations

import numpy as np
import torch

from protocol.tensor_schema import TensorSchema


def new_vector(num_elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(num_elements,) float32 on the CPU, not filled; float64 for proofs. NumPy asks for large pages where torch does
    not: memory that is written for the first time costs a quarter then, 0.015 s a 100 MB for 0.06.
    """
    return torch.from_numpy(np.empty(num_elements, dtype=np.float64 if dtype == torch.float64 else np.float32))


def picked(values_N: torch.Tensor, of: TensorSchema, wanted: TensorSchema) -> torch.Tensor:
    """The wanted tensors' values, (wanted.num_elements,), from a vector (N,) that lies as `of` says; itself where that is the same.

    Raises:
        LocalProtocolError: a wanted tensor is not there.
    """
    if of.tensors == wanted.tensors:
        return values_N
    parts = [values_N[of.offset(spec.name) :][: spec.num_elements] for spec in wanted.tensors]
    return torch.cat(parts)
