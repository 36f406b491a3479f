"""Measures the free room on the disk under a daemon's state folder, now and then."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Offload
from averaging.storage.full_disk import FULL_BYTES

log = structlog.get_logger()

LOOK_EVERY_S: Final = 20.0
"""A disk fills over minutes, and the measurement of a network disk may hang."""


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """One measurement: bytes that are free for us, and all bytes of the disk."""

    free_bytes: int
    all_bytes: int


class DiskMeter:
    """Measures in a task of its own, so that readers of `room` never wait for a disk."""

    def __init__(self, folder: Path, offload: Offload) -> None:
        self.folder, self._offload = folder, offload
        self.room: DiskRoom | None = None

    @property
    def is_full(self) -> bool:
        """Whether the last measurement found no room."""
        return self.room is not None and self.room.free_bytes < FULL_BYTES

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
