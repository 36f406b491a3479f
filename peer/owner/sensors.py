"""Readings of this machine's power and heat. An unknown value is None, never a guess."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Final, Protocol

import psutil
import trio

from averaging.network.seams.interfaces import Clock
from peer.machine.machine import MachineMeter
from peer.owner.controls_core import CardHeat, OwnerPause, Readings
from peer.owner.daily_traffic import DailyTraffic
from peer.owner.idle import IdleMeter
from peer.owner.pause_file import read_pause

_CPU_CHIPS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""Linux drivers that measure the processor, the closest to it first."""


class Sensors(Protocol):
    """A source of readings."""

    async def read(self) -> Readings:
        """The readings of this moment."""
        ...


class MachineSensors:
    """The machine's real sensors. Files and drivers are read on a thread. The card is read by the meter that the status uses, too.

    Args:
        zone: of the owner's wall clock, None for this machine's own.
        idle: None if idle time is not needed.
        traffic_bytes: sent and received by this process so far.
    """

    def __init__(
        self,
        state_dir: Path,
        clock: Clock,
        machine: MachineMeter,
        zone: tzinfo | None,
        idle: IdleMeter | None = None,
        traffic_bytes: Callable[[], int] = int,
    ) -> None:
        self._state_dir = state_dir
        self._clock = clock
        self._machine = machine
        self._zone = zone
        self._idle = idle
        self._traffic_bytes = traffic_bytes
        self._daily = DailyTraffic(state_dir)

    async def read(self) -> Readings:
        """The readings of this moment."""
        pause, (is_on_battery, percent), cpu, idle_s = await trio.to_thread.run_sync(self._look, self._clock.unix_s())
        local = datetime.fromtimestamp(self._clock.unix_s(), self._zone)
        use = self._machine.read()
        return Readings(
            now_s=self._clock.monotonic_s(),
            local=local if local.tzinfo is not None else local.astimezone(),
            pause=pause,
            is_on_battery=is_on_battery,
            battery_percent=percent,
            gpu_celsius=use.gpu_celsius,
            cards=tuple(CardHeat(card.name, card.world, found.gpu_celsius) for card, found in self._machine.cards()),
            cpu_celsius=cpu,
            idle_s=idle_s,
            today_bytes=await trio.to_thread.run_sync(self._daily.count, self._traffic_bytes(), local.date()),
            memory_bytes=use.memory_bytes,
        )

    def _look(
        self, now_unix_s: float
    ) -> tuple[OwnerPause | None, tuple[bool | None, float | None], float | None, float | None]:
        idle_s = self._idle.read(now_unix_s) if self._idle is not None else None
        return read_pause(self._state_dir), battery(), cpu_celsius(), idle_s


def battery() -> tuple[bool | None, float | None]:
    """(whether the machine runs on its battery, its charge in percent); None for an unknown value. A battery that neither charges
    nor drains, for example at a charge limit, counts as mains power.
    """
    try:
        found = psutil.sensors_battery()
    except OSError:  # the battery was removed during the reading
        return None, None
    if found is None:
        return None, None
    return found.power_plugged is False, float(found.percent)


def cpu_celsius() -> float | None:
    """Temperature of the processor's hottest part, None if no driver measures it."""
    try:
        found = psutil.sensors_temperatures()
    except OSError:
        return None
    for chip in _CPU_CHIPS:
        if found.get(chip):
            return max(float(part.current) for part in found[chip])
    return None
