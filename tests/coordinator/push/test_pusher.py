from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.data.shards import write_whole
from coordinator.ledger.ledger import CheckpointRow
from coordinator.push import pusher as pusher_module
from coordinator.push.push import Pushed
from coordinator.push.push_core import FIRST_AGAIN_S, SCORES_AGAIN_S
from coordinator.push.pusher import GoOn, Push, Pusher, PushScores
from protocol.errors import StorageError
from protocol.ids import CommitId, Root, UnitName
from tests.virtual import VirtualClock


def _row(index: int) -> CheckpointRow:
    name = f"{index:08d}-0123456789abcdef"
    return CheckpointRow(CommitId(bytes([index]) * 32), UnitName("whole"), index, 100, Root(b"r" * 32), name, 7)


def _no_scores(url: str, checkpoint: Path, go_on: GoOn) -> None:
    raise AssertionError("no scores to push")


def _pusher(folder: Path, rows: list[CheckpointRow], push: Push, push_scores: PushScores = _no_scores) -> Pusher:
    for row in rows:
        (folder / row.path).mkdir()
    place = (lambda: rows, folder, folder / "scratch", VirtualClock())
    return Pusher("memory://models", *place, push, push_scores, "scores.json")


async def test_each_new_checkpoint_is_pushed_once_and_only_the_newest(tmp_path: Path) -> None:
    pushed: list[str] = []

    def push(url: str, checkpoint: Path, scratch: Path, go_on: GoOn) -> Pushed:
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

    def push(url: str, checkpoint: Path, scratch: Path, go_on: GoOn) -> Pushed:
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
    def push(url: str, checkpoint: Path, scratch: Path, go_on: GoOn) -> Pushed:
        raise AssertionError("nothing to push")

    pusher = _pusher(tmp_path, [], push)
    await pusher.push_once()
    assert pusher.state.failures == 0
    rows = [_row(2)]
    place = (lambda: rows, tmp_path / "gone", tmp_path / "scratch", VirtualClock())
    pusher = Pusher("memory://m", *place, push, _no_scores, "scores.json")
    await pusher.push_once()
    assert "cannot be read" in pusher.state.reason


def _pushed(url: str, checkpoint: Path, scratch: Path, go_on: GoOn) -> Pushed:
    return Pushed(checkpoint.name, int(checkpoint.name[:8]), 9)


async def test_scores_that_come_after_the_push_are_pushed_each_time_they_change_but_not_too_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, now_s, rows = list[tuple[float, str]](), 0.0, [_row(2)]

    def push_scores(url: str, checkpoint: Path, go_on: GoOn) -> None:
        text = (checkpoint / "scores.json").read_text()
        if not seen and text == "refused":
            seen.append((now_s, "refused"))
            raise StorageError("the bucket would not take it", "a place that may be written")
        seen.append((now_s, text))

    pusher = _pusher(tmp_path, rows, _pushed, push_scores)
    monkeypatch.setattr(VirtualClock, "monotonic_s", lambda clock: now_s)
    written = {10.0: "refused", 50.0: "one", 55.0: "two", 56.0: "three"}
    while now_s < 300.0:
        if now_s in written:
            write_whole(tmp_path / rows[0].path / "scores.json", written[now_s].encode())
        await pusher.push_once()
        now_s += 1.0
    again_s = 10.0 + FIRST_AGAIN_S
    assert seen == [
        (10.0, "refused"),
        (again_s, "refused"),
        (again_s + SCORES_AGAIN_S, "three"),
    ]
    assert (pusher.state.failures, pusher.state.reason) == (1, "")


async def test_scores_that_went_with_the_checkpoint_are_not_pushed_again(tmp_path: Path) -> None:
    rows = [_row(2)]
    pusher = _pusher(tmp_path, rows, _pushed)
    (tmp_path / rows[0].path / "scores.json").write_text("{}")
    for _ in range(3):
        await pusher.push_once()
    assert pusher.state.pushed == rows[0].path


async def test_a_push_that_is_out_of_time_ends_its_thread_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher_module, "LIMIT_S", 0.05)
    hours = count()
    monkeypatch.setattr(VirtualClock, "monotonic_s", lambda clock: 3600.0 * next(hours))
    begun, ended, may_look = list[str](), threading.Event(), threading.Event()

    def push(url: str, checkpoint: Path, scratch: Path, go_on: GoOn) -> Pushed:
        begun.append(checkpoint.name)
        if len(begun) > 1:
            return Pushed(checkpoint.name, 2, 9)
        assert may_look.wait(300.0)
        try:
            go_on()
        finally:
            ended.set()
        raise AssertionError("it was to end")

    pusher = _pusher(tmp_path, [_row(2)], push)
    await pusher.push_once()
    assert "was not over after" in pusher.state.reason
    await pusher.push_once()
    assert len(begun) == 1, "the first thread is at its last block"
    may_look.set()
    assert ended.wait(300.0)
    with trio.fail_after(60.0):
        while not pusher.state.pushed:
            await pusher.push_once()
            await trio.sleep(0.01)
    assert len(begun) == 2
