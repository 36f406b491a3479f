"""Sparse codecs: in each block of 4096 values the largest by absolute value are written, each with its place and a few bits. The
rest is zero.

Layout of n values with K = ceil(n / stride) places, blocks of 4096 (the last one may be shorter):

    codebook        levels x float32, ascending: magnitudes of a block with a scale of one block scales    one byte a block, 0 for a
    block of zeros, else 3 bits of mantissa below 5 of exponent: 8 is 2^-30, 248 is 1 bits            low bits of the places, then
    their high bits, then codes; zeros up to the last byte. Of the low bits and of the
                    codes the lowest bit of all places comes first, then the next one of all

Places are encoded after Elias and Fano ("Efficient storage and retrieval by content and address of static files", 1974). The
log2(stride) low bits are stored directly and the high bits in unary: the i-th place of a block sets bit high + i of a field with
twice as many bits as the block has places. So K places always take K (log2(stride) + 2) bits, and a vector's size alone determines
the length of its encoding. A code is a sign above a level. A block with fewer values than places repeats its last place with a code
of 0. A block of zeros has all its places at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.codecs.codec import (
    INFINITY_BITS,
    MAGNITUDE,
    SMALLEST_NORMAL,
    FloatArray,
    require_length,
    require_vector,
)
from averaging.codecs.compiled import BLOCKS
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.kinds.codec_table import CODECS, SPARSE_RESULT_CODECS

BLOCK_ELEMENTS: Final = 4096
_PLACE_BITS: Final = 12
_NOWHERE: Final = BLOCK_ELEMENTS
"""Marks a place that is not written; sorts after all others."""

_LEAST_SCALE: Final = 8
_SCALE_OF_ONE: Final = 248
_ONE_BITS: Final = 0x3F800000
_SCALE_SHIFT: Final = 20
"""3 of a float32's 23 bits of mantissa stay in a scale."""

_LOOKED_AT: Final = 64
"""Values of a block that are sampled. If none is zero, the block is treated as dense."""

_SAMPLES: Final = 4096
"""Magnitudes of a chunk that are enough to fit its levels. If there are at least twice as many, they are thinned out evenly."""

_LARGEST: Final = float(np.finfo(np.float32).max)

FloatArray64 = npt.NDArray[np.float64]
ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]


def _scale_table() -> FloatArray:
    """(256,) values of the scale bytes; NaN for bytes that no encoder writes."""
    scales = np.arange(256, dtype=np.int64)
    values = (((scales - _SCALE_OF_ONE) << _SCALE_SHIFT) + _ONE_BITS).astype(np.uint32).view(np.float32).copy()
    values[0] = 0.0
    values[1:_LEAST_SCALE] = values[_SCALE_OF_ONE + 1 :] = np.nan
    return values


_SCALES: Final = _scale_table()


@dataclass(frozen=True, slots=True)
class SparseNumbers:
    """The parameters of one sparse codec.

    Attributes:
        stride: one value in `stride` is kept, a power of two.
        num_levels: magnitudes in the codebook, a power of two.
        first_levels: initial codebook, in units of the mean of a block's kept magnitudes. If empty, it starts at the largest
            magnitude and goes down by a factor of `RATIO`.
        num_passes: how often the levels move to the means of their nearest magnitudes (Lloyd, "Least squares quantization in PCM",
            1982).
    """

    stride: int
    num_levels: int
    first_levels: tuple[float, ...]
    num_passes: int


RATIO: Final = 1.4
"""Ratio between neighbouring initial levels. Means of sparse contributions spread wide: a value from one of 16 members is a 16th of
one from all.
"""


