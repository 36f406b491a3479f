"""Memory of the daemon for the bytes of a snapshot: a mapping of its own.

Such memory is filled by reads of a file or a stream, and goes back to the system without the interpreter's lock. Memory of a `bytes`
object holds that lock, and so the event loop, as long as it is copied or freed.
"""

from __future__ import annotations

import mmap
from typing import Final

from protocol.errors import no_memory

SnapshotBytes = bytes | memoryview
"""A snapshot, or the values of a share. A view is writable and has memory of its own, so its content can be read without a copy."""

_FLAGS: Final = mmap.MAP_PRIVATE | mmap.MAP_ANON


def own_memory(num_bytes: int) -> memoryview:
    """Writable memory of this length, zero at first. It takes pages as it is written, and frees them with its last reference.

    Raises:
        MachineError: the system gives none.
    """
    if not num_bytes:
        return memoryview(bytearray())
    try:
        return memoryview(mmap.mmap(-1, num_bytes, flags=_FLAGS))
    except (OSError, MemoryError) as error:
        raise no_memory(num_bytes) from error
