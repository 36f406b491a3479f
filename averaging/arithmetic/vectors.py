"""Memory for whole vectors of a unit and their encodings."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from averaging.arithmetic.spare_memory import CAN_BE_KEPT, SPARE
from protocol.errors import no_memory

_SMALLEST_KEPT_BYTES: Final = 1 << 22
"""Smaller memory comes from the allocator, which reuses it well."""


def new_vector(num_elements: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Uninitialised (num_elements,) float32 on the CPU; float64 for proofs. Long vectors use pooled memory (spare_memory.py)."""
    kind = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
    num_bytes = num_elements * kind.itemsize
    if num_bytes < _SMALLEST_KEPT_BYTES or not CAN_BE_KEPT:
        return torch.from_numpy(np.empty(num_elements, dtype=kind))
    return torch.from_numpy(SPARE.take(num_bytes, kind))


def new_bytes(num_bytes: int) -> memoryview:
    """Uninitialised, writable (num_bytes,). Long ones use pooled memory, rounded up to a power of two. Pages that are not touched
    cost nothing. Lengths of slices change from round to round, and with finer rounding the pool would hold too many lengths.

    Raises:
        MachineError: there is not enough memory. The caller refuses what was to be stored there.
    """
    try:
        if num_bytes < _SMALLEST_KEPT_BYTES or not CAN_BE_KEPT:
            return np.empty(num_bytes, dtype=np.uint8).data
        return SPARE.take(1 << (num_bytes - 1).bit_length(), np.dtype(np.uint8)).data[:num_bytes]
    except MemoryError:
        raise no_memory(num_bytes) from None
