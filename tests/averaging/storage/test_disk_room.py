from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from averaging.storage.disk_room import LOOK_EVERY_S, DiskMeter
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock


async def test_room_is_looked_at_again_and_unknown_while_it_cannot_be_told(
    autojump_clock: Clock, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    meter = DiskMeter(folder, InlineOffload())
    assert meter.room is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.keep_measured)
        await trio.sleep(1.0)
        assert meter.room is not None
        assert 0 <= meter.room.free_bytes <= meter.room.all_bytes
        folder.rmdir()
        await trio.sleep(LOOK_EVERY_S)
        assert meter.room is None
        folder.mkdir()
        await trio.sleep(LOOK_EVERY_S)
        assert meter.room is not None
        nursery.cancel_scope.cancel()
