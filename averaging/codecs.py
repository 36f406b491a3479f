"""Codecs: float32 vectors to bytes and back, the same bytes on every instruction set.

Everything is built from single IEEE operations whose rounding is stated: division, multiplication, absolute maximum, round half
to even, clamp, conversions. Lengths are checked before anything is allocated, and what decodes is finite.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch

from protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError

FloatArray = npt.NDArray[np.float32]

INT8_BLOCK_ELEMENTS: Final = 256
"""One scale per 256 values: 1.6% more bytes than none, relative error 0.7% on real pseudo-gradients."""

FP16_MAX: Final = 65504.0


class Codec(Protocol):
    """One way to write a float32 vector."""

    @property
    def name(self) -> str:
        """The name in the manifest."""
        ...

    def encode(self, values_n: torch.Tensor) -> bytes:
        """Bytes of a (n,) float32 CPU vector. Raises LocalProtocolError for values that are not finite."""
        ...

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """A (num_elements,) float32 vector. Raises RemoteProtocolError for a wrong length or values that are not finite."""
        ...

    def encoded_bytes(self, num_elements: int) -> int:
        """Exact length of the encoding of so many values."""
        ...


def _require_finite_input(values_n: torch.Tensor) -> None:
    if values_n.dtype != torch.float32 or values_n.dim() != 1:
        raise LocalProtocolError(f"a {values_n.dtype} tensor of {values_n.dim()} dimensions", "a float32 vector")
    if not np.isfinite(values_n.numpy()).all():
        raise LocalProtocolError("a vector with values that are not finite", "finite values", "skip this contribution")


def _require_length(codec: Codec, data: bytes | memoryview, num_elements: int) -> None:
    expected = codec.encoded_bytes(num_elements)
    if len(data) != expected:
        raise RemoteProtocolError(f"{len(data)} bytes of {codec.name}", f"{expected} bytes for {num_elements} values")


def _require_finite(values: FloatArray, name: str) -> FloatArray:
    if not np.isfinite(values).all():
        raise RemoteProtocolError(f"{name} values that are not finite", "finite values")
    return values


class Fp32Codec:
    """Little-endian float32 as they are."""

    name = "fp32"

    def encode(self, values_n: torch.Tensor) -> bytes:
        """4 bytes a value."""
        _require_finite_input(values_n)
        return values_n.contiguous().numpy().astype("<f4", copy=False).tobytes()

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """The values, bit for bit."""
        _require_length(self, data, num_elements)
        values = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=True)
        return torch.from_numpy(_require_finite(values, self.name))

    def encoded_bytes(self, num_elements: int) -> int:
        """4 bytes a value."""
        return 4 * num_elements


class Fp16Codec:
    """Little-endian float16, round half to even; values beyond +-65504 are clamped there."""

    name = "fp16"

    def encode(self, values_n: torch.Tensor) -> bytes:
        """2 bytes a value."""
        _require_finite_input(values_n)
        clamped = torch.clamp(values_n, -FP16_MAX, FP16_MAX)
        return clamped.numpy().astype("<f2").tobytes()

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """Exact: every float16 is a float32."""
        _require_length(self, data, num_elements)
        values = np.frombuffer(data, dtype="<f2").astype(np.float32)
        return torch.from_numpy(_require_finite(values, self.name))

    def encoded_bytes(self, num_elements: int) -> int:
        """2 bytes a value."""
        return 2 * num_elements


class Int8Codec:
    """Blocks of 256 values: a float32 scale = absolute maximum / 127, then round half to even of value / scale in int8.

    Layout: all scales (little-endian float32), then all codes. A block of zeros has scale 0.
    """

    name = "int8"

    def encode(self, values_n: torch.Tensor) -> bytes:
        """1 byte a value and 4 a block."""
        _require_finite_input(values_n)
        num_elements = values_n.numel()
        blocks = _num_blocks(num_elements)
        padded = values_n.numpy()
        if num_elements % INT8_BLOCK_ELEMENTS:
            padded = np.zeros(blocks * INT8_BLOCK_ELEMENTS, dtype=np.float32)
            padded[:num_elements] = values_n.numpy()
        grid = padded.reshape(blocks, INT8_BLOCK_ELEMENTS)
        scales: FloatArray = np.abs(grid).max(axis=1) / np.float32(127.0)
        # A block of zeros, or of values so small that the scale underflows to zero, rounds to zeros.
        codes = grid / np.where(scales > 0, scales, np.float32(1.0))[:, None]
        np.clip(np.rint(codes, out=codes), -127.0, 127.0, out=codes)
        written: tuple[bytes, bytes] = (scales.astype("<f4").tobytes(), codes.astype(np.int8).tobytes())
        return written[0] + written[1][:num_elements]

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """Code x scale, one multiplication a value."""
        _require_length(self, data, num_elements)
        blocks = _num_blocks(num_elements)
        scales = _require_finite(np.frombuffer(data, dtype="<f4", count=blocks), "int8 scale")
        values = np.frombuffer(data, dtype=np.int8, offset=4 * blocks).astype(np.float32)
        num_full = num_elements // INT8_BLOCK_ELEMENTS
        end = num_full * INT8_BLOCK_ELEMENTS
        with np.errstate(over="ignore"):  # what overflows is refused below
            values[:end].reshape(num_full, INT8_BLOCK_ELEMENTS)[:] *= scales[:num_full, None]
            values[end:] *= scales[num_full:]
        return torch.from_numpy(_require_finite(values, self.name))

    def encoded_bytes(self, num_elements: int) -> int:
        """1 byte a value and 4 a block."""
        return num_elements + 4 * _num_blocks(num_elements)


def _num_blocks(num_elements: int) -> int:
    return -(-num_elements // INT8_BLOCK_ELEMENTS)


_CODECS: Final[dict[str, Codec]] = {codec.name: codec for codec in (Fp32Codec(), Fp16Codec(), Int8Codec())}


def codec_by_name(name: str) -> Codec:
    """The codec that the manifest names.

    Raises:
        ConfigError: no such codec.
    """
    codec = _CODECS.get(name)
    if codec is None:
        raise ConfigError(f"codec {name!r}", f"one of {', '.join(sorted(_CODECS))}")
    return codec
