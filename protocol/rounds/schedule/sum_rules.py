"""How reducers sum the slices of a unit: numbers of the manifest that all members share.

Rules: R10, R11 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from protocol.kinds.robust_table import OFF, ROBUST_RULES, RobustFacts

GRACE: Final = 0.25
"""Once enough members are in, the others have so much of the time since the beginning more."""

LEAST_GRACE_S: Final = 0.5
"""The least such time: in a shorter one the load of machines decides who is in."""

AUDIT_SHARE: Final = 0.01
"""Of runs that name none: all members together then look at several chunks a round, at a hundredth of the traffic."""

_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class SumRules:
    """The rules of one unit's sums.

    Attributes:
        first_within_s: first guess of a reducer's deadline in seconds; learned from uploads, doubled at each failed attempt (R11).
        robust: the rule that guards each chunk's mean (R10), a name in protocol/kinds/robust_table.py.
        close_share: share of the members, above 0 and up to 1, that the others need not wait for. 1 waits for everybody.
        patient_every: in one of so many rounds everybody is waited for all the same.
        audit_share: share of a contribution's bytes, from 0 to 1, that each member fetches in a round to compute sums again; 0 for
            none.
    """

    first_within_s: float = 20.0
    robust: str = OFF
    close_share: float = 1.0
    patient_every: int = 8
    audit_share: float = 0.0

    @property
    def guard(self) -> RobustFacts:
        """The facts of the rule that guards means."""
        return ROBUST_RULES[self.robust]

    def closes_after_s(self, index: int, num_in: int, num_members: int, passed_s: float) -> float:
        """How long after its beginning a slice closes without those that are not in (R10); inf while it waits for more.

        Args:
            index: of the round. All members know it, so all are patient in the same rounds.
            num_in: members of which everything is here, `passed_s` after the beginning.
            num_members: those that are waited for or in.
        """
        if self.close_share >= 1.0 or index % self.patient_every == 0:
            return math.inf
        # a share of 0.9 is a little above nine tenths: of ten members nine are enough
        if num_in < math.ceil(self.close_share * num_members - _ROUNDING):
            return math.inf
        return passed_s + max(LEAST_GRACE_S, GRACE * passed_s)


DEFAULT_SUMS: Final = SumRules()
