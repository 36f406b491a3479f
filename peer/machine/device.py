"""The device and precision for training."""

from __future__ import annotations

from typing import Final

import torch

from peer.machine.card import NO_CARD
from protocol.errors import MachineError

_MEMORY_WORDS: Final = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "status_alloc_failed",  # libraries of a card, where another program took the last of its memory
    "hiperroroutofmemory",
)

_MOST_MPS_SHARE: Final = 2.0
"""Share of the memory that Metal recommends; torch takes no more."""


def choose_device(wanted: str) -> torch.device:
    """The device to train on; "auto" takes cuda, then mps, then cpu. A number names one card, as in "cuda:1".

    Raises:
        MachineError: the device asked for is not there.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if wanted == "auto":
        return torch.device(next(name for name, is_there in available.items() if is_there))
    kind, _, number = wanted.partition(":")
    if number and kind == "cuda" and available["cuda"] and int(number) >= torch.cuda.device_count():
        raise MachineError(
            f"card {number} is not there",
            f"one of: {', '.join(str(index) for index in range(torch.cuda.device_count()))}",
            "see potluck doctor, or leave --gpus away",
        )
    if not available.get(kind, False):
        there = ", ".join(name for name, is_there in available.items() if is_there)
        raise MachineError(
            f"device {wanted} is not available", f"one of: {there}", "check the driver, or use --device auto"
        )
    return torch.device(wanted)


def check_can_limit(device: torch.device) -> None:
    """Check that `limit_memory` can work on this device.

    Raises:
        MachineError: this torch cannot hold that device to a limit.
    """
    if device.type == "mps" and not all(
        hasattr(torch.mps, name) for name in ("recommended_max_memory", "set_per_process_memory_fraction")
    ):
        raise MachineError(
            f"torch {torch.__version__} cannot limit the memory it takes on {device.type}",
            "one that can",
            "install a newer torch, or leave --max-gpu-memory-gb away",
        )


def limit_memory(device: torch.device, most_bytes: int) -> None:
    """Make torch run out of memory at `most_bytes`, as if the device had no more. The driver's own memory is not counted. The CPU's
    memory is not limited this way.

    Raises:
        MachineError: this torch cannot hold that device to a limit.
    """
    check_can_limit(device)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        all_bytes = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, most_bytes / all_bytes), index)
    elif device.type == "mps":
        share = most_bytes / torch.mps.recommended_max_memory()
        torch.mps.set_per_process_memory_fraction(min(_MOST_MPS_SHARE, share))


def card_uuid(device: torch.device) -> str | None:
    """Torch's name of the NVIDIA card that this device is, by which its driver knows it; NO_CARD for another device, None if this
    torch cannot tell.
    """
    if device.type != "cuda":
        return NO_CARD
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid: object = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)


def give_back_memory(device: torch.device) -> None:
    """Return torch's cached memory of an accelerator to the system, for other programs on that card."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def most_used_bytes(device: torch.device) -> int:
    """The most bytes of the card that torch's tensors took since `forget_most_used`; 0 where torch does not count them."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def available_bytes(device: torch.device) -> int:
    """Bytes of the card that torch's tensors can still take; 0 where torch does not count them."""
    if device.type != "cuda":
        return 0
    free_bytes, all_bytes = torch.cuda.mem_get_info(device)
    allowed_bytes = int(torch.cuda.get_per_process_memory_fraction(device) * all_bytes)
    reserved_bytes, allocated_bytes = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    return min(free_bytes, max(0, allowed_bytes - reserved_bytes)) + reserved_bytes - allocated_bytes


def has_room_of_step(device: torch.device) -> bool:
    """Whether torch's tensors could take now what they took at most since `forget_most_used`. True where torch does not count them."""
    return has_room_beside_step(device, 0)


def has_room_beside_step(device: torch.device, num_bytes: int) -> bool:
    """Whether torch's tensors could still take what they took at most since `forget_most_used` if so many bytes more were taken now.
    True where torch does not count them.
    """
    if device.type != "cuda":
        return True
    return available_bytes(device) - num_bytes >= most_used_bytes(device) - torch.cuda.memory_allocated(device)


def forget_most_used(device: torch.device) -> None:
    """Begin to count `most_used_bytes` anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python ran out of memory, on any device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _MEMORY_WORDS)
    )


def held_by_others(device: torch.device) -> int:
    """Bytes of a card's memory that other programs hold; 0 if that cannot be told."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return 0
    try:
        free_bytes, all_bytes = torch.cuda.mem_get_info(device)
        return max(0, all_bytes - free_bytes - torch.cuda.memory_reserved(device))
    except RuntimeError:  # the card answers nothing more
        return 0


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given, before a clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def is_on_card(device: torch.device) -> bool:
    """Whether its memory is a card's own, which torch takes at once where the CPU's is taken as it is written."""
    return device.type != "cpu"
