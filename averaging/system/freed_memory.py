"""Memory that was freed goes back to the system, although the C library would keep it."""

from __future__ import annotations

import ctypes
from typing import Final

LARGE_BYTES: Final = 4 << 20
"""A block of so many bytes has memory of its own. Smaller ones are used again and again, and the system clears new memory first."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Of malloc.h, for mallopt(3)."""


def _glibc() -> ctypes.CDLL | None:
    """This process's C library; None for one without the functions of glibc."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return library if hasattr(library, "malloc_trim") and hasattr(library, "mallopt") else None


_GLIBC: Final = _glibc()


def give_back_freed() -> None:
    """Give freed memory back to the system. Without this a heap keeps what many small pieces took, if anything that lives longer lies
    behind them. It takes milliseconds; call it after work that took much memory in small pieces. Does nothing without glibc.
    """
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)


def give_back_large_blocks() -> None:
    """From now on, blocks of LARGE_BYTES go back to the system when they are freed. glibc would raise this limit to 32 MB as such
    blocks are freed, and each thread would keep some: a slice of a result has that size. Does nothing without glibc.
    """
    if _GLIBC is not None:
        _GLIBC.mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        _GLIBC.mallopt(_M_TRIM_THRESHOLD, 2 * LARGE_BYTES)
