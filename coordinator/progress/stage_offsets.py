"""How many rounds a stage stays behind the first one. Pure, no clock.

Stages advance in step with the first one, and a whole model needs all stages at one round. A lost stage that resumed from an older
state advances in step, too, so it never catches up. Without its offset it would be behind in every later checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from protocol.ids import UnitName

SETTLED_ROUNDS: Final = 3
"""A stage that is behind for this many rounds of the first stage in a row is not catching up."""


@dataclass(frozen=True)
class StageOffsets:
    """Progress of the stages relative to the first one.

    Attributes:
        index: index of the first stage's newest commit.
        reached: newest index of each stage since that commit.
        lags: rounds that each stage was behind when the first stage's last commits arrived, newest last.
    """

    index: int = 0
    reached: Mapping[UnitName, int] = field(default_factory=lambda: MappingProxyType({}))
    lags: Mapping[UnitName, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, unit: UnitName) -> int:
        """Rounds that a stage is behind and will stay behind; 0 if it is not behind, or may catch up."""
        lags = self.lags.get(unit, ())
        return max(0, min(lags)) if len(lags) == SETTLED_ROUNDS else 0


def seen(state: StageOffsets, index: int, newest: Mapping[UnitName, int]) -> StageOffsets:
    """Update with the stages' newest indices.

    Args:
        index: index of the first stage's newest commit among live holders.
        newest: the same for the other stages; stages without a holder are left out.
    """
    if index < state.index:
        return StageOffsets(index, MappingProxyType(dict(newest)))  # the host follows another lineage now
    if index == state.index:
        reached = {unit: max(at, state.reached.get(unit, 0)) for unit, at in newest.items()}
        return StageOffsets(index, MappingProxyType({**state.reached, **reached}), state.lags)
    lags = {unit: (*state.lags.get(unit, ()), state.index - at)[-SETTLED_ROUNDS:] for unit, at in state.reached.items()}
    return StageOffsets(index, MappingProxyType(dict(newest)), MappingProxyType(lags))
