"""The actions that the first rank of a replica shares with the others, and how a rank leaves when its daemon is gone."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

STEP: Final = b"step"
"""Take a step. At each boundary of a micro-batch the first rank says whether it goes on."""

END: Final = b"end"
"""Keep what the next process continues from, and end."""

_WRITTEN: Final = b"written "
_FOR_EVER: Final = "ever"

LEAVE_WITHIN_S: Final = 60.0
"""After the daemon's end: enough to keep the optimizer's moments. A rank that waits longer waits for one that cannot answer."""


def written_within(timeout_s: float | None) -> bytes:
    """Wait for so long (None: without limit) until the snapshot is written, and tell whether it is."""
    return _WRITTEN + (_FOR_EVER if timeout_s is None else timeout_s.hex()).encode()


def asks_if_written(action: bytes) -> bool:
    """Whether it is an action made by `written_within`."""
    return action.startswith(_WRITTEN)


def timeout_of(action: bytes) -> float | None:
    """The time that `written_within` was given."""
    word = action.removeprefix(_WRITTEN).decode()
    return None if word == _FOR_EVER else float.fromhex(word)


def boundary_word(goes_on: bool, units: Sequence[tuple[int, int]]) -> bytes:
    """At a boundary of a micro-batch: whether the step goes on, one byte, and the units whose values are to be brought, each with the
    number of the area that holds them.
    """
    return (b"1" if goes_on else b"0") + ",".join(f"{unit}.{area}" for unit, area in units).encode()


def read_boundary(word: bytes) -> tuple[bool, list[tuple[int, int]]]:
    """The reverse of `boundary_word`."""
    parts = [part.split(b".") for part in word[1:].split(b",") if part]
    return word[:1] == b"1", [(int(unit), int(area)) for unit, area in parts]


def leave_after_daemon(channel: socket.socket, code: int) -> None:
    """Watch the channel in a thread: some time after its other end is closed this process ends with `code`, whatever it waits for.
    A collective may wait for a rank that is frozen.
    """
    threading.Thread(target=_watch, args=(channel.fileno(), code), name="daemon watch", daemon=True).start()


def _watch(descriptor: int, code: int) -> None:
    ends = select.poll()
    ends.register(descriptor, getattr(select, "POLLRDHUP", select.POLLHUP))
    ends.poll()
    time.sleep(LEAVE_WITHIN_S)
    os._exit(code)
