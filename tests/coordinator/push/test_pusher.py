from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio.testing
from structlog.testing import capture_logs

from coordinator.ledger.ledger import CheckpointRow
from coordinator.push.push import Pushed
from coordinator.push.push_core import FIRST_AGAIN_S
from coordinator.push.pusher import Pusher
from protocol.errors import StorageError
from protocol.ids import CommitId, Root, UnitName
from tests.virtual import VirtualClock

Clock = trio.testing.MockClock


def _row(index: int) -> CheckpointRow:
    name = f"{index:08d}-0123456789abcdef"
    return CheckpointRow(CommitId(bytes([index]) * 32), UnitName("whole"), index, 100, Root(b"r" * 32), name, 7)


def _pusher(folder: Path, rows: list[CheckpointRow], push: Callable[[str, Path, Path], Pushed]) -> Pusher:
    for row in rows:
        (folder / row.path).mkdir()
    return Pusher("memory://models", lambda: rows, folder, folder / "scratch", VirtualClock(), push)


async def test_each_new_checkpoint_is_pushed_once_and_only_the_newest(tmp_path: Path) -> None:
    pushed: list[str] = []

    def push(url: str, checkpoint: Path, scratch: Path) -> Pushed:
        pushed.append(checkpoint.name)
        return Pushed(checkpoint.name, int(checkpoint.name[:8]), 9)

    rows = [_row(2), _row(4)]
    pusher = _pusher(tmp_path, rows, push)
    await pusher.push_once()
    await pusher.push_once()
    assert pushed == [rows[1].path]
    rows.append(_row(6))
    (tmp_path / rows[2].path).mkdir()
    await pusher.push_once()
    assert pushed == [rows[1].path, rows[2].path]
    assert (pusher.state.index, pusher.state.reason) == (6, "")


async def test_a_push_that_fails_is_told_once_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []
    now_s = 0.0

    def push(url: str, checkpoint: Path, scratch: Path) -> Pushed:
        tries.append(now_s)
        if len(tries) < 4:
            raise StorageError("the bucket would not take it", "a place that may be written")
        return Pushed(checkpoint.name, 2, 9)

    pusher = _pusher(tmp_path, [_row(2)], push)
    monkeypatch.setattr(VirtualClock, "monotonic_s", lambda clock: now_s)
    with capture_logs() as logs:
        for _ in range(300):
            await pusher.push_once()
            now_s += 1.0
    assert tries == [0.0, FIRST_AGAIN_S, 3 * FIRST_AGAIN_S, 7 * FIRST_AGAIN_S]
    assert [log["event"] for log in logs if log["log_level"] != "debug"] == [
        "checkpoint_not_pushed",
        "checkpoint_pushed",
    ]
    assert (pusher.state.failures, pusher.state.pushed) == (3, _row(2).path)


async def test_without_a_checkpoint_nothing_is_pushed_and_a_folder_that_is_gone_costs_the_push_alone(
    tmp_path: Path,
) -> None:
    def push(url: str, checkpoint: Path, scratch: Path) -> Pushed:
        raise AssertionError("nothing to push")

    pusher = _pusher(tmp_path, [], push)
    await pusher.push_once()
    assert pusher.state.failures == 0
    rows = [_row(2)]
    pusher = Pusher("memory://m", lambda: rows, tmp_path / "gone", tmp_path / "scratch", VirtualClock(), push)
    await pusher.push_once()
    assert "cannot be read" in pusher.state.reason
