"""Memory for whole vectors of a unit and their encodings, and what of them belongs to which tensors."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from averaging.arithmetic.spare_memory import CAN_BE_KEPT, SPARE
from protocol.errors import no_memory
from protocol.tensors.tensor_schema import TensorSchema

_SMALLEST_KEPT_BYTES: Final = 1 << 22
"""What is smaller the allocator has at hand itself, touched before."""


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
    """(num_bytes,) writable, with whatever is in it. What is long lies in memory that is used again, of the next power of two: what is
    not touched of it costs nothing, and which slice is whose changes from round to round. Rounded up by an eighth at most, slices that
    changed by up to 40% kept sixteen times what a member's delta takes, after 200 rounds; so it is six, not all of
    it touched.

    Raises:
        MachineError: there is no memory for it. What was to come there is refused, and its peer goes on.
    """
    try:
        if num_bytes < _SMALLEST_KEPT_BYTES or not CAN_BE_KEPT:
            return np.empty(num_bytes, dtype=np.uint8).data
        return SPARE.take(1 << (num_bytes - 1).bit_length(), np.dtype(np.uint8)).data[:num_bytes]
    except MemoryError:
        raise no_memory(num_bytes) from None


def picked(values_N: torch.Tensor, of: TensorSchema, wanted: TensorSchema) -> torch.Tensor:
    """The wanted tensors' values, (wanted.num_elements,), from a vector (N,) that lies as `of` says; itself where that is the same.

    Raises:
        LocalProtocolError: a wanted tensor is not there.
    """
    if of.tensors == wanted.tensors:
        return values_N
    parts = [values_N[of.offset(spec.name) :][: spec.num_elements] for spec in wanted.tensors]
    return torch.cat(parts)
