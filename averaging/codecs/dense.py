"""Dense codecs: every value is written, in 32 to 4 bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.codec import (
    INFINITY_BITS,
    MAGNITUDE,
    SMALLEST_NORMAL,
    FloatArray,
    require_finite,
    require_finite_input,
    require_length,
    require_vector,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError

INT8_BLOCK_ELEMENTS: Final = 256
"""One scale per 256 values: 1.6% more bytes than none, relative error 0.7% on real pseudo-gradients."""

INT4_BLOCK_ELEMENTS: Final = 128
"""4.25 bits a value with a relative error of 0.117 on normal noise; blocks of 256 would take 4.125 bits and leave 0.126."""

E3M0_BLOCK_ELEMENTS: Final = 256

FP16_MAX: Final = 65504.0
_SMALLEST_NORMAL_BITS: Final = np.uint32(0x00800000)
LARGEST_SAFE_SCALE: Final = np.finfo(np.float32).max / np.float32(128)
"""Times a code of at most 128 in size it stays finite, so that the products need not be looked at."""

_CARRY_FROM_SQRT_2: Final = np.uint32((1 << 23) - 0x3504F3)
"""sqrt(2) in float32 is 0x3FB504F3: a mantissa of 0x3504F3."""

_E3M0_POWERS: Final = (0.0, *(2.0 ** (level - 7) for level in range(1, 8)))


class Fp32Codec:
    """Little-endian float32 as they are."""

    name = "fp32"
    leaves_out = False

    def encode(self, values_n: torch.Tensor) -> bytes:
        """4 bytes a value."""
        require_finite_input(values_n)
        return values_n.contiguous().numpy().astype("<f4", copy=False).tobytes()

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """The values, bit for bit."""
        require_length(self, data, num_elements)
        values = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=True)
        return torch.from_numpy(require_finite(values, self.name))

    def encoded_bytes(self, num_elements: int) -> int:
        """4 bytes a value."""
        return 4 * num_elements

    def head_bytes(self, num_elements: int) -> int | None:
        """One value after another."""
        return 0


class Fp16Codec:
    """Little-endian float16, round half to even; values beyond +-65504 are clamped there."""

    name = "fp16"
    leaves_out = False

    def encode(self, values_n: torch.Tensor) -> bytes:
        """2 bytes a value."""
        require_finite_input(values_n)
        clamped = torch.clamp(values_n, -FP16_MAX, FP16_MAX)
        return clamped.numpy().astype("<f2").tobytes()

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """Exact: every float16 is a float32."""
        require_length(self, data, num_elements)
        values = np.frombuffer(data, dtype="<f2").astype(np.float32)
        return torch.from_numpy(require_finite(values, self.name))

    def encoded_bytes(self, num_elements: int) -> int:
        """2 bytes a value."""
        return 2 * num_elements

    def head_bytes(self, num_elements: int) -> int | None:
        """One value after another."""
        return 0


def _in_blocks(values: FloatArray, block_elements: int) -> FloatArray:
    """(blocks, block_elements) of a vector, filled up with zeros."""
    blocks = -(-len(values) // block_elements)
    if len(values) % block_elements:
        padded = np.zeros(blocks * block_elements, dtype=np.float32)
        padded[: len(values)] = values
        values = padded
    return np.ascontiguousarray(values).reshape(blocks, block_elements)


def _absolute_maxima(grid: FloatArray) -> FloatArray:
    """(blocks,) of a grid. Bits of a float without its sign are ordered as its size, and those that are not finite come last.

    Raises:
        LocalProtocolError: a value that is not finite.
    """
    largest: npt.NDArray[np.uint32] = (grid.view(np.uint32) & MAGNITUDE).max(axis=1, initial=0)
    if (largest >= INFINITY_BITS).any():
        raise LocalProtocolError("a vector with values that are not finite", "finite values", "skip this contribution")
    maxima: FloatArray = largest.view(np.float32)
    return maxima


def _require_scales(scales: FloatArray, name: str) -> FloatArray:
    """Bits of floats are ordered as their sizes: those of normal numbers lie between two bounds, and what has a sign comes after."""
    bits = scales.view("<u4")
    if not ((bits == 0) | (bits - _SMALLEST_NORMAL_BITS < INFINITY_BITS - _SMALLEST_NORMAL_BITS)).all():
        raise RemoteProtocolError(f"{name} with a scale that is negative, not normal or not finite", "zero or normal")
    return scales


def _pairs_of(values: Sequence[float]) -> npt.NDArray[np.float32]:
    """(256, 2) for the 16 values of the codes; minus zero is a code that nobody writes."""
    single = np.array([np.nan if value == 0 and np.signbit(value) else value for value in values], dtype=np.float32)
    return np.stack([np.tile(single, 16), np.repeat(single, 16)], axis=1)


class BlockCodec(ABC):
    """Blocks of values with a float32 scale each. Layout: all scales (little-endian float32), then all codes, values in order.

    Args:
        block_elements: of blocks of another length than the codec's own: vectors shorter than a block are written one by one as blocks
            of their length are, so that many of one length can be written together.
    """

    name: str
    leaves_out = False
    block_elements: int
    largest_code: float
    """What the block's absolute maximum is written as: its scale is the maximum divided by it."""

    _is_bounded = False
    """Whether every code stands for a number of at most 128 in size."""

    def __init__(self, block_elements: int | None = None) -> None:
        if block_elements is not None:
            self.block_elements = block_elements

    def encode(self, values_n: torch.Tensor) -> bytes:
        """Scales, then codes."""
        require_vector(values_n)
        num_elements = values_n.numel()
        grid = _in_blocks(values_n.numpy(), self.block_elements)
        scales: FloatArray = _absolute_maxima(grid) / np.float32(self.largest_code)
        scales[scales < SMALLEST_NORMAL] = 0.0
        # Values of a block without a scale are divided by infinity, which makes them zeros. torch divides, rounds and multiplies twice
        # as fast as NumPy and more.
        divisors = torch.from_numpy(np.where(scales > 0, scales, np.float32(np.inf)))
        relative: FloatArray = torch.div(torch.from_numpy(grid), divisors[:, None]).numpy()
        written: tuple[bytes, bytes] = (scales.astype("<f4").tobytes(), self._codes(relative, num_elements))
        return written[0] + written[1]

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """Code x scale, one multiplication a value."""
        require_length(self, data, num_elements)
        blocks = -(-num_elements // self.block_elements)
        scales = _require_scales(np.frombuffer(data, dtype="<f4", count=blocks).astype(np.float32), self.name)
        codes = np.frombuffer(data, dtype=np.uint8, offset=4 * blocks)
        values = self._values(codes, num_elements)
        for block in np.flatnonzero(scales == 0):
            if values[block * self.block_elements : (block + 1) * self.block_elements].any():
                raise RemoteProtocolError(f"{self.name} with a scale of zero and codes that are not", "zeros")
        if self._is_bounded and scales.max(initial=0) <= LARGEST_SAFE_SCALE:
            self._multiply(values, scales)
        else:
            self._multiply(values, scales)
            require_finite(values, self.name)
        return torch.from_numpy(values)

    def _multiply(self, values: FloatArray, scales: FloatArray) -> None:
        values_n, scales_b = torch.from_numpy(values), torch.from_numpy(scales)
        num_full = len(values) // self.block_elements
        end = num_full * self.block_elements
        values_n[:end].view(num_full, self.block_elements).mul_(scales_b[:num_full, None])
        values_n[end:].mul_(scales_b[num_full:])

    def encoded_bytes(self, num_elements: int) -> int:
        """4 bytes a block, and the codes."""
        return 4 * -(-num_elements // self.block_elements) + self._code_bytes(num_elements)

    def head_bytes(self, num_elements: int) -> int | None:
        """The scales; of whole blocks alone, which make whole bytes of codes, too."""
        return 4 * (num_elements // self.block_elements) if num_elements % self.block_elements == 0 else None

    @abstractmethod
    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        """(blocks, block_elements) values divided by their block's scale, overwritten, as codes."""

    @abstractmethod
    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        """(num_elements,) values before their scale; NaN for a code that nobody writes."""

    @abstractmethod
    def _code_bytes(self, num_elements: int) -> int:
        """Length of the codes of so many values."""


class Int8Codec(BlockCodec):
    """Blocks of 256 values: scale = absolute maximum / 127, then round half to even of value / scale in int8."""

    name = "int8"
    block_elements = INT8_BLOCK_ELEMENTS
    largest_code = 127.0
    _is_bounded = True

    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        return _rounded(relative).tobytes()[:num_elements]

    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        signed = codes.view(np.int8)
        if signed.min(initial=0) < -self.largest_code:
            raise RemoteProtocolError(f"{self.name} with a code that nobody writes", "-127 to 127")
        return signed.astype(np.float32)

    def _code_bytes(self, num_elements: int) -> int:
        return num_elements


class _FourBitCodec(BlockCodec):
    """Two codes a byte, the first one in the low half; an odd last one leaves the high half zero."""

    _pairs: npt.NDArray[np.float32]
    """(256, 2) what each byte stands for."""

    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        if num_elements % 2 and codes[-1] >> 4:
            raise RemoteProtocolError(f"{self.name} with bits behind its last value", "zeros there")
        pairs: FloatArray = self._pairs.take(codes, axis=0)
        return pairs.reshape(-1)[:num_elements]

    def _code_bytes(self, num_elements: int) -> int:
        return -(-num_elements // 2)


class Int4Codec(_FourBitCodec):
    """Blocks of 128 values: scale = absolute maximum / 7, then round half to even of value / scale in four bits, two's complement."""

    name = "int4"
    block_elements = INT4_BLOCK_ELEMENTS
    largest_code = 7.0
    _pairs = _pairs_of([0, 1, 2, 3, 4, 5, 6, 7, np.nan, -7, -6, -5, -4, -3, -2, -1])

    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        return _packed(_rounded(relative).view(np.uint8), num_elements)


class E3m0Codec(_FourBitCodec):
    """Blocks of 256 values: scale = absolute maximum, then a sign and a level of three bits: +-2^(level - 7), or zero at level 0.

    Streaming DiLoCo (arXiv:2501.18512) sends outer gradients so. The nearest level in the log domain: between two powers
    of two the border is at sqrt(2) times the smaller one, and what is below 2^-6.5 is zero.
    """

    name = "e3m0"
    block_elements = E3M0_BLOCK_ELEMENTS
    largest_code = 1.0
    _pairs = _pairs_of([sign * power for sign in (1.0, -1.0) for power in _E3M0_POWERS])

    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        bits = relative.view(np.uint32)
        # Adding this carries into the exponent just where the mantissa is that of sqrt(2) or more.
        levels = ((bits & MAGNITUDE) + _CARRY_FROM_SQRT_2 >> 23).astype(np.int16) - (127 - 7)
        codes = np.maximum(levels, 0).astype(np.uint8)
        codes |= np.where(codes > 0, bits >> 28 & 8, 0).astype(np.uint8)
        return _packed(codes, num_elements)


def _rounded(relative: FloatArray) -> npt.NDArray[np.int8]:
    """Half to even, in place. Nothing is clamped: a scale is the maximum / 127 (or 7) to within 2^-24, so that no quotient comes near
    to half a code beyond it.
    """
    codes: npt.NDArray[np.int8] = torch.from_numpy(relative).round_().to(torch.int8).numpy()
    return codes


def _packed(codes: npt.NDArray[np.uint8], num_elements: int) -> bytes:
    """(blocks, elements) codes in the low halves of bytes, an even number of them, as two a byte."""
    flat = codes.reshape(-1)
    packed: bytes = ((flat[0::2] & 15) | (flat[1::2] << 4)).tobytes()
    return packed[: -(-num_elements // 2)]
