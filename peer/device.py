"""Where training runs, and in which precision."""

from __future__ import annotations

from typing import Final

import torch

from protocol.errors import MachineError

_MEMORY_WORDS: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")


def choose_device(wanted: str) -> torch.device:
    """The device to train on; "auto" takes cuda, then mps, then cpu.

    Raises:
        MachineError: the device asked for is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, is_there in available.items() if is_there))
    if not available.get(wanted, False):
        there = ", ".join(name for name, is_there in available.items() if is_there)
        raise MachineError(
            f"device {wanted} is not available", f"one of: {there}", "check the driver, or use --device auto"
        )
    return torch.device(wanted)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python ran out of memory, on any device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _MEMORY_WORDS)
    )


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """bfloat16 where the hardware multiplies it natively; None where it would only be slower."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16
    return None
