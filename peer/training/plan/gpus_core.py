"""The setting `gpus`, "auto", "all" or "0,1": strict parsing. Pure.

Cards are numbered as torch numbers them: those that CUDA_VISIBLE_DEVICES leaves, from 0 on, and the fastest first unless
CUDA_DEVICE_ORDER says otherwise. Every line for people uses these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from protocol.errors import ConfigError

AUTO: Final = "auto"
ALL: Final = "all"

MOST_CARDS: Final = 64
"""Cards of one machine, and processes on the CPU."""

LOOK: Final = "`potluck doctor` lists the cards"

_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]{4,80}")


def parse_gpus(text: str) -> tuple[str, ...]:
    """The names in the setting `gpus`: "auto" or "all" alone, or numbers and UUIDs.

    Raises:
        ConfigError: anything else, or a card that is named twice.
    """
    names = tuple(part.strip() for part in text.split(","))
    if names in ((AUTO,), (ALL,)):
        return names
    for name in names:
        if not (_NUMBER.fullmatch(name) or _UUID.fullmatch(name)):
            raise ConfigError(
                f"--gpus has {name[:60]!r}",
                'auto, all, or the numbers of cards, as "0,1"',
                LOOK,
            )
    plain = [str(int(name)) if name.isdigit() else name for name in names]
    twice = next((name for name in plain if plain.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"--gpus names card {twice} twice", "each card once", "remove one of them")
    if len(plain) > MOST_CARDS:
        raise ConfigError(f"--gpus names {len(plain)} cards", f"at most {MOST_CARDS}", LOOK)
    return tuple(plain)


def check_device(names: Sequence[str], device: str) -> None:
    """Check that these cards can be meant with this device.

    Raises:
        ConfigError: a Mac has one device; a process on the CPU has no UUID.
    """
    if tuple(names) in ((AUTO,), (ALL,)):
        return
    if device == "mps":
        raise ConfigError(
            f"--gpus {','.join(names)} with --device mps", "no --gpus: a Mac has one card", "leave --gpus away"
        )
    for name in names:
        if device == "cpu" and not (name.isdigit() and int(name) < MOST_CARDS):
            raise ConfigError(
                f"--gpus has {name!r} with --device cpu", f"numbers below {MOST_CARDS}, one a process", "as --gpus 0,1"
            )
