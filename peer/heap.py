"""How this process's memory allocator treats what is freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
MAPPED_FROM_BYTES: Final = 4 << 20
"""Larger pieces are the kernel's at once when they are freed: whole vectors."""

KEPT_BYTES: Final = 32 << 20
"""What a thread may keep of freed memory for its next use."""


def keep_freed_memory() -> bool:
    """Keep freed frames and runs of values for the next ones, in this process, for good; whether the C library can be told so.

    glibc gives the end of its heap back as soon as 128 KiB of it are free, and maps larger pieces anew each time. A round then touches
    the same megabyte as if it were new hundreds of times, a page fault of 2 us for each 4 KiB: as much as its arithmetic.
    """
    with suppress(AttributeError, OSError):  # another C library than glibc
        set_option = ctypes.CDLL(None).mallopt
        return bool(set_option(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)) and bool(
            set_option(_M_TRIM_THRESHOLD, KEPT_BYTES)
        )
    return False
