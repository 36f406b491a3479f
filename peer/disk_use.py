"""How much of the owner's disk the run takes, looked at now and then."""

from __future__ import annotations

from typing import Final

import trio

from averaging.network.seams import Storage
from peer.board import Board

LOOK_EVERY_S: Final = 20.0


async def keep_measured(storage: Storage, board: Board) -> None:
    """Tell the board, until cancelled."""
    while True:
        board.disk_bytes = await storage.size_bytes()
        await trio.sleep(LOOK_EVERY_S)
