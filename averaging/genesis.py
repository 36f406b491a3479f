"""The anchor before the first commit: the same bytes for everybody, from the manifest's seed alone.

torch's own initialisers are vectorised differently on different instruction sets, so the values come from PCG64's raw integers
(a stream that NumPy keeps stable) by exact operations.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import numpy as np
import torch

from protocol.tensor_schema import TensorSchema, TensorSpec

INIT_STD: Final = 0.02
"""Standard deviation of the weights (GPT-2 report, section 2.3); uniform, so the bound is sqrt(3) times it."""

_RESIDUAL_OUTPUTS: Final = ("wo.weight", "w_down.weight")


def genesis_anchor(schema: TensorSchema, seed: int) -> torch.Tensor:
    """(N,) float32: ones for norms, uniform noise for the rest; what writes into the residual stream is scaled by
    1 / sqrt(2 layers) (GPT-2 report, section 2.3).
    """
    num_layers = max(1, sum(spec.name.endswith("wo.weight") for spec in schema.tensors))
    parts = [_values(spec, index, seed, num_layers) for index, spec in enumerate(schema.tensors)]
    return torch.from_numpy(np.concatenate(parts))


def _values(spec: TensorSpec, index: int, seed: int, num_layers: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    if spec.name.endswith("norm.weight"):
        return np.ones(spec.num_elements, dtype=np.float32)
    bound = sqrt(3.0) * INIT_STD
    if spec.name.endswith(_RESIDUAL_OUTPUTS):
        bound /= sqrt(2.0 * num_layers)
    raw = np.random.PCG64([seed, index]).random_raw(spec.num_elements)
    # 24 bits fill a float32's mantissa: k / 2^23 - 1 is exact, and one multiplication rounds once.
    unit = (raw >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1.0)
    return (unit * np.float32(bound)).astype(np.float32)
