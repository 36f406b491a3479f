"""Meters of this machine's energy: NVIDIA's driver, and the kernel's view of the processor (RAPL). None needs root by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from peer.machine.card import FoundCard, find_card, text_of
from peer.machine.energy_core import EnergyCount, MeterReading, counted

log = structlog.get_logger()

POWERCAP: Final = Path("/sys/class/powercap")
"""The kernel's folder of power zones (docs.kernel.org/power/powercap/powercap.html)."""

_ZONES: Final = "intel-rapl:*"
_COUNTED_ZONES: Final = ("package-", "dram")
"""Beginnings of the names of zones that are counted. Other zones are parts of a package, or all of the machine once more."""

_MOST_DIGITS: Final = 32
_MICRO: Final = 1e-6
_MILLI: Final = 1e-3

NO_METER: Final = "no meter of this machine can be read"
ROOT_ALONE: Final = "the processor's meter is for root alone: sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj"
MACOS: Final = "macOS tells its power to root alone"


class Meter(Protocol):
    """Meters of one kind."""

    def read(self) -> Sequence[MeterReading]:
        """The counts of this moment; nothing of a meter that cannot be read. Never raises."""
        ...

    @property
    def problem(self) -> str:
        """Why the last reading is empty, with what would help, in one line; empty if there is nothing to say."""
        ...


class NvmlMeter:
    """The energy counter of NVIDIA cards, from Volta on. A part of a card has the counter of the whole.

    Args:
        uuids: of the cards that train, as torch names them; None for the only card, "" for none.
    """

    problem = ""

    def __init__(self, uuids: Callable[[], Sequence[str | None]]) -> None:
        self._uuids = uuids

    def read(self) -> Sequence[MeterReading]:
        """Each card once, by its own UUID."""
        import pynvml

        try:
            pynvml.nvmlInit()
            cards = list(self._found(pynvml))
        except (pynvml.NVMLError, OSError):
            return ()
        return tuple(dict(cards).values())

    def _found(self, pynvml: Any) -> Iterator[tuple[str, MeterReading]]:
        for uuid in self._uuids():
            try:
                found: FoundCard = find_card(pynvml, uuid)
                name = text_of(pynvml.nvmlDeviceGetUUID(found.whole))
                joules = float(pynvml.nvmlDeviceGetTotalEnergyConsumption(found.whole)) * _MILLI
            except (pynvml.NVMLError, OSError):
                continue  # an old card, or one that is lost
            yield name, MeterReading(name, joules)


class RaplMeter:
    """The processor's packages and memory, by all programs. Since 2020 most kernels let root alone read them.

    Args:
        folder: where the kernel shows its zones.
    """

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._folder = folder
        self.problem = ""

    def read(self) -> Sequence[MeterReading]:
        """Each zone that is counted, by its folder's name."""
        found, self.problem = list[MeterReading](), ""
        try:
            zones = sorted(self._folder.glob(_ZONES))
        except OSError:
            return ()
        for zone in zones:
            try:
                reading = _zone(zone)
            except PermissionError:
                self.problem = ROOT_ALONE
                continue
            except (OSError, ValueError):
                continue  # gone, or no number
            if reading is not None:
                found.append(reading)
        return found


class EnergyMeter:
    """The sum of some meters since this process first read them.

    Args:
        meters: of different things.
        platform: as `sys.platform`.
    """

    def __init__(self, meters: Sequence[Meter], platform: str = sys.platform) -> None:
        self._meters, self._platform = meters, platform
        self._count, self._told = EnergyCount(), ""

    def read(self, now_s: float) -> tuple[float | None, str]:
        """(joules since the first reading, None before any meter was read; why there are none or fewer, in one line)."""
        readings = [reading for meter in self._meters for reading in meter.read()]
        self._count = counted(self._count, readings, now_s)
        problem = self._problem(bool(readings))
        if problem and problem != self._told:
            log.debug("energy_not_read", reason=problem)
            self._told = problem
        return (self._count.joules if self._count.has_meter else None), problem

    def _problem(self, has_any: bool) -> str:
        told = next((meter.problem for meter in self._meters if meter.problem), "")
        if told or has_any:
            return told
        return MACOS if self._platform == "darwin" else NO_METER


def _zone(zone: Path) -> MeterReading | None:
    """The count of a zone; None for one that is not counted. Raises OSError, ValueError."""
    if not _text(zone / "name").startswith(_COUNTED_ZONES):
        return None
    joules = int(_text(zone / "energy_uj")) * _MICRO
    try:
        wraps_at: float | None = int(_text(zone / "max_energy_range_uj")) * _MICRO
    except (OSError, ValueError):
        wraps_at = None
    return MeterReading(zone.name, joules, wraps_at)


def _text(path: Path) -> str:
    with path.open(encoding="ascii", errors="replace") as file:
        return file.read(_MOST_DIGITS).strip()
