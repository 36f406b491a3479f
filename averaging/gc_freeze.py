"""Keeps the garbage collector out of imports and of training steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

STEPS_A_COLLECTION: Final = 100


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


def collect_between_steps(step: int) -> None:
    """After each training step, with its number: the collector runs after each `STEPS_A_COLLECTION`-th one, and never by itself. A
    pass through all objects within a step leaves a card without work.
    """
    gc.disable()
    if step % STEPS_A_COLLECTION == 0:
        gc.collect(1)
