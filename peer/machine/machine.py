"""This peer's use of its owner's machine: memory of all its processes, and the NVIDIA card that trains if there is one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from peer.machine.card import find_card
from peer.machine.energy import EnergyMeter, NvmlMeter, RaplMeter
from peer.machine.memory import Family

log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
"""Walking all processes takes milliseconds. A ceiling needs a temperature that is no older than this."""


@dataclass(frozen=True, slots=True)
class MachineUse:
    """One reading. The card's values are None without an NVIDIA driver, and if another device trains. Each is also None if that card
    does not report it.

    Attributes:
        memory_bytes: resident memory of the daemon, p2pd and the worker together.
        gpu_memory_bytes: in use on the card, by all programs.
        gpu_busy: share of the last moments in which the card computed, 0 to 1.
        gpu_celsius: its temperature.
        gpu_watts: its power draw.
        energy_joules: of all cards that train and of the processor since the first reading, by all programs; None without a meter.
        energy_note: why meters are missing, in one line.
    """

    memory_bytes: int = 0
    gpu_memory_bytes: int | None = None
    gpu_busy: float | None = None
    gpu_celsius: int | None = None
    gpu_watts: float | None = None
    energy_joules: float | None = None
    energy_note: str = ""


@dataclass(frozen=True, slots=True)
class WatchedCard:
    """One of several cards that train.

    Attributes:
        name: for people, as "card 1".
        world: index of the replica that it trains, alone or with others.
    """

    uuid: str
    name: str
    world: int


class MachineMeter:
    """Reads at most every LOOK_EVERY_S seconds, and returns the last reading in between.

    Attributes:
        trains_on: the UUID of the card that trains, as torch names it; NO_CARD for another device, None while that is unknown.
        watches: the cards that train, where there are several.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looked_at_s: float | None = None
        self._last = MachineUse()
        self._family = Family()
        self.trains_on: Callable[[], str | None] = lambda: None
        self.watches: Callable[[], tuple[WatchedCard, ...]] = tuple
        self._cards: dict[str, MachineUse] = {}
        self._uuid: str | None = None
        self._has_card = True
        self._had_card = False
        self._energy = EnergyMeter((NvmlMeter(self._trained_cards), RaplMeter()))

    def read(self) -> MachineUse:
        """The latest reading."""
        now_s = self._now_s()
        if self._looked_at_s is None or now_s - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = now_s
            joules, note = self._energy.read(now_s)
            self._last = replace(self._look(), energy_joules=joules, energy_note=note)
        return self._last

    def cards(self) -> tuple[tuple[WatchedCard, MachineUse], ...]:
        """Each of several cards with its latest reading."""
        self.read()
        return tuple((card, self._cards.get(card.uuid, MachineUse())) for card in self.watches())

    def _trained_cards(self) -> tuple[str | None, ...]:
        watched = tuple(card.uuid for card in self.watches())
        return watched or (self.trains_on(),)

    def _look(self) -> MachineUse:
        memory_bytes, uuid = self._family.memory_bytes(), self.trains_on()
        self._cards = {card.uuid: _of_one(card.uuid) for card in self.watches()}
        if uuid != self._uuid:
            self._uuid, self._has_card, self._had_card = uuid, True, False
        if self._has_card:
            try:
                use, self._had_card = _with_card(memory_bytes, uuid), True
                return use
            except OSError as error:
                # A card that was there is tried again: its owner may rely on a temperature ceiling.
                self._has_card = self._had_card
                log.debug("no_nvidia_card", reason=str(error))
        return MachineUse(memory_bytes)


def _of_one(uuid: str) -> MachineUse:
    """The reading of one of several cards; an empty one while the driver does not answer."""
    try:
        return _with_card(0, uuid)
    except OSError as error:
        log.debug("card_not_read", uuid=uuid, reason=str(error))
        return MachineUse()


def _with_card(memory_bytes: int, uuid: str | None) -> MachineUse:
    """Raises OSError without a card or a driver, and if it is unknown which card trains."""
    import pynvml

    try:
        pynvml.nvmlInit()
        found = find_card(pynvml, uuid)
        used_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(found.handle).used)
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from error

    def reading(ask: Callable[[], int], per: float = 1.0) -> float | None:
        # A partitioned card does not report its load, and a laptop's card not its power. The other values still count.
        try:
            return ask() / per
        except pynvml.NVMLError:
            return None

    card = found.whole
    celsius = reading(lambda: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU))
    return MachineUse(
        memory_bytes=memory_bytes,
        gpu_memory_bytes=used_bytes,
        gpu_busy=reading(lambda: pynvml.nvmlDeviceGetUtilizationRates(card).gpu, 100),
        gpu_celsius=None if celsius is None else round(celsius),
        gpu_watts=reading(lambda: pynvml.nvmlDeviceGetPowerUsage(card), 1000),
    )
