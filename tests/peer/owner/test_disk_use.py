from __future__ import annotations

import trio
import trio.testing

from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from peer.owner.disk_use import LOOK_EVERY_S, keep_measured
from peer.status.status_board import StatusBoard
from protocol.errors import StorageError
from protocol.ids import PeerId
from tests.virtual import VirtualClock

Clock = trio.testing.MockClock


async def test_the_board_learns_what_the_run_takes_of_the_disk(autojump_clock: Clock) -> None:
    storage, board = MemoryStorage(MemoryDisk()), StatusBoard(PeerId("me"), VirtualClock(), 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_measured, storage, board)
        await storage.write_atomic("a", [b"12345"])
        await trio.sleep(LOOK_EVERY_S + 1.0)
        assert board.disk_bytes == 5
        await storage.delete("a")
        await trio.sleep(LOOK_EVERY_S)
        assert board.disk_bytes == 0
        nursery.cancel_scope.cancel()


class _BadMoment(MemoryStorage):
    """Cannot be measured the first time."""

    asked = 0

    async def size_bytes(self) -> int:
        self.asked += 1
        if self.asked == 1:
            raise StorageError("could not list the folder", "a readable disk")
        return await super().size_bytes()


async def test_a_disk_that_cannot_be_measured_now_ends_nothing_and_is_measured_later(autojump_clock: Clock) -> None:
    storage, board = _BadMoment(MemoryDisk()), StatusBoard(PeerId("me"), VirtualClock(), 0.0)
    await storage.write_atomic("a", [b"12345"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_measured, storage, board)
        await trio.sleep(LOOK_EVERY_S + 1.0)
        assert board.disk_bytes == 5
        nursery.cancel_scope.cancel()
