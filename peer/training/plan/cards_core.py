"""The abilities of a card: pure facts by its kind and name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from peer.training.plan.card_plan import Precision

CardKind = Literal["cpu", "cuda", "rocm", "mps"]

_VOLTA: Final = (7, 0)
_AMPERE: Final = (8, 0)
_PASCAL_FP16: Final = (6, 0)
"""Of the Pascal cards only the P100 multiplies float16 faster than float32."""

_CDNA: Final = frozenset({"gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"})
_APPLE: Final = re.compile(r"Apple M(\d+)")
_GFX: Final = re.compile(r"gfx(\d+?)[0-9a-f]{2}\b")


@dataclass(frozen=True, slots=True)
class Card:
    """A device that trains.

    Attributes:
        name: as its driver says it.
        memory_bytes: of the device; of the machine for "cpu" and "mps".
        capability: of CUDA, (0, 0) for others.
        architecture: of ROCm, such as "gfx1100"; the chip's name for "mps", such as "Apple M3 Pro"; empty for others.
    """

    kind: CardKind
    name: str
    memory_bytes: int
    capability: tuple[int, int] = (0, 0)
    architecture: str = ""


def native_precision(card: Card) -> Precision:
    """The type in which the card multiplies fastest without losing the range that training needs. bfloat16 needs no loss scale, so it
    is taken where the hardware has it; float16 where the hardware has only that.

    Sources: NVIDIA's CUDA C++ guide, table of compute capabilities; AMD's ROCm precision tables; Metal has bfloat16 from the M3 on.
    """
    match card.kind:
        case "cuda":
            if card.capability >= _AMPERE:
                return "bf16"
            return "fp16" if card.capability >= _VOLTA or card.capability == _PASCAL_FP16 else "fp32"
        case "rocm":
            return _rocm_precision(card.architecture)
        case "mps":
            chip = _APPLE.search(card.architecture)
            return "bf16" if chip is not None and int(chip[1]) >= 3 else "fp32"
        case "cpu":
            return "fp32"


def _rocm_precision(architecture: str) -> Precision:
    name = architecture.split(":")[0]
    if name in _CDNA:
        return "bf16"
    found = _GFX.match(name)
    generation = int(found[1]) if found is not None else 0
    if generation >= 11:
        return "bf16"
    return "fp16" if generation == 10 else "fp32"
