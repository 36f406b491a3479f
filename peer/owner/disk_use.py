"""Measures from time to time how much of the owner's disk the run takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.network.seams.interfaces import Storage
from protocol.errors import StorageError

if TYPE_CHECKING:
    from peer.status.status_board import StatusBoard

log = structlog.get_logger()

LOOK_EVERY_S: Final = 20.0


async def keep_measured(storage: Storage, board: StatusBoard) -> None:
    """Measure and update the board until cancelled. A failed measurement is retried later, because only a displayed number depends
    on it.
    """
    while True:
        try:
            board.disk_bytes = await storage.size_bytes()
        except StorageError as error:
            log.warning("disk_not_measured", reason=error.one_line())
        await trio.sleep(LOOK_EVERY_S)
