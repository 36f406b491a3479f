"""Codecs: float32 vectors to bytes and back, the same bytes on every instruction set.

Everything is built from single IEEE operations whose rounding is stated: division, multiplication, absolute maximum, round half
to even, clamp, conversions, sums in a fixed order, integer operations on the bits. Lengths are checked before anything is
allocated, and what decodes is finite. A scale is a normal number or zero, and zero only for a block of zeros: what is smaller than
that is written as zeros.

What no encoder writes is refused where the bytes alone show it. Some vectors still have several encodings: a scale half as large
under codes twice as large, a level of a codebook that no code names, two levels that are equal. What an encoder would have made of
the values before they were rounded cannot be told from those that are left, so nobody asks. Nothing rests on it: hashes, signatures
and commits are over bytes, never over what they decode to, and all decode the same bytes.
"""

from __future__ import annotations

from typing import Final

from averaging.codecs.codec import SMALLEST_NORMAL, Codec
from averaging.codecs.dense import (
    E3M0_BLOCK_ELEMENTS,
    INT4_BLOCK_ELEMENTS,
    INT8_BLOCK_ELEMENTS,
    E3m0Codec,
    Fp16Codec,
    Fp32Codec,
    Int4Codec,
    Int8Codec,
)
from averaging.codecs.sparse import RESULTS, TOPK
from protocol.errors import ConfigError

__all__ = [
    "E3M0_BLOCK_ELEMENTS",
    "INT4_BLOCK_ELEMENTS",
    "INT8_BLOCK_ELEMENTS",
    "SMALLEST_NORMAL",
    "Codec",
    "codec_by_name",
    "codec_names",
]

_ALL: Final[tuple[Codec, ...]] = (Fp32Codec(), Fp16Codec(), Int8Codec(), Int4Codec(), E3m0Codec(), TOPK, *RESULTS)
_CODECS: Final = {codec.name: codec for codec in _ALL}


def codec_names() -> tuple[str, ...]:
    """All that a manifest may name."""
    return tuple(_CODECS)


def codec_by_name(name: str) -> Codec:
    """The codec that the manifest names.

    Raises:
        ConfigError: no such codec.
    """
    codec = _CODECS.get(name)
    if codec is None:
        raise ConfigError(f"codec {name!r}", f"one of {', '.join(sorted(_CODECS))}")
    return codec
