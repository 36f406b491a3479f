"""The interface of every codec, and the checks that they share."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from protocol.errors import LocalProtocolError, RemoteProtocolError

FloatArray = npt.NDArray[np.float32]

SMALLEST_NORMAL: Final = np.finfo(np.float32).smallest_normal
MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
INFINITY_BITS: Final = np.uint32(0x7F800000)


@runtime_checkable
class Codec(Protocol):
    """One way to write a float32 vector."""

    @property
    def name(self) -> str:
        """The name in the manifest."""
        ...

    @property
    def leaves_out(self) -> bool:
        """Whether it writes only some of the values; the others are decoded as zeros."""
        ...

    def encode(self, values_n: torch.Tensor) -> bytes:
        """Bytes of a (n,) float32 CPU vector. Raises LocalProtocolError for values that are not finite."""
        ...

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """A (num_elements,) float32 vector. Raises RemoteProtocolError for a wrong length or values that are not finite."""
        ...

    def encoded_bytes(self, num_elements: int) -> int:
        """Exact length of the encoding of `num_elements` values."""
        ...

    def head_bytes(self, num_elements: int) -> int | None:
        """Head length of each part, if parts of `num_elements` values can be encoded as one long vector: first the heads of all
        parts, then the rest of each. None if the long encoding is not made of those of its parts.
        """
        ...


def require_vector(values_n: torch.Tensor) -> None:
    """Raises LocalProtocolError for anything but a (n,) float32 tensor."""
    if values_n.dtype != torch.float32 or values_n.dim() != 1:
        raise LocalProtocolError(f"a {values_n.dtype} tensor of {values_n.dim()} dimensions", "a float32 vector")


def require_finite_input(values_n: torch.Tensor) -> None:
    """Raises LocalProtocolError for anything but a (n,) float32 tensor of finite values."""
    require_vector(values_n)
    if not np.isfinite(values_n.numpy()).all():
        raise LocalProtocolError("a vector with values that are not finite", "finite values", "skip this contribution")


def require_length(codec: Codec, data: bytes | memoryview, num_elements: int) -> None:
    """Raises RemoteProtocolError if the length does not fit `num_elements` values. Call it before allocating memory."""
    expected = codec.encoded_bytes(num_elements)
    if len(data) != expected:
        raise RemoteProtocolError(f"{len(data)} bytes of {codec.name}", f"{expected} bytes for {num_elements} values")


def require_finite(values: FloatArray, name: str) -> FloatArray:
    """Returns `values`. Raises RemoteProtocolError if one is not finite."""
    if not np.isfinite(values).all():
        raise RemoteProtocolError(f"{name} values that are not finite", "finite values")
    return values
