"""A stand-in for pynvml with cards of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass(frozen=True, slots=True)
class NvmlCard:
    """One card, or a part of one."""

    name: str
    uuid: str
    celsius: int
    used: int
    total: int
    milliwatts: int
    percent: int
    capability: tuple[int, int] = (8, 9)
    millijoules: int = 7_000_000


COOL = NvmlCard("cool", "GPU-1111aaaa-0000-0000-0000-000000000000", 35, 1 << 30, 8 << 30, 15_000, 0, (6, 1))
HOT = NvmlCard("hot", "GPU-9999ffff-0000-0000-0000-000000000000", 91, 20 << 30, 24 << 30, 350_000, 99)
PART = NvmlCard("part of hot", "MIG-5555cccc-0000-0000-0000-000000000000", -1, 1 << 30, 3 << 30, -1, -1)


class Nvml(ModuleType):
    """pynvml, as far as Potluck uses it. `parts`: a part's UUID -> the part and its card."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, *cards: NvmlCard, parts: Mapping[str, tuple[NvmlCard, NvmlCard]] | None = None) -> None:
        super().__init__("pynvml")
        self._cards, self._parts = cards, parts or {}
        self.nvmlInit = lambda: None
        self.nvmlSystemGetDriverVersion = lambda: "570.86"
        self.nvmlSystemGetCudaDriverVersion_v2 = lambda: 12080
        self.nvmlDeviceGetCount = lambda: len(cards)
        self.nvmlDeviceGetHandleByIndex = self._by_index
        self.nvmlDeviceGetUUID = lambda card: card.uuid
        self.nvmlDeviceGetName = lambda card: card.name
        self.nvmlDeviceGetCudaComputeCapability = lambda card: self._of_a_whole(card).capability
        self.nvmlDeviceGetTemperature = lambda card, _kind: self._of_a_whole(card).celsius
        self.nvmlDeviceGetPowerUsage = lambda card: self._of_a_whole(card).milliwatts
        self.nvmlDeviceGetTotalEnergyConsumption = lambda card: self._of_a_whole(card).millijoules
        self.nvmlDeviceGetUtilizationRates = lambda card: SimpleNamespace(gpu=self._of_a_whole(card).percent)
        self.nvmlDeviceGetMemoryInfo = lambda card: SimpleNamespace(
            used=card.used, total=card.total, free=card.total - card.used
        )
        self.nvmlDeviceGetHandleByUUID = self._by_uuid
        self.nvmlDeviceGetDeviceHandleFromMigDeviceHandle = lambda part: self._parts[part.uuid][1]

    def _by_index(self, index: int) -> NvmlCard:
        if not 0 <= index < len(self._cards):
            raise self.NVMLError("Invalid Argument")
        return self._cards[index]

    def _by_uuid(self, uuid: str) -> NvmlCard:
        known: dict[str, Any] = {card.uuid: card for card in self._cards}
        known |= {name: part for name, (part, _) in self._parts.items()}
        if uuid not in known:
            raise self.NVMLError("Not Found")
        card: NvmlCard = known[uuid]
        return card

    def _of_a_whole(self, card: NvmlCard) -> NvmlCard:
        if card.uuid in self._parts:
            raise self.NVMLError("Not Supported")
        return card
