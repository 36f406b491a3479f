"""The codecs that a manifest may name: one line each. Names, sizes, defaults and estimates follow from these lines.

A new codec is one line in `CODECS` and a module averaging/codecs/NAME.py with its arithmetic (CONTRIBUTING.md, "Add a codec").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class CodecFacts:
    """The facts of a codec that everything but its arithmetic needs. Each chunk of a vector is encoded by itself.

    Attributes:
        name: in run.toml and in proposals.
        bits: of a value that is written, its place in the vector included.
        block: values that share a scale, 0 for none.
        scale_bytes: of a scale.
        stride: one value of every `stride` is written; the others are zeros.
        codebook_bytes: of a chunk.
        room: of a codec that is only for means of sparse contributions: as many members' values have room in a mean; 0 for others.
        module: in averaging/codecs; left out, the codec's name.
    """

    name: str
    bits: int
    block: int = 0
    scale_bytes: int = 4
    stride: int = 1
    codebook_bytes: int = 0
    room: int = 0
    module: str = ""

    @property
    def leaves_out(self) -> bool:
        """Whether what is decoded may be without values that were encoded."""
        return self.stride > 1

    @property
    def is_exact(self) -> bool:
        """Whether a float32 comes back as it was."""
        return self.bits == 32 and not self.leaves_out

    def encoded_bytes(self, num_values: int) -> int:
        """Exact bytes of the encoding of this many values."""
        if num_values == 0:
            return 0
        scales_bytes = self.scale_bytes * -(-num_values // self.block) if self.block else 0
        return self.codebook_bytes + scales_bytes + -(-(-(-num_values // self.stride) * self.bits) // 8)


_TABLE: Final = (
    CodecFacts("fp32", 32),
    CodecFacts("fp16", 16),
    CodecFacts("int8", 8, block=256),
    CodecFacts("int4", 4, block=128),
    CodecFacts("e3m0", 4, block=256),
    CodecFacts("topk", 10, block=4096, scale_bytes=1, stride=64, codebook_bytes=8, module="sparse"),
    CodecFacts("top6", 10, block=4096, scale_bytes=1, stride=16, codebook_bytes=32, room=4, module="sparse"),
    CodecFacts("top12", 9, block=4096, scale_bytes=1, stride=8, codebook_bytes=32, room=8, module="sparse"),
    CodecFacts("top25", 8, block=4096, scale_bytes=1, stride=4, codebook_bytes=32, room=16, module="sparse"),
)

CODECS: Final[Mapping[str, CodecFacts]] = MappingProxyType({facts.name: facts for facts in _TABLE})
"""By name."""

CONTRIBUTION_CODECS: Final = tuple(name for name, facts in CODECS.items() if not facts.room)
"""Names that `round.codec` accepts."""

SPARSE_CODECS: Final = tuple(name for name in CONTRIBUTION_CODECS if CODECS[name].leaves_out)
"""Those of contributions that leave values out."""

SPARSE_RESULT_CODECS: Final = tuple(facts for facts in CODECS.values() if facts.room)
"""Those of means of sparse contributions, by their room."""

RESULT_CODECS: Final = tuple(name for name in CODECS if name not in SPARSE_CODECS)
"""Names that `round.result_codec` accepts."""


def leaves_out(codec: str) -> bool:
    """Whether a result in this codec may be without values that its mean has. False of a codec that is not in the table."""
    facts = CODECS.get(codec)
    return facts is not None and facts.leaves_out
