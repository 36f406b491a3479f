"""A full disk in words for people. Imports nothing heavy: the front door says it, too."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

FULL_BYTES: Final = 1 << 20
"""A disk with less room counts as full: not even a log or a ledger can grow on it."""

_FULL: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


def is_of_full_disk(reason: str) -> bool:
    """Whether the system gave a full disk, or a used-up quota of it, as the reason of a failure."""
    return any(text in reason for text in _FULL)


def full_disk_sentence(folder: Path) -> str:
    """A full disk in one sentence, with what to do about it."""
    return f"the disk of {folder} is full: free some space; training goes on, and rounds are saved and counted again after that"
