"""A full disk in words for people. Imports nothing heavy: the front door says it, too."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

from protocol.tables import in_bytes

FULL_BYTES: Final = 1 << 20
"""A disk with less room counts as full: not even a log or a ledger can grow on it."""

FULL_SHOWN_S: Final = 600.0
"""A full disk is told for this long after it last refused: it refuses with every round until there is room."""

ROOM_BELIEVED_S: Final = 60.0
"""A measurement that found room is believed this long after the last refusal, for it may be older than that."""

ROOM_AGAIN: Final = "the disk has room again"
"""The line for people once a full disk has room."""

_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def is_of_full_disk(reason: str) -> bool:
    """Whether the system gave a full disk, or a used-up quota of it, as the reason of a failure."""
    return any(text in reason for text in _FULL)


def still_refuses(reason: str, ago_s: float, *, has_room: bool) -> bool:
    """Whether a full disk is still to be told, `ago_s` seconds after it refused for this reason. `has_room`: whether a measurement
    found room for all that may come.
    """
    return ago_s < (ROOM_BELIEVED_S if has_room and not is_of_quota(reason) else FULL_SHOWN_S)


def is_of_quota(reason: str) -> bool:
    """Whether the system gave a used-up quota as the reason: the disk itself may have room."""
    return os.strerror(errno.EDQUOT) in reason


def full_disk_sentence(folder: Path, needed_bytes: int, free_bytes: int | None) -> str:
    """A full disk in one sentence, with what to do about it.

    Args:
        folder: the state folder.
        needed_bytes: the room that its owner may still take.
        free_bytes: the free room of the disk; None if it is not known. A quota shows as more than `needed_bytes`.
    """
    if free_bytes is None or free_bytes >= max(FULL_BYTES, needed_bytes):
        return (
            f"the disk at {folder} is full: it refuses to take more, or a quota is used up; free space and it goes on"
        )
    needed = in_bytes(max(FULL_BYTES, needed_bytes))
    return f"the disk at {folder} is full: {needed} needed, {in_bytes(free_bytes)} free; free space and it goes on"
