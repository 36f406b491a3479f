"""What dense codecs share: every value is written, in 32 to 4 bits, by itself or in blocks that have a scale each."""

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
"""Times a code of at most 128 in size it stays finite, so that the products need not be looked at."""


class DenseCodec(ABC):
    """A codec that writes every value. A subclass says which line of the table it is, and how values are written."""

    facts: CodecFacts
    """Its line in protocol/kinds/codec_table.py."""

    compiled_as: int | None = None
    """Its number in blocks.c; None where the library does not have it."""

    @property
    def name(self) -> str:
        """The name in the manifest."""
        return self.facts.name

    @property
    def leaves_out(self) -> bool:
        """False: a dense codec writes all."""
        return self.facts.leaves_out

    def encoded_bytes(self, num_elements: int) -> int:
        """Exact length of the encoding of so many values."""
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
        """As many bytes a value as the table says."""
        require_finite_input(values_n)
        return self._written(values_n)

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """As `Codec.decode`."""
        require_length(self, data, num_elements)
        return torch.from_numpy(require_finite(self._values(data), self.name))

    def head_bytes(self, num_elements: int) -> int | None:
        """None come first: a long vector is the encodings of its parts."""
        return 0

    @abstractmethod
    def _written(self, values_n: torch.Tensor) -> bytes:
        """The bytes of a (n,) float32 vector of finite values."""

    @abstractmethod
    def _values(self, data: bytes | memoryview) -> FloatArray:
        """(n,) float32 in new memory, of bytes of the right length."""


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


def pairs_of(values: Sequence[float]) -> npt.NDArray[np.float32]:
    """(256, 2) for the 16 values of the codes; minus zero is a code that nobody writes."""
    single = np.array([np.nan if value == 0 and np.signbit(value) else value for value in values], dtype=np.float32)
    return np.stack([np.tile(single, 16), np.repeat(single, 16)], axis=1)


class BlockCodec(DenseCodec):
    """Blocks of values with a float32 scale each. Layout: all scales (little-endian float32), then all codes, values in order.

    Args:
        block_elements: of blocks of another length than the codec's own: vectors shorter than a block are written one by one as blocks
            of their length are, so that many of one length can be written together.
    """

    largest_code: float
    """What the block's absolute maximum is written as: its scale is the maximum divided by it."""

    _is_bounded = False
    """Whether every code stands for a number of at most 128 in size."""

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
        """The scales; of whole blocks alone, which make whole bytes of codes, too."""
        return 4 * (num_elements // self.block_elements) if num_elements % self.block_elements == 0 else None

    @abstractmethod
    def _codes(self, relative: FloatArray, num_elements: int) -> bytes:
        """(blocks, block_elements) values divided by their block's scale, overwritten, as codes."""

    @abstractmethod
    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        """(num_elements,) values before their scale; NaN for a code that nobody writes."""


class FourBitCodec(BlockCodec):
    """Two codes a byte, the first one in the low half; an odd last one leaves the high half zero."""

    _pairs: npt.NDArray[np.float32]
    """(256, 2) what each byte stands for."""

    def _values(self, codes: npt.NDArray[np.uint8], num_elements: int) -> FloatArray:
        if num_elements % 2 and codes[-1] >> 4:
            raise RemoteProtocolError(f"{self.name} with bits behind its last value", "zeros there")
        pairs: FloatArray = self._pairs.take(codes, axis=0)
        return pairs.reshape(-1)[:num_elements]

    @staticmethod
    def _packed(codes: npt.NDArray[np.uint8], num_elements: int) -> bytes:
        """(blocks, elements) codes in the low halves of bytes, an even number of them, as two a byte."""
        return packed(codes.reshape(-1)).tobytes()[: -(-num_elements // 2)]
