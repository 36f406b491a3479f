"""The codecs of what crosses from stage to stage of a pipeline, activations one way and gradients the other: one line each.

A new one is one line in `BOUNDARY_CODECS` and a module of its name in averaging/codecs/rows. Rows are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

WHOLE_ROW: Final = 1 << 32
"""A group that holds any row."""


@dataclass(frozen=True, slots=True)
class BoundaryFacts:
    """The facts of a codec between stages that everything but its arithmetic needs.

    Attributes:
        name: in run.toml.
        number: in the head of a message, 0 to 255; never used for another codec again.
        bits: of a value.
        group: values of a row that share a scale of 2 bytes, 0 where there are no scales.
        forward, backward: whether run.toml may name it for activations, and for their gradients.
        module: in averaging/codecs/rows; left out, the codec's name.
    """

    name: str
    number: int
    bits: int
    group: int = 0
    forward: bool = True
    backward: bool = True
    module: str = ""

    def row_bytes(self, dim: int) -> int:
        """Exact bytes of one token with this many values."""
        return -(-dim * self.bits // 8) + 2 * self.num_scales(dim)

    def num_scales(self, dim: int) -> int:
        """Bytes of a row with this many values."""
        return -(-dim // self.group) if self.group else 0


_TABLE: Final = (
    BoundaryFacts("fp32", 0, 32, module="plain_rows"),
    BoundaryFacts("fp64", 1, 64, forward=False, backward=False, module="plain_rows"),  # for proofs
    BoundaryFacts("bf16", 2, 16, module="plain_rows"),
    BoundaryFacts("int8", 3, 8, group=WHOLE_ROW, module="scaled_rows"),
    BoundaryFacts("int4", 4, 4, group=128, backward=False, module="scaled_rows"),
)

BOUNDARY_CODECS: Final[Mapping[str, BoundaryFacts]] = MappingProxyType({facts.name: facts for facts in _TABLE})
"""By name."""

FORWARD_CODECS: Final = tuple(facts.name for facts in _TABLE if facts.forward)
"""Names that `pipeline.forward_codec` accepts."""

BACKWARD_CODECS: Final = tuple(facts.name for facts in _TABLE if facts.backward)
"""Names that `pipeline.backward_codec` accepts."""
