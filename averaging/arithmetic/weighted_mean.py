"""The weighted mean of contributions, in a fixed order, one IEEE operation per kernel.

Rules: R5 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.codecs import Codec
from averaging.codecs.compiled import BLOCKS
from protocol.errors import LocalProtocolError
from protocol.kinds.codec_table import CODECS


def sum_dtype(result_codec: str) -> torch.dtype:
    """The dtype for summing a mean that this codec writes: float64 if the codec is exact, because the error of a float32 sum grows
    with the number of members. Any other codec rounds far more coarsely.
    """
    return torch.float64 if CODECS[result_codec].is_exact else torch.float32


class WeightedSum:
    """sum_i w_i x_i, added in the order of the calls; float32 or float64. The caller keeps the order (by peer id)."""

    def __init__(self, num_elements: int, dtype: torch.dtype = torch.float32) -> None:
        self._sum_n = torch.zeros(num_elements, dtype=dtype)
        self._weight = 0

    def add(self, weight: int, values_n: torch.Tensor, *, is_spent: bool = False) -> None:
        """Add one contribution of `weight` tokens. Multiply, then add: `add(alpha=)` differs between instruction sets.

        Args:
            is_spent: `values_n` is not needed any more and may be overwritten.
        """
        _require_weight(weight)
        own_n = values_n.to(self._sum_n.dtype)
        may_change = is_spent or own_n is not values_n
        scaled_n = own_n.mul_(float(weight)) if may_change else torch.mul(own_n, float(weight))
        self._sum_n.add_(scaled_n)
        self._weight += weight

    def add_encoded(
        self, weight: int, codec: Codec, chunks: Sequence[bytes | memoryview], chunk_elements: int, most: float
    ) -> bool:
        """Add the values of whole chunks, in one pass over their bytes.

        Args:
            most: largest absolute value that is accepted.

        Returns:
            False if the compiled codecs cannot do it, or the bytes must be refused. The sum is then invalid: begin another one,
            with decoded values.
        """
        _require_weight(weight)
        self._weight += weight
        return BLOCKS is not None and BLOCKS.add(codec, chunks, chunk_elements, float(weight), most, self._sum_n)

    def mean(self) -> torch.Tensor:
        """Sum / weight, (n,) float32.

        Raises:
            LocalProtocolError: all weights are zero, so there is no mean (R5).
        """
        if self._weight == 0:
            raise LocalProtocolError("a weighted mean with total weight 0", "at least one token")
        return torch.div(self._sum_n, float(self._weight))


def _require_weight(weight: int) -> None:
    if weight < 0 or weight > 1 << 53:
        raise LocalProtocolError(f"weight {weight}", "0 to 2^53 tokens")
