"""Importing without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Disable the garbage collector in the block, and freeze what the block created.

    Imports create hundreds of thousands of objects and no garbage. The collector would look through them again and again, also later,
    while no heartbeat is answered and no byte is moved. Garbage from before the block that was not yet found is never found, so use
    this for the first imports of a process only.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.enable()
