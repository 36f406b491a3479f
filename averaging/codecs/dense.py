"""The common part of the dense codecs: every value is written, in 32 to 4 bits, on its own or in blocks with a scale each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
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
from averaging.codecs.integer_codes import divided, packed
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.kinds.codec_table import CodecFacts

_SMALLEST_NORMAL_BITS: Final = np.uint32(0x00800000)
LARGEST_SAFE_SCALE: Final = np.finfo(np.float32).max / np.float32(128)
"""Largest scale whose product with any code of at most 128 in size is finite, so that the products need no check."""


class DenseCodec(ABC):
    """A codec that writes every value. A subclass names its line of the table and writes the values."""

    facts: CodecFacts
    """Its line in protocol/kinds/codec_table.py."""

    compiled_as: int | None = None
    """Its number in blocks.c; None if the library does not have it."""

    @property
    def name(self) -> str:
        """The name in the manifest."""
        return self.facts.name

    @property
    def leaves_out(self) -> bool:
        """False: a dense codec writes all values."""
        return self.facts.leaves_out

    def encoded_bytes(self, num_elements: int) -> int:
        """Exact length of the encoding of `num_elements` values."""
        return self.facts.encoded_bytes(num_elements)

    @abstractmethod
    def encode(self, values_n: torch.Tensor) -> bytes:
        """As `Codec.encode`."""

    @abstractmethod
    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """As `Codec.decode`."""

    @abstractmethod
    def head_bytes(self, num_elements: int) -> int | None:
        """As `Codec.head_bytes`."""


class PlainCodec(DenseCodec):
    """One value after another, each by itself, in whole bytes."""

    def encode(self, values_n: torch.Tensor) -> bytes:
        """As `Codec.encode`."""
        require_finite_input(values_n)
        return self._written(values_n)

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """As `Codec.decode`."""
        require_length(self, data, num_elements)
        return torch.from_numpy(require_finite(self._values(data), self.name))

    def head_bytes(self, num_elements: int) -> int | None:
        """No heads: the encoding of a long vector is that of its parts, one after another."""
        return 0

    @abstractmethod
    def _written(self, values_n: torch.Tensor) -> bytes:
        """The bytes of a (n,) float32 vector of finite values."""

    @abstractmethod
    def _values(self, data: bytes | memoryview) -> FloatArray:
        """(n,) float32 in new memory, of bytes of the right length."""


def _in_blocks(values: FloatArray, block_elements: int) -> FloatArray:
    """(blocks, block_elements) of a vector, padded with zeros."""
    blocks = -(-len(values) // block_elements)
    if len(values) % block_elements:
        padded = np.zeros(blocks * block_elements, dtype=np.float32)
        padded[: len(values)] = values
        values = padded
    return np.ascontiguousarray(values).reshape(blocks, block_elements)


def _absolute_maxima(grid: FloatArray) -> FloatArray:
    """(blocks,) absolute maxima of a grid. Without the sign, a float's bits are ordered as its size, and values that are not finite
    come last.

    Raises:
        LocalProtocolError: a value that is not finite.
    """
    largest: npt.NDArray[np.uint32] = (grid.view(np.uint32) & MAGNITUDE).max(axis=1, initial=0)
    if (largest >= INFINITY_BITS).any():
        raise LocalProtocolError("a vector with values that are not finite", "finite values", "skip this contribution")
    maxima: FloatArray = largest.view(np.float32)
    return maxima


def _require_scales(scales: FloatArray, name: str) -> FloatArray:
    """Refuse scales that are neither zero nor normal. Bits of floats are ordered as their sizes, so normal numbers lie between two
    bounds, and negative ones come after.
    """
    bits = scales.view("<u4")
    if not ((bits == 0) | (bits - _SMALLEST_NORMAL_BITS < INFINITY_BITS - _SMALLEST_NORMAL_BITS)).all():
        raise RemoteProtocolError(f"{name} with a scale that is negative, not normal or not finite", "zero or normal")
    return scales


def pairs_of(values: Sequence[float]) -> npt.NDArray[np.float32]:
    """(256, 2) for the 16 values of the codes. Minus zero is a code that no encoder writes, so it becomes NaN."""
    single = np.array([np.nan if value == 0 and np.signbit(value) else value for value in values], dtype=np.float32)
    return np.stack([np.tile(single, 16), np.repeat(single, 16)], axis=1)


class BlockCodec(DenseCodec):
    """Blocks of values with a float32 scale each. Layout: all scales (little-endian float32), then all codes, values in order.

    Args:
        block_elements: another block length than the codec's own. A vector shorter than a block is encoded as one block of its
            length, so this encodes many such vectors together.
    """

    largest_code: float
    """The code of the block's absolute maximum; the scale is the maximum divided by it."""

    _is_bounded = False
    """Whether every code is a number of at most 128 in size."""

    def __init__(self, block_elements: int | None = None) -> None:
        if block_elements is not None:
            self.facts = replace(self.facts, block=block_elements)
        self.block_elements = self.facts.block

    def encode(self, values_n: torch.Tensor) -> bytes:
        """Scales, then codes."""
        require_vector(values_n)
        num_elements = values_n.numel()
        grid = _in_blocks(values_n.numpy(), self.block_elements)
        scales: FloatArray = _absolute_maxima(grid) / np.float32(self.largest_code)
        scales[scales < SMALLEST_NORMAL] = 0.0
        relative = divided(grid, scales)
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

    def head_bytes(self, num_elements: int) -> int | None:
        """The scales. Only for whole blocks, whose codes are whole bytes, too."""
        return 4 * (num_elements // self.block_elements) if num_elements % self.block_elements == 0 else None

    @abstractmethod
    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        """Turn (blocks, block_elements) values divided by their block's scale into codes. Overwrites the values."""

    @abstractmethod
    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        """(num_elements,) values before scaling; NaN for a code that no encoder writes."""


class FourBitCodec(BlockCodec):
    """Two codes a byte, the first in the low half. With an odd number of codes the last high half is zero."""

    _pairs: npt.NDArray[np.float32]
    """(256, 2) values of each byte's two codes."""

    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        if num_elements % 2 and codes[-1] >> 4:
            raise RemoteProtocolError(f"{self.name} with bits behind its last value", "zeros there")
        pairs: FloatArray = self._pairs.take(codes, axis=0)
        return pairs.reshape(-1)[:num_elements]

    @staticmethod
    def _packed(codes: npt.NDArray[np.uint8], num_elements: int) -> bytes:
        """Pack (blocks, elements) codes in the low halves of bytes, an even number of them, two to a byte."""
        return packed(codes.reshape(-1)).tobytes()[: -(-num_elements // 2)]
