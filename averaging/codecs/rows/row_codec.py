"""The interface of a row codec."""

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
    """One way to write rows of values. Use only single IEEE operations and integer ones on bits, so that all machines get the same
    bytes.
    """

    def __init__(self, facts: BoundaryFacts) -> None:
        self.facts = facts

    @property
    def name(self) -> str:
        """The name in run.toml."""
        return self.facts.name

    @abstractmethod
    def encode(self, values_BTD: torch.Tensor) -> bytes:
        """Encode B x T rows of D finite values of any float dtype on the CPU, one after another, `facts.row_bytes(D)` bytes each.

        Raises:
            LocalProtocolError: values that are too large for the codec.
        """

    @abstractmethod
    def decode(self, payload: ByteArray, dim: int) -> torch.Tensor:
        """The values of whole rows of `dim` values: (n,) float32, or float64 if that is the codec's type.

        Raises:
            RemoteProtocolError: bytes that no encoder writes, or values that are not finite.
        """


def float32_rows(values_BTD: torch.Tensor) -> FloatArray:
    """(B x T, D) float32. Raises LocalProtocolError for values beyond its range."""
    rows: FloatArray = values_BTD.float().contiguous().numpy().reshape(-1, values_BTD.shape[-1])
    if values_BTD.dtype != torch.float32 and not np.isfinite(rows).all():
        raise LocalProtocolError("a boundary with values beyond float32", "smaller ones", "leave this micro-batch out")
    return rows


def require_finite_rows(values: torch.Tensor, name: str) -> torch.Tensor:
    """Returns `values`. Raises RemoteProtocolError if one is not finite."""
    if not bool(torch.isfinite(values).all()):
        raise RemoteProtocolError(f"{name} values that are not finite", "finite values")
    return values
