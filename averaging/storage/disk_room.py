"""Measures the free room on the disk under a daemon's state folder, now and then."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Offload
from averaging.storage.full_disk import FULL_BYTES, full_disk_sentence, is_of_full_disk, still_refuses

log = structlog.get_logger()

LOOK_EVERY_S: Final = 20.0
"""A disk fills over minutes, and the measurement of a network disk may hang."""


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """One measurement: bytes that are free for us, and all bytes of the disk."""

    free_bytes: int
    all_bytes: int


class DiskMeter:
    """Measures in a task of its own, so that readers of `room` never wait for a disk.

    Attributes:
        room: the last measurement, None if there is none.
        needed_bytes: room that its owner needs for one write. A disk with less counts as full.
    """

    def __init__(self, folder: Path, offload: Offload) -> None:
        self.folder, self._offload = folder, offload
        self.room: DiskRoom | None = None
        self.needed_bytes = FULL_BYTES
        self._heard, self._refusal, self._refused_s = "", "", 0.0

    def hear(self, event: Mapping[str, object]) -> None:
        """Note a log event whose reason is a full disk; every other one is nothing. From any thread."""
        reason = str(event.get("reason", ""))
        if is_of_full_disk(reason):
            self._heard = reason

    def sentence(self, now_s: float) -> str:
        """A full disk in one sentence; empty while it has room and refuses nothing. `now_s`: monotonic seconds."""
        if self._heard:
            self._heard, self._refusal, self._refused_s = "", self._heard, now_s
        free_bytes = None if self.room is None else self.room.free_bytes
        has_room = free_bytes is not None and free_bytes >= self.needed_bytes
        is_short = free_bytes is not None and not has_room
        if not is_short and not (
            self._refusal and still_refuses(self._refusal, now_s - self._refused_s, has_room=has_room)
        ):
            return ""
        return full_disk_sentence(self.folder, self.needed_bytes, free_bytes)

    async def keep_measured(self) -> None:
        """Measure until cancelled. After a failure `room` is None until the next measurement."""
        while True:
            try:
                self.room = await self._offload.run(self._look)
            except OSError as error:
                self.room = None
                log.warning("disk_not_measured", reason=str(error))
            await trio.sleep(LOOK_EVERY_S)

    def _look(self) -> DiskRoom:
        use = shutil.disk_usage(self.folder)
        return DiskRoom(use.free, use.total)
