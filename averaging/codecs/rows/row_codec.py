"""What a module of row codecs has to give."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.codec import FloatArray
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.kinds.boundary_table import BoundaryFacts

ByteArray = npt.NDArray[np.uint8]


class RowCodec(ABC):
    """One way to write rows of values. Single IEEE operations and integer ones on bits only: the same bytes everywhere."""

    def __init__(self, facts: BoundaryFacts) -> None:
        self.facts = facts

    @property
    def name(self) -> str:
        """The name in run.toml."""
        return self.facts.name

    @abstractmethod
    def encode(self, values_BTD: torch.Tensor) -> bytes:
        """B x T rows of D finite values of any float dtype, on the CPU, one behind the other, `facts.row_bytes(D)` each.

        Raises:
            LocalProtocolError: values that are too large for the codec.
        """

    @abstractmethod
    def decode(self, payload: ByteArray, dim: int) -> torch.Tensor:
        """The values of whole rows of `dim` values, (n,) float32, or float64 where the codec has that.

        Raises:
            RemoteProtocolError: bytes that no encoder writes, or values that are not finite.
        """


def float32_rows(values_BTD: torch.Tensor) -> FloatArray:
    """(B x T, D) float32. Raises LocalProtocolError for values beyond it."""
    rows: FloatArray = values_BTD.float().contiguous().numpy().reshape(-1, values_BTD.shape[-1])
    if values_BTD.dtype != torch.float32 and not np.isfinite(rows).all():
        raise LocalProtocolError("a boundary with values beyond float32", "smaller ones", "leave this micro-batch out")
    return rows


def require_finite_rows(values: torch.Tensor, name: str) -> torch.Tensor:
    """The values themselves. Raises RemoteProtocolError where one is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise RemoteProtocolError(f"{name} values that are not finite", "finite values")
    return values
