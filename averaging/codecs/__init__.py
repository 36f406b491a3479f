"""Codecs: float32 vectors to bytes and back, the same bytes on every instruction set.

Everything is built from single IEEE operations with defined rounding: division, multiplication, absolute maximum, round half to
even, clamp, conversions, sums in a fixed order, integer operations on the bits. Lengths are checked before memory is allocated, and
every decoded value is finite. A scale is a normal number, or zero for a block of zeros. Blocks below the smallest normal scale are
written as zeros.

Bytes that no encoder writes are refused if the bytes alone show it. Some vectors still have several encodings: half the scale under
doubled codes, a codebook level that no code uses, two equal levels. A decoder cannot tell which one the encoder should have chosen,
so it does not check. This is safe: hashes, signatures and commits cover the bytes, and every peer decodes the same bytes.
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
    """All codec names that a manifest may use."""
    return tuple(_CODECS)


def codec_by_name(name: str) -> Codec:
    """The codec with this name in the manifest.

    Raises:
        ConfigError: no such codec.
    """
    codec = _CODECS.get(name)
    if codec is None:
        raise ConfigError(f"codec {name!r}", f"one of {', '.join(sorted(_CODECS))}")
    return codec
