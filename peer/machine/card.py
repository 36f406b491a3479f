"""The NVIDIA card that trains, as its driver knows it.

CUDA numbers the cards that a process may use, fastest first. The driver numbers all cards by their places. So a card is found by its
UUID, never by a number of the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

NO_CARD: Final = ""
"""In place of a UUID: training uses no NVIDIA card."""

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class CardsHidden(OSError):
    """CUDA_VISIBLE_DEVICES names no card."""


class CardUnknown(OSError):
    """There are several cards, and nothing says yet which of them trains."""


class FoundCard:
    """One card, or a part of one, found with a started `pynvml`.

    Args:
        handle: of the card or the part: its name and its memory.
        whole: of the card as a whole: heat, power and load. A part has none of its own.
    """

    def __init__(self, handle: Any, whole: Any) -> None:
        self.handle, self.whole = handle, whole


def find_card(pynvml: Any, uuid: str | None, environment: Mapping[str, str] = os.environ) -> FoundCard:
    """The card that trains. `uuid` is torch's name for it, with or without its prefix; None before torch has named it. The card is
    then the one that CUDA_VISIBLE_DEVICES names first, or the only one.

    Raises:
        CardsHidden, CardUnknown: as above. OSError: there is no such card. pynvml.NVMLError: the driver does not answer.
    """
    if uuid == NO_CARD:
        raise OSError("training uses no NVIDIA card")
    if uuid is not None:
        return _named(pynvml, uuid)
    first = first_visible(environment.get(_VISIBLE))
    if first is None:
        return _only(pynvml)
    if isinstance(first, str):
        return _named(pynvml, first)
    return _whole(pynvml.nvmlDeviceGetHandleByIndex(first))


def largest_card(pynvml: Any) -> FoundCard:
    """The card with most memory, for facts about the driver where torch takes no card. Raises pynvml.NVMLError."""
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(int(pynvml.nvmlDeviceGetCount()))]
    return _whole(max(handles, key=lambda handle: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)))


def first_visible(text: str | None) -> int | str | None:
    """The first card that CUDA_VISIBLE_DEVICES names: its index or its UUID; None if the variable is not set.

    Raises:
        CardsHidden: it names none. CUDA stops at the first name that it does not understand.
    """
    if text is None:
        return None
    name = text.split(",")[0].strip()
    if name.isascii() and name.isdigit():
        return int(name)
    if name.startswith(("GPU-", "MIG-")):
        return name
    raise CardsHidden(f"{_VISIBLE} hides every card")


def _named(pynvml: Any, uuid: str) -> FoundCard:
    """The card with this UUID, or the part of a card; also a card whose UUID begins with it, which CUDA allows."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    for name in [uuid] if uuid != bare else [f"GPU-{bare}", f"MIG-{bare}"]:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(name)
        except pynvml.NVMLError:
            continue
        is_part = name.startswith("MIG-")
        return FoundCard(handle, pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_part else handle)
    for index in range(int(pynvml.nvmlDeviceGetCount()) if bare else 0):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if text_of(pynvml.nvmlDeviceGetUUID(handle)).removeprefix("GPU-").startswith(bare):
            return _whole(handle)
    raise OSError(f"the driver knows no card {uuid}")


def _only(pynvml: Any) -> FoundCard:
    count = int(pynvml.nvmlDeviceGetCount())
    if count > 1:
        raise CardUnknown(f"there are {count} NVIDIA cards, and torch has not said yet which of them trains")
    return _whole(pynvml.nvmlDeviceGetHandleByIndex(0))


def _whole(handle: Any) -> FoundCard:
    return FoundCard(handle, handle)


def text_of(value: str | bytes) -> str:
    """As text: older releases of pynvml give bytes."""
    return value.decode("utf8", "replace") if isinstance(value, bytes) else value
