"""Which outer step a round takes, by its length: momentum is for long rounds. Pure: it follows from the base commit, so all agree.

Successive deltas of short rounds point the same way, so momentum mu multiplies a step by up to 1 / (1 - mu rho), rho being their
cosine. One unreviewed note has 0.98, 0.93 and 0.73 for it at 16, 64 and 256 local steps, and no momentum ended better up to 64.
With one local step, outer momentum is the worst of all settings (Scaling Laws for DiLoCo, 2503.09799).
"""

from __future__ import annotations

from typing import Final

from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import OuterStep

LEAST_MOMENTUM_STEPS: Final = 64
"""Local steps of each member from which momentum is no worse than none."""

PLAIN_MEAN: Final = OuterStep("mean", 1.0, 0.0)


def outer_of_round(outer: OuterStep, momentum_from_tokens: int, base: ChainLink) -> OuterStep:
    """The outer step of the round after `base`: the run's, or the plain mean in a short round. A round is short if each voter's
    share of its target is less than `momentum_from_tokens`.
    """
    is_short = base.target_tokens < momentum_from_tokens * len(base.roster)
    return PLAIN_MEAN if is_short else outer
