"""bfloat16 as integer operations on the bits of float32."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from averaging.codecs.codec import FloatArray

HalfArray = npt.NDArray[np.uint16]

LARGEST: Final = np.uint16(0x7F7F)
"""The largest finite one."""


def to_bfloat16(values: FloatArray) -> HalfArray:
    """Of finite values: round half to even, to the largest finite one where that would be infinity."""
    bits = values.view(np.uint32)
    halves = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype("<u2")
    too_large = (halves & np.uint16(0x7FFF)) > LARGEST
    return np.where(too_large, halves - np.uint16(1), halves).astype("<u2")


def next_bfloat16(values: FloatArray) -> HalfArray:
    """Of values that are not negative: the next one, never a smaller one."""
    return ((values.view(np.uint32) + np.uint32(0xFFFF)) >> 16).astype("<u2")


def from_bfloat16(halves: HalfArray) -> FloatArray:
    """Exact."""
    return (halves.astype(np.uint32) << 16).view(np.float32)
