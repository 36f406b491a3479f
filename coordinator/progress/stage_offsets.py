"""How many rounds a stage stands behind the first one, for good: core, no clock.

All stages have the first one's rounds, and a whole model is of one round. A stage that was lost and came back with an older state has
each of its later rounds beside the first one's all the same, and never its number: it would stay behind in every checkpoint to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from protocol.ids import UnitName

SETTLED_ROUNDS: Final = 3
"""In so many rounds of the first stage on end a stage has been behind: it is not catching up."""


@dataclass(frozen=True)
class StageOffsets:
    """What was seen of the stages, beside the first one.

    Attributes:
        index: of the first stage's newest commit.
        reached: how far each stage has come since that.
        lags: rounds that a stage was still behind when each of the first one's last rounds came, the newest last.
    """

    index: int = 0
    reached: Mapping[UnitName, int] = field(default_factory=lambda: MappingProxyType({}))
    lags: Mapping[UnitName, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, unit: UnitName) -> int:
        """Rounds that a stage is behind and will stay behind; 0 where it is not, or may catch up."""
        lags = self.lags.get(unit, ())
        return max(0, min(lags)) if len(lags) == SETTLED_ROUNDS else 0


def seen(state: StageOffsets, index: int, newest: Mapping[UnitName, int]) -> StageOffsets:
    """Look once.

    Args:
        index: of the first stage's newest commit that live holders have.
        newest: the same of the others; stages that nobody has are left out.
    """
    if index < state.index:
        return StageOffsets(index, MappingProxyType(dict(newest)))  # another lineage is followed
    if index == state.index:
        reached = {unit: max(at, state.reached.get(unit, 0)) for unit, at in newest.items()}
        return StageOffsets(index, MappingProxyType({**state.reached, **reached}), state.lags)
    lags = {unit: (*state.lags.get(unit, ()), state.index - at)[-SETTLED_ROUNDS:] for unit, at in state.reached.items()}
    return StageOffsets(index, MappingProxyType(dict(newest)), MappingProxyType(lags))
