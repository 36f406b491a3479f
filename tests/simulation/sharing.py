"""What one peer says to many is decoded once in a simulated world: the same bytes make the same frozen message."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from averaging.rounds import peer_rounds
from protocol import wire

NUM_MESSAGES = 1024
"""Remembered at a time: more than are on their way."""


@contextmanager
def shared_decoding() -> Iterator[None]:
    """Until the world ends. What is refused is judged anew each time."""
    setattr(peer_rounds, "decode_message", functools.lru_cache(NUM_MESSAGES)(wire.decode_message))  # noqa: B010 - a module of another's
    try:
        yield
    finally:
        setattr(peer_rounds, "decode_message", wire.decode_message)  # noqa: B010
