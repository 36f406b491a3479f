"""Reads what `plan/cards_core.py` decides by."""

from __future__ import annotations

import platform
import subprocess
from typing import Final

import psutil
import torch

from peer.training.plan.cards_core import Card

_ASK_CHIP: Final = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
_ASK_WITHIN_S: Final = 5.0


def read_card(device: torch.device) -> Card:
    """The card behind a device."""
    machine_bytes = psutil.virtual_memory().total
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        found = torch.cuda.get_device_properties(index)
        if torch.version.hip is not None:
            return Card("rocm", found.name, found.total_memory, architecture=str(getattr(found, "gcnArchName", "")))
        return Card("cuda", found.name, found.total_memory, torch.cuda.get_device_capability(index))
    if device.type == "mps":
        chip = _apple_chip()
        return Card("mps", chip or "Apple", machine_bytes, architecture=chip)
    return Card("cpu", platform.processor() or platform.machine(), machine_bytes)


def _apple_chip() -> str:
    """The chip's name; empty if the system does not say it."""
    try:
        asked = subprocess.run(_ASK_CHIP, capture_output=True, text=True, timeout=_ASK_WITHIN_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()
