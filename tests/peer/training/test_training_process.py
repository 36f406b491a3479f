"""One life of a training process after another, a thread in each one's place."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from peer.pipeline.stage.stage_channel import StageOrder, parse_reply
from peer.training import training_process
from peer.training.training_process import (
    MAX_QUICK_DEATHS,
    RESTART_PAUSE_S,
    SLOW_RESTART_S,
    MessageReader,
    TrainingProcess,
    restart_pause_s,
)
from peer.training.worker_channel import MAX_MESSAGE_BYTES, frame
from protocol.errors import LocalProtocolError
from tests.peer.worker_world import Starts, anchor, stage_plan


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    found = Starts()
    monkeypatch.setattr(training_process, "start_worker", found)
    return found


async def test_a_life_is_a_plan_that_is_given_and_what_is_heard_until_it_ends(tmp_path: Path, starts: Starts) -> None:
    plan = stage_plan(tmp_path, 1)
    process = TrainingProcess(anchor(plan).numel())

    async def listen(incoming: MessageReader) -> int:
        assert process.stream is not None
        assert process.pid == starts.started[-1].pid
        await process.stream.send_all(frame(StageOrder(number=5, op="theta")))
        data = await incoming.message()
        assert data is not None
        return parse_reply(data).number

    for life in (1, 2):
        assert await process.live(plan, listen) == 5
        assert len(starts.started) == life
        assert starts.started[-1].over.is_set()
        assert (process.pid, process.stream) == (None, None)
    process.close()


async def test_one_that_is_killed_ends_its_life_with_nothing(tmp_path: Path, starts: Starts) -> None:
    plan = stage_plan(tmp_path, 1)
    process = TrainingProcess(anchor(plan).numel())

    async def listen(incoming: MessageReader) -> bytes | None:
        process.kill()
        return await incoming.message()

    with trio.fail_after(120.0):
        assert await process.live(plan, listen) is None
    process.kill()  # there is none: nothing happens
    process.close()


async def test_the_system_that_gives_no_process_is_told_to_who_asks(tmp_path: Path, starts: Starts) -> None:
    starts.refusals = 1
    plan = stage_plan(tmp_path, 1)
    process = TrainingProcess(anchor(plan).numel())

    async def listen(incoming: MessageReader) -> bool:
        return True

    with pytest.raises(OSError, match="no process"):
        await process.live(plan, listen)
    assert await process.live(plan, listen)
    process.close()


async def test_a_message_that_is_too_long_is_not_read() -> None:
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    async with ours, theirs:
        await theirs.send_all((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(LocalProtocolError, match="from the training process"):
            await MessageReader(ours).message()


async def test_messages_come_whole_however_they_are_cut_and_an_end_in_the_middle_is_an_end() -> None:
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    async with ours, theirs:
        incoming = MessageReader(ours)
        for part in (b"\x03\x00", b"\x00\x00ab", b"c\x09\x00\x00\x00zz"):
            await theirs.send_all(part)
        assert await incoming.message() == b"abc"
        await theirs.aclose()
        assert await incoming.message() is None


def test_one_that_dies_again_and_again_at_once_is_started_more_slowly() -> None:
    assert restart_pause_s(MAX_QUICK_DEATHS - 1) == RESTART_PAUSE_S
    assert restart_pause_s(MAX_QUICK_DEATHS) == SLOW_RESTART_S
