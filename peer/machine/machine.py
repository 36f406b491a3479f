"""What this peer takes of its owner's machine: memory of all its processes, and the first NVIDIA card where there is one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from peer.machine.memory import Family

log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
"""Walking all processes takes milliseconds, and a temperature must not be older where its ceiling is kept."""


@dataclass(frozen=True, slots=True)
class MachineUse:
    """One look; the card's figures are None where there is no NVIDIA driver, and one of them alone where that card does not tell it.

    Attributes:
        memory_bytes: resident memory of the daemon, p2pd and the worker together.
        gpu_memory_bytes: in use on the card, by whomever.
        gpu_busy: share of the last moments in which the card computed, 0 to 1.
        gpu_celsius: its temperature.
        gpu_watts: the power that it draws.
    """

    memory_bytes: int = 0
    gpu_memory_bytes: int | None = None
    gpu_busy: float | None = None
    gpu_celsius: int | None = None
    gpu_watts: float | None = None


class MachineMeter:
    """Looks at most every LOOK_EVERY_S seconds; between two looks the last one stands."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looked_at_s: float | None = None
        self._last = MachineUse()
        self._family = Family()
        self._has_card = True
        self._had_card = False

    def read(self) -> MachineUse:
        """The latest look."""
        now_s = self._now_s()
        if self._looked_at_s is None or now_s - self._looked_at_s >= LOOK_EVERY_S:
            self._looked_at_s = now_s
            self._last = self._look()
        return self._last

    def _look(self) -> MachineUse:
        memory_bytes = self._family.memory_bytes()
        if self._has_card:
            try:
                use, self._had_card = _with_card(memory_bytes), True
                return use
            except OSError as error:
                # one that was there before is asked again: its owner may rely on a ceiling of its temperature
                self._has_card = self._had_card
                log.debug("no_nvidia_card", reason=str(error))
        return MachineUse(memory_bytes)


def _with_card(memory_bytes: int) -> MachineUse:
    """Raises OSError where there is no card or no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        used_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(card).used)
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from error

    def told(ask: Callable[[], int], per: float = 1.0) -> float | None:
        # A card cut into parts does not say how busy it is, and a laptop's not what it draws: the rest counts all the same.
        try:
            return ask() / per
        except pynvml.NVMLError:
            return None

    celsius = told(lambda: pynvml.nvmlDeviceGetTemperature(card, pynvml.NVML_TEMPERATURE_GPU))
    return MachineUse(
        memory_bytes=memory_bytes,
        gpu_memory_bytes=used_bytes,
        gpu_busy=told(lambda: pynvml.nvmlDeviceGetUtilizationRates(card).gpu, 100),
        gpu_celsius=None if celsius is None else round(celsius),
        gpu_watts=told(lambda: pynvml.nvmlDeviceGetPowerUsage(card), 1000),
    )
