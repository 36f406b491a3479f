from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import trio
import trio.testing

from averaging.host.log_file import keep_log
from averaging.storage import file_storage
from averaging.storage.disk_room import LOOK_EVERY_S, DiskMeter, DiskRoom
from averaging.storage.file_storage import FileStorage
from averaging.storage.full_disk import ROOM_BELIEVED_S
from protocol.errors import StorageError
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


def test_disk_counts_as_full_where_the_next_write_does_not_fit(tmp_path: Path) -> None:
    meter = DiskMeter(tmp_path, InlineOffload())
    meter.needed_bytes = 8_000_000
    assert meter.sentence(1.0) == ""
    meter.room = DiskRoom(7_000_000, 9_000_000)
    assert meter.sentence(1.0) == (
        f"the disk at {tmp_path} is full: 8.0 MB needed, 7.0 MB free; free space and it goes on"
    )
    meter.room = DiskRoom(8_000_000, 9_000_000)
    assert meter.sentence(1.0) == ""


async def test_refused_write_that_is_logged_is_told_at_once_and_no_longer_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's own refusal, by /dev/full: the disk is found full before anybody has measured it."""
    meter, storage = DiskMeter(tmp_path, InlineOffload()), FileStorage(tmp_path / "state", InlineOffload())
    await storage.write_atomic("head", [b"old"])
    monkeypatch.setattr(file_storage, "_WRITES", iter([7]))
    (tmp_path / "state" / "head.7.unfinished").symlink_to("/dev/full")
    with keep_log(tmp_path / "host.log", meter.hear):
        try:
            await storage.write_atomic("head", [b"new"])
        except StorageError as error:
            structlog.get_logger().warning("checkpoint_failed", reason=error.one_line())
    assert meter.sentence(100.0).startswith(f"the disk at {tmp_path} is full: ")
    meter.room = DiskRoom(1 << 30, 1 << 40)
    assert meter.sentence(100.0 + ROOM_BELIEVED_S - 1) != ""
    assert meter.sentence(100.0 + ROOM_BELIEVED_S) == ""