class SparseCodec:
    """The largest values of each block of 4096; among equals the lower place. The module's docstring has the layout.

    Levels belong to a chunk and scales to blocks, because one chunk may hold tensors of very different sizes. On real deltas the
    values that "topk" keeps have an error of 0.08. It would be 0.10 to 0.13 without block scales, and 0.20 to 0.24 with
    SparseLoCo's recipe (arXiv:2508.15706: four bins of 1.5 standard deviations around the mean). Values nearer to zero than to the
    lowest level are not written. All sums are float64 in the order of places (`np.bincount`).
    """

    leaves_out = True

    def __init__(self, name: str, numbers: SparseNumbers) -> None:
        self.name = name
        self.numbers = numbers
        self._low_bits = numbers.stride.bit_length() - 1
        self._code_bits = numbers.num_levels.bit_length()
        self._block_places = BLOCK_ELEMENTS // numbers.stride

    def num_places(self, num_elements: int) -> int:
        """The largest number of values that is written of `num_elements`."""
        return -(-num_elements // self.numbers.stride)

    def encoded_bytes(self, num_elements: int) -> int:
        """The codebook, a byte a block, and the bits of the places."""
        if num_elements == 0:
            return 0
        num_bits = self.num_places(num_elements) * (self._low_bits + 2 + self._code_bits)
        return 4 * self.numbers.num_levels + -(-num_elements // BLOCK_ELEMENTS) + -(-num_bits // 8)

    def head_bytes(self, num_elements: int) -> int | None:
        """None: every encoding has its own levels."""
        return None

    # --- encoding -------------------------------------------------------------------------------------------------------------

    def encode(self, values_n: torch.Tensor) -> bytes:
        """Codebook, scales, bits. Raises as `Codec.encode`."""
        require_vector(values_n)
        return self._encoded(values_n, 1)[0] if values_n.numel() else b""

    def encode_chunks(self, values_n: torch.Tensor, chunk_elements: int) -> list[bytes]:
        """Encode the chunks of a (n,) vector, the last of which may be shorter, each as `encode` would: chunks of whole blocks
        together.
        """
        require_vector(values_n)
        num_whole = values_n.numel() // chunk_elements if chunk_elements % BLOCK_ELEMENTS == 0 else 0
        stop = num_whole * chunk_elements
        chunks = self._encoded(values_n[:stop], num_whole) if num_whole else []
        starts = range(stop, values_n.numel(), chunk_elements)
        return [*chunks, *(self.encode(values_n[start : start + chunk_elements]) for start in starts)]

    def _encoded(self, values_n: torch.Tensor, num_chunks: int) -> list[bytes]:
        """Encode chunks of one size, which are whole blocks if there are several. Places and blocks are counted through all of
        them.
        """
        values, layout = np.ascontiguousarray(values_n.numpy()), _layout(values_n.numel(), self.numbers.stride)
        places = self._largest_places(values)
        kept = values[np.minimum(layout.first + places, len(values) - 1)]
        if places.max() == _NOWHERE:
            kept[places == _NOWHERE] = 0.0
        codebooks, scales, codes = self._quantised(np.abs(kept), layout, num_chunks)
        if codes.min() < 0:
            places, codes, kept = _filled_up(places, codes, kept, layout)
        codes += np.signbit(kept) * np.int64(self.numbers.num_levels)
        packed = np.packbits(self._bits(places, codes, layout, num_chunks), axis=1, bitorder="little")
        heads = codebooks.astype("<f4").view(np.uint8), scales.reshape(num_chunks, -1)
        return [row.tobytes() for row in np.concatenate([*heads, packed], axis=1)]

    def _largest_places(self, values: FloatArray) -> IntArray:
        """(K,) places in their blocks, ascending in each; `_NOWHERE` after the non-zero ones.

        Raises:
            LocalProtocolError: a value that is not finite.
        """
        end = len(values) // BLOCK_ELEMENTS * BLOCK_ELEMENTS
        bits, found = values.view(np.uint32), list[IntArray]()
        if end:
            places = None if BLOCKS is None else BLOCKS.largest(values[:end], self._block_places)
            if places is None:
                places = _largest((bits[:end] & MAGNITUDE).reshape(-1, BLOCK_ELEMENTS), self._block_places)
            found.append(places)
        if end < len(values):
            rest = np.zeros((1, BLOCK_ELEMENTS), dtype=np.uint32)
            rest[0, : len(values) - end] = bits[end:] & MAGNITUDE
            found.append(_largest(rest, self.num_places(len(values) - end)))
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _quantised(self, sizes: FloatArray, layout: _Layout, num_chunks: int) -> tuple[FloatArray, ByteArray, IntArray]:
        """(chunks, levels) codebooks, scale bytes, and (K,) levels of (K,) magnitudes; -1 for values that are too small to write."""
        counts = np.bincount(layout.blocks[sizes > 0], minlength=layout.num_blocks)
        sums = np.bincount(layout.blocks, weights=sizes, minlength=layout.num_blocks)
        means = (sums / np.maximum(counts, 1)).astype(np.float32).reshape(num_chunks, -1)
        largest = means.max(axis=1, keepdims=True)
        is_nothing = largest < SMALLEST_NORMAL
        scales = _scale_bytes(means / np.where(is_nothing, np.float32(1), largest))
        absolute = _SCALES[scales] * largest
        # Values of a block without a scale are divided by infinity, which makes them zeros.
        divisors = np.where((absolute >= SMALLEST_NORMAL) & ~is_nothing, absolute, np.float32(np.inf)).reshape(-1)
        relative = (sizes / divisors[layout.blocks]).reshape(num_chunks, -1)
        levels = self._levels(relative)
        codebooks = np.minimum(levels * largest.astype(np.float64), _LARGEST).astype(np.float32)
        codes = _level_numbers(relative, levels)
        codes[relative <= (levels[:, :1] / 2).astype(np.float32)] = -1
        codes = codes.reshape(-1)
        codes[(_SCALES[scales] * codebooks[:, :1] < SMALLEST_NORMAL).reshape(-1)[layout.blocks]] = -1
        is_written = np.bincount(layout.blocks[codes >= 0], minlength=layout.num_blocks) > 0
        scales[~is_written.reshape(num_chunks, -1)] = 0
        codebooks[~scales.any(axis=1)] = 0.0
        return codebooks, scales, codes

    def _levels(self, relative: FloatArray) -> FloatArray64:
        """(chunks, levels) ascending, in units of a block's mean, fitted to (chunks, K) magnitudes; zeros do not count."""
        counts = np.count_nonzero(relative, axis=1)
        if counts.max() >= 2 * _SAMPLES:
            thinned = [row[row > 0][:: max(1, count // _SAMPLES)] for row, count in zip(relative, counts, strict=True)]
            return np.concatenate([self._levels_of(row[None], np.zeros(1, dtype=np.int64)) for row in thinned])
        return self._levels_of(relative, relative.shape[1] - counts)

    def _levels_of(self, relative: FloatArray, num_zeros: IntArray) -> FloatArray64:
        """(chunks, levels) fitted to (chunks, n) magnitudes, `num_zeros` of which are zeros. Zeros do not change the sums."""
        numbers, num_chunks = self.numbers, len(relative)
        levels = np.tile(np.array(numbers.first_levels, dtype=np.float64), (num_chunks, 1))
        if not numbers.first_levels:
            levels = np.empty((num_chunks, numbers.num_levels), dtype=np.float64)
            levels[:, -1] = relative.max(axis=1, initial=SMALLEST_NORMAL)
            for number in reversed(range(numbers.num_levels - 1)):
                levels[:, number] = levels[:, number + 1] / RATIO
        first = np.arange(num_chunks)[:, None] * numbers.num_levels
        weights = relative.reshape(-1).astype(np.float64)
        for _ in range(numbers.num_passes):
            nearest = (_level_numbers(relative, levels) + first).reshape(-1)
            counts = np.bincount(nearest, minlength=levels.size).reshape(levels.shape)
            counts[:, 0] -= num_zeros
            sums = np.bincount(nearest, weights=weights, minlength=levels.size).reshape(levels.shape)
            levels = np.where(counts > 0, sums / np.maximum(counts, 1), levels)
        return levels

    def _bits(self, places: IntArray, codes: IntArray, layout: _Layout, num_chunks: int) -> ByteArray:
        """(chunks, bits): low bits, high bits in unary, and codes of all places of a chunk."""
        highs = np.zeros(2 * layout.num_places, dtype=np.uint8)
        highs[(places >> self._low_bits) + layout.bits_before] = 1
        lows = _to_bits((places & (self.numbers.stride - 1)).reshape(num_chunks, -1), self._low_bits)
        coded = _to_bits(codes.reshape(num_chunks, -1), self._code_bits)
        return np.concatenate([lows, highs.reshape(num_chunks, -1), coded], axis=1)

    # --- decoding -------------------------------------------------------------------------------------------------------------

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        """Level x scale, one multiplication a written value.

        Raises:
            RemoteProtocolError: a wrong length, a codebook or scale that no encoder writes, places that are out of order or outside
                of the vector, or bits after the last code.
        """
        require_length(self, data, num_elements)
        if num_elements == 0:
            return torch.zeros(0)
        return self._decoded(np.frombuffer(data, dtype=np.uint8)[None], num_elements)

    def decode_chunks(
        self, chunks: Sequence[bytes | memoryview], chunk_elements: int, num_elements: int
    ) -> torch.Tensor:
        """Decode consecutive chunks into (num_elements,) values. Raises as `decode` would for one of them."""
        num_whole = num_elements // chunk_elements if chunk_elements % BLOCK_ELEMENTS == 0 else 0
        stop = num_whole * chunk_elements
        if len(chunks) != -(-num_elements // chunk_elements):
            raise self._wrong(f"{len(chunks)} chunks", f"those of {num_elements} values")
        parts = []
        if num_whole:
            for chunk in chunks[:num_whole]:
                require_length(self, chunk, chunk_elements)
            rows = np.frombuffer(b"".join(chunks[:num_whole]), dtype=np.uint8)
            parts.append(self._decoded(rows.reshape(num_whole, -1), stop))
        for number in range(num_whole, len(chunks)):
            begin = number * chunk_elements
            parts.append(self.decode(chunks[number], min(chunk_elements, num_elements - begin)))
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else torch.zeros(0)

    def _decoded(self, rows: ByteArray, num_elements: int) -> torch.Tensor:
        """(num_elements,) values of all the (chunks, bytes) together."""
        layout, num_levels = _layout(num_elements, self.numbers.stride), self.numbers.num_levels
        codes_at = 4 * num_levels + layout.num_blocks // len(rows)
        codebooks = np.ascontiguousarray(rows[:, : 4 * num_levels]).view("<f4").astype(np.float32)
        scales = rows[:, 4 * num_levels : codes_at]
        table = self._table(codebooks, scales)
        bits = np.unpackbits(rows[:, codes_at:], axis=1, bitorder="little")
        indices, codes = self._indices_and_codes(bits, layout)
        coded = table.reshape(-1)[layout.blocks * (2 * num_levels) + codes]
        holds_value = self._holding_values(indices, codes, scales.reshape(-1), layout)
        if holds_value is not None:
            indices, coded = indices[holds_value], coded[holds_value]
        values = np.zeros(num_elements, dtype=np.float32)
        values[indices] = coded
        return torch.from_numpy(values)

    def _wrong(self, found: str, expected: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"{self.name} with {found}", expected)

    def _table(self, codebooks: FloatArray, scales: ByteArray) -> FloatArray:
        """(blocks, codes) value of each code, from (chunks, levels) codebooks and (chunks, blocks of one) scales."""
        if not np.isfinite(codebooks).all() or np.signbit(codebooks).any():
            raise self._wrong("a codebook that is negative or not finite", "magnitudes")
        if (codebooks[:, 1:] < codebooks[:, :-1]).any():
            raise self._wrong("a codebook that is not in order", "ascending magnitudes")
        values = _SCALES[scales]
        if np.isnan(values).any():
            raise self._wrong("a block's scale that no encoder writes", f"0, or {_LEAST_SCALE} to {_SCALE_OF_ONE}")
        if (codebooks.any(axis=1) & ~values.any(axis=1)).any():
            raise self._wrong("a codebook and no block that uses it", "zeros")
        table: FloatArray = values[:, :, None] * codebooks[:, None, :]
        if (table[values > 0, 0] < SMALLEST_NORMAL).any():
            raise self._wrong("values that are not normal numbers", "normal ones")
        return np.concatenate([table, -table], axis=2)

    def _indices_and_codes(self, bits: ByteArray, layout: _Layout) -> tuple[IntArray, IntArray]:
        """The indices in the vector and the codes, (K,) each, from (chunks, bits)."""
        num_places = layout.num_places // len(bits)
        begin = num_places * self._low_bits
        end = begin + 2 * num_places
        stop = end + num_places * self._code_bits
        if bits[:, stop:].any():
            raise self._wrong("bits behind its last code", "zeros there")
        highs = np.flatnonzero(bits[:, begin:end])
        if len(highs) != layout.num_places:
            raise self._wrong(f"{len(highs)} places", f"{layout.num_places}")
        highs -= layout.bits_before
        # A place outside of its block lies below or above all places of it.
        if highs.min() < 0 or (highs >= layout.num_highs).any():
            raise self._wrong("more or fewer places in a block than it has", f"{self._block_places}, in order")
        indices = (highs << self._low_bits) + layout.first
        indices += _from_bits(bits[:, :begin], self._low_bits)
        if indices[-1] >= layout.num_elements:
            raise self._wrong("a place behind the last value", f"indices below {layout.num_elements}")
        return indices, _from_bits(bits[:, end:stop], self._code_bits)

    def _holding_values(
        self, indices: IntArray, codes: IntArray, scales: ByteArray, layout: _Layout
    ) -> npt.NDArray[np.bool_] | None:
        """(K,) which places hold a value: neither repetitions nor places of a block of zeros. None if all do."""
        steps = np.diff(indices, prepend=-1)
        least = steps.min()
        if least < 0:
            raise self._wrong("places that are not in order", "ascending ones")
        is_empty = (scales == 0)[layout.blocks]
        if least > 0 and not is_empty.any():
            return None
        is_repeated = steps == 0
        goes_on = is_repeated[:-1] & ~is_repeated[1:] & (layout.blocks[:-1] == layout.blocks[1:])
        if goes_on.any():
            raise self._wrong("a place that occurs twice", "only repetitions of a block's last place")
        if codes[is_repeated | is_empty].any():
            raise self._wrong("a code at a place without a value", "0")
        if (indices != layout.first)[is_empty].any():
            raise self._wrong("places in a block without a scale", "all of them 0")
        holds_value: npt.NDArray[np.bool_] = ~(is_repeated | is_empty)
        return holds_value


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Index arithmetic that follows from a vector's size alone: a number for each of its K places.

    Attributes:
        blocks: the block that it belongs to.
        first: that block's first index.
        bits_before: bits before its own that do not depend on the high parts: of its block's earlier places, and of all earlier
            blocks.
        num_highs: upper bound of the high parts, exclusive.
    """

    num_elements: int
    num_places: int
    num_blocks: int
    blocks: IntArray
    first: IntArray
    bits_before: IntArray
    num_highs: IntArray


@lru_cache(maxsize=4)
def _layout(num_elements: int, stride: int) -> _Layout:
    num_places, block_places = -(-num_elements // stride), BLOCK_ELEMENTS // stride
    order = np.arange(num_places)
    blocks = order // block_places
    begins = blocks * block_places
    arrays = (blocks, blocks * BLOCK_ELEMENTS, order + begins, np.minimum(block_places, num_places - begins))
    for array in arrays:
        array.flags.writeable = False
    return _Layout(num_elements, num_places, -(-num_elements // BLOCK_ELEMENTS), *arrays)


def _largest(sizes: npt.NDArray[np.uint32], num_places: int) -> IntArray:
    """(blocks x num_places,) places of the largest of (blocks, 4096) sizes, ascending; `_NOWHERE` if fewer are not zero.

    Raises:
        LocalProtocolError: a value that is not finite. Such values are always among the largest.
    """
    bounds = np.ones(len(sizes), dtype=np.uint32)
    # Means of sparse contributions are mostly zeros, so all other values may fit.
    if sizes[:, :_LOOKED_AT].all() or np.count_nonzero(sizes, axis=1).max() > num_places:
        rank = BLOCK_ELEMENTS - num_places
        np.maximum(np.partition(sizes, rank, axis=1)[:, rank], 1, out=bounds)
    found = np.flatnonzero(sizes >= bounds[:, None])
    blocks, kept = found >> _PLACE_BITS, sizes.reshape(-1)[found]
    if (kept >= INFINITY_BITS).any():
        raise LocalProtocolError("a vector with values that are not finite", "finite values", "skip this contribution")
    counts = np.bincount(blocks, minlength=len(sizes))
    if (counts == num_places).all():
        return found & (BLOCK_ELEMENTS - 1)
    # If several are as large as the smallest one that is kept, the first of them stay.
    is_equal = kept == bounds[blocks]
    num_equal = np.bincount(blocks[is_equal], minlength=len(sizes))
    numbers = np.cumsum(is_equal) - (np.cumsum(num_equal) - num_equal)[blocks]
    found = found[~is_equal | (numbers <= (num_places - counts + num_equal)[blocks])]
    blocks, counts = found >> _PLACE_BITS, np.minimum(counts, num_places)
    places = np.full((len(sizes), num_places), _NOWHERE)
    places[blocks, np.arange(len(found)) - (np.cumsum(counts) - counts)[blocks]] = found & (BLOCK_ELEMENTS - 1)
    return places.reshape(-1)


def _scale_bytes(shares: FloatArray) -> ByteArray:
    """(blocks,) scale bytes nearest to shares of the largest, 0 to 1; 0 below 2^-30."""
    nearest = (shares.view(np.uint32).astype(np.int64) + (1 << (_SCALE_SHIFT - 1))) >> _SCALE_SHIFT
    scales = nearest - (_ONE_BITS >> _SCALE_SHIFT) + _SCALE_OF_ONE
    return np.where(scales >= _LEAST_SCALE, scales, 0).astype(np.uint8)


def _level_numbers(relative: FloatArray, levels: FloatArray64) -> IntArray:
    """Number of the nearest of a chunk's ascending (chunks, levels) for each of its (chunks, n) values; the lower one at the
    border.
    """
    numbers = np.zeros(relative.shape, dtype=np.uint8)
    borders = ((levels[:, 1:] + levels[:, :-1]) / 2).astype(np.float32)
    for place in range(borders.shape[1]):
        numbers += (relative > borders[:, place : place + 1]).view(np.uint8)
    return numbers.astype(np.int64)


def _filled_up(
    places: IntArray, codes: IntArray, kept: FloatArray, layout: _Layout
) -> tuple[IntArray, IntArray, FloatArray]:
    """Replace values that are not written (code below 0) by repetitions of their block's last place, after the others, with a code
    of 0.
    """
    is_written = codes >= 0
    blocks, places = layout.blocks[is_written], places[is_written]
    counts = np.bincount(blocks, minlength=layout.num_blocks)
    ends = np.cumsum(counts)
    begins = np.searchsorted(layout.blocks, np.arange(layout.num_blocks))
    targets = np.arange(len(blocks)) + (begins - (ends - counts))[blocks]
    last = np.zeros(layout.num_blocks, dtype=np.int64)
    last[counts > 0] = places[ends[counts > 0] - 1]
    all_places, all_codes, all_kept = last[layout.blocks], np.zeros_like(codes), np.zeros_like(kept)
    all_places[targets], all_codes[targets], all_kept[targets] = places, codes[is_written], kept[is_written]
    return all_places, all_codes, all_kept


def _to_bits(numbers: IntArray, num_bits: int) -> ByteArray:
    """(chunks, num_bits x n) bits of (chunks, n) numbers: the lowest bits of all of a chunk's numbers, then the next ones."""
    shifts = np.arange(num_bits, dtype=np.uint8)[:, None]
    bits: ByteArray = (numbers.astype(np.uint8)[:, None, :] >> shifts) & np.uint8(1)
    return bits.reshape(len(numbers), -1)


def _from_bits(bits: ByteArray, num_bits: int) -> IntArray:
    """(chunks x n,) numbers from their bits."""
    planes = bits.reshape(len(bits), num_bits, -1)
    numbers = planes[:, 0].copy()
    for shift in range(1, num_bits):
        numbers |= planes[:, shift] << np.uint8(shift)
    wide: IntArray = numbers.reshape(-1).astype(np.int64)
    return wide


TOPK: Final = SparseCodec(
    "topk", SparseNumbers(CODECS["topk"].stride, num_levels=2, first_levels=(0.85, 1.35), num_passes=1)
)
"""64 of 4096 values, SparseLoCo's share, at 10.2 bits each. For contributions with error feedback: without it 0.93 of a delta's
norm would be lost.
"""

RESULTS: Final = tuple(
    SparseCodec(facts.name, SparseNumbers(facts.stride, num_levels=8, first_levels=(), num_passes=3))
    for facts in SPARSE_RESULT_CODECS
)
"""For means of "topk" contributions: 256, 512 or 1024 of 4096 values, at 10.1, 9.1 or 8.1 bits each. That is all that 4, 8 or 16
members can have sent. The part that a result leaves out is lost, so choose the share for the number of members.
"""

KINDS = (TOPK, *RESULTS)
