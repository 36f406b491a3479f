"""The anchor before the first commit: the same bytes on every peer, computed from the manifest's seed alone.

torch's own initialisers are vectorised differently on different instruction sets. So the values come from PCG64's raw integers, a
stream that NumPy keeps stable, by exact operations.
"""

from __future__ import annotations

from math import sqrt
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import torch

from protocol.tensors.model_config import layer_of
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

FloatArray = npt.NDArray[np.float32]

INIT_STD: Final = 0.02
"""Standard deviation of the weights (GPT-2 report, section 2.3). They are uniform, so their bound is sqrt(3) times it."""

_AT_ONCE: Final = 1 << 18


def genesis_anchor(schema: TensorSchema, seed: int, model: TensorSchema | None = None) -> torch.Tensor:
    """(N,) float32, as each tensor's `start` says: ones, zeros, or uniform noise. Tensors that write into the residual stream are
    scaled by 1 / sqrt(2 layers) (GPT-2 report, section 2.3). Noise by the columns is within 1 / sqrt(columns), as `peft` begins a
    LoRA adapter (Kaiming's uniform noise with a = sqrt(5)).

    Args:
        model: all tensors of the model, if the unit has only some. A tensor's values do not depend on its unit.
    """
    tensors = (model or schema).tensors
    num_layers = max(1, len({layer_of(spec.name) for spec in tensors} - {None}))
    places = {spec.name: place for place, spec in enumerate(tensors)}
    anchor = np.empty(schema.num_elements, dtype=np.float32)
    for spec in schema.tensors:
        begin = schema.offset(spec.name)
        _fill(anchor[begin : begin + spec.num_elements], spec, places[spec.name], seed, num_layers)
    return torch.from_numpy(anchor)


def _fill(values: FloatArray, spec: TensorSpec, index: int, seed: int, num_layers: int) -> None:
    """Write the (n,) values of a tensor in parts, since raw integers take twice the memory of the values."""
    bound = sqrt(3.0) * INIT_STD
    match spec.start:
        case "ones" | "zeros":
            values[:] = 1.0 if spec.start == "ones" else 0.0
            return
        case "residual":
            bound /= sqrt(2.0 * num_layers)
        case "fan_in":
            bound = 1.0 / sqrt(spec.shape[-1])
        case "noise":
            pass
        case _:
            assert_never(spec.start)
    source = np.random.PCG64([seed, index])
    for begin in range(0, len(values), _AT_ONCE):
        part = values[begin : begin + _AT_ONCE]
        # 24 bits fill a float32's mantissa: k / 2^23 - 1 is exact, and one multiplication rounds once.
        part[:] = source.random_raw(len(part)) >> np.uint64(40)
        part /= np.float32(1 << 23)
        part -= np.float32(1.0)
        part *= np.float32(bound)
