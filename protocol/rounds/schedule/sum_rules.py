"""How reducers sum the slices of a unit: numbers of the manifest that all members share.

Rules: R10, R11 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.kinds.robust_table import OFF, ROBUST_RULES, RobustFacts


@dataclass(frozen=True, slots=True)
class SumRules:
    """The rules of one unit's sums.

    Attributes:
        first_within_s: first guess of a reducer's deadline in seconds; learned from uploads, doubled at each failed attempt (R11).
        robust: the rule that guards each chunk's mean (R10), a name in protocol/kinds/robust_table.py.
    """

    first_within_s: float = 20.0
    robust: str = OFF

    @property
    def guard(self) -> RobustFacts:
        """The facts of the rule that guards means."""
        return ROBUST_RULES[self.robust]


DEFAULT_SUMS: Final = SumRules()
