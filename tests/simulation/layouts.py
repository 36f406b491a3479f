"""Which units a simulated run has, and which of them each peer holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.ids import UnitName


@dataclass(frozen=True)
class Layout:
    """The units of a run, the spine first; `held(number)` are those of the peer with this number."""

    name: str
    units: tuple[UnitName, ...]
    held: Callable[[int], tuple[UnitName, ...]]

    @property
    def spine(self) -> UnitName:
        """The unit that decides for all."""
        return self.units[0]

    @property
    def kept(self) -> tuple[UnitName, ...]:
        """Those that the host keeps to give them on: what not everybody holds."""
        return tuple(
            unit for unit in self.units if not all(unit in self.held(number) for number in range(len(self.units)))
        )


WHOLE_UNIT: Final = UnitName("fragment-0")
_FRAGMENTS: Final = tuple(UnitName(f"fragment-{number}") for number in range(4))
_TRUNK: Final = UnitName("trunk")
_EXPERTS: Final = tuple(UnitName(f"expert-{number}") for number in range(3))
_STAGES: Final = tuple(UnitName(f"stage-{number}") for number in range(2))

WHOLE: Final = Layout("whole", (WHOLE_UNIT,), lambda number: (WHOLE_UNIT,))
FRAGMENTS: Final = Layout("fragments", _FRAGMENTS, lambda number: _FRAGMENTS)
EXPERTS: Final = Layout("experts", (_TRUNK, *_EXPERTS), lambda number: (_TRUNK, _EXPERTS[number % 3]))
STAGES: Final = Layout("stages", _STAGES, lambda number: (_STAGES[number % 2],))
