"""Memory that was freed, and that the C library has not given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final


def _trim() -> Callable[[int], object] | None:
    """malloc_trim of glibc; None for other C libraries, which have no such function."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None


_TRIM: Final = _trim()


def give_back_freed() -> None:
    """Give freed memory back to the system. Without this a heap keeps what many small pieces took, if anything that lives longer lies
    behind them. It takes milliseconds; call it after work that took much memory in small pieces. Does nothing without glibc.
    """
    if _TRIM is not None:
        _TRIM(0)
