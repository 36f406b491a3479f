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

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from averaging.bundled_kinds import load_kind
from averaging.codecs.codec import SMALLEST_NORMAL, Codec
from protocol.errors import ConfigError
from protocol.kinds.codec_table import CODECS

__all__ = ["SMALLEST_NORMAL", "Codec", "codec_by_name", "codec_names"]

_CODECS: Final[Mapping[str, Codec]] = MappingProxyType(
    {name: load_kind("averaging.codecs", facts.module or name, name, Codec) for name, facts in CODECS.items()}  # type: ignore[type-abstract]
)


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
