"""Memory for whole vectors of a unit and their encodings, and what of them belongs to which tensors."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from averaging.spare_memory import CAN_BE_KEPT, SPARE
from protocol.tensor_schema import TensorSchema

_SMALLEST_KEPT_BYTES: Final = 1 << 22
"""What is smaller the allocator has at hand itself, touched before."""


_LENGTH_BITS: Final = 4
"""Lengths of bytes are rounded up to as many bits: by an eighth at most."""


def new_vector(num_elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(num_elements,) float32 on the CPU, not filled; float64 for proofs. What is long lies in memory that is used again
    (spare_memory.py).
    """
    kind = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    num_bytes = num_elements * kind.itemsize
    if num_bytes < _SMALLEST_KEPT_BYTES or not CAN_BE_KEPT:
        return torch.from_numpy(np.empty(num_elements, dtype=kind))
    return torch.from_numpy(SPARE.take(num_bytes, kind))


def new_bytes(num_bytes: int) -> memoryview:
    """(num_bytes,) writable, with whatever is in it. What is long lies in memory that is used again, for lengths that are about the
    same: which slice is whose changes a little from round to round.
    """
    if num_bytes < _SMALLEST_KEPT_BYTES or not CAN_BE_KEPT:
        return np.empty(num_bytes, dtype=np.uint8).data
    step = 1 << (num_bytes.bit_length() - _LENGTH_BITS)
    return SPARE.take(-(-num_bytes // step) * step, np.dtype(np.uint8)).data[:num_bytes]


def picked(values_N: torch.Tensor, of: TensorSchema, wanted: TensorSchema) -> torch.Tensor:
    """The wanted tensors' values, (wanted.num_elements,), from a vector (N,) that lies as `of` says; itself where that is the same.

    Raises:
        LocalProtocolError: a wanted tensor is not there.
    """
    if of.tensors == wanted.tensors:
        return values_N
    parts = [values_N[of.offset(spec.name) :][: spec.num_elements] for spec in wanted.tensors]
    return torch.cat(parts)
