"""bfloat16 as integer operations on the bits of float32."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from averaging.codecs.codec import FloatArray

HalfArray = npt.NDArray[np.uint16]

LARGEST: Final = np.uint16(0x7F7F)
"""The largest finite value."""


def to_bfloat16(values: FloatArray) -> HalfArray:
    """Round finite values half to even; overflow becomes the largest finite value."""
    bits = values.view(np.uint32)
    halves = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype("<u2")
    too_large = (halves & np.uint16(0x7FFF)) > LARGEST
    return np.where(too_large, halves - np.uint16(1), halves).astype("<u2")


def next_bfloat16(values: FloatArray) -> HalfArray:
    """Round values that are not negative up to the next bfloat16."""
    return ((values.view(np.uint32) + np.uint32(0xFFFF)) >> 16).astype("<u2")


def from_bfloat16(halves: HalfArray) -> FloatArray:
    """The float32 values; exact."""
    return (halves.astype(np.uint32) << 16).view(np.float32)
