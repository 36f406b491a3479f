"""Stand-ins for meters of energy: one in memory, and the kernel's files of a power zone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peer.machine.energy_core import MeterReading


class FakeMeter:
    """A meter whose count a test sets."""

    def __init__(self, name: str, joules: float, problem: str = "") -> None:
        self.name, self.joules, self.problem = name, joules, problem
        self.is_there = True

    def read(self) -> Sequence[MeterReading]:
        """Its count, or nothing while it is away."""
        return (MeterReading(self.name, self.joules),) if self.is_there else ()


def rapl_zone(folder: Path, zone: str, name: str, energy_uj: int, wraps_at_uj: int | None = None) -> Path:
    """Write the files of a zone as the kernel has them. Returns its folder."""
    path = folder / zone
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    if wraps_at_uj is not None:
        (path / "max_energy_range_uj").write_text(f"{wraps_at_uj}\n")
    return path
