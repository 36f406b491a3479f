"""The rules by which a reducer guards a mean against members that send wrong deltas: one line each.

The arithmetic is averaging/arithmetic/robust_mean.py. Every rule judges a chunk by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class RobustFacts:
    """The facts of a rule that everything but its arithmetic needs.

    Attributes:
        name: in run.toml.
        clips: whether a chunk longer than the median one is shortened to that length.
        leaves_out: whether a chunk that disagrees with the others is left out of the mean.
    """

    name: str
    clips: bool = False
    leaves_out: bool = False


OFF: Final = "off"
"""The plain weighted mean."""

_TABLE: Final = (
    RobustFacts(OFF),
    RobustFacts("clip", clips=True),
    RobustFacts("clip-agree", clips=True, leaves_out=True),
)

ROBUST_RULES: Final[Mapping[str, RobustFacts]] = MappingProxyType({facts.name: facts for facts in _TABLE})
"""By name."""

FEWEST_TO_JUDGE: Final = 4
"""With fewer keepers and members none of them is left out: of three, two that disagree with each other leave no majority."""

FEWEST_TO_MEASURE: Final = 3
"""With fewer of them their agreements have no median to measure strangers by: a stranger is kept where it points along with them."""


def most_left_out(num_members: int) -> int:
    """The most of these keepers and members whose chunk an honest reducer leaves out of one mean: the upper half of the agreements is
    at least the median that it compares with. Of strangers it may leave out all.
    """
    return num_members // 2 if num_members >= FEWEST_TO_JUDGE else 0
