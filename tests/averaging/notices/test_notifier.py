"""The task that sends notices, in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import structlog
import trio
from trio.testing import MockClock

from averaging.notices.conditions import AGAIN_AFTER_S, Condition
from averaging.notices.notifier import MOST_QUEUED, MOST_TRIES, TOLD_FILE, Notifier
from averaging.notices.webhook import WITHIN_S
from protocol.errors import MachineError
from tests.virtual import VirtualClock

URL = "https://hooks.example.org/c2VjcmV0"


class World:
    """A webhook without a network, and the conditions of a daemon."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[Mapping[str, object]] = []
        self.answers: list[str] = []
        self.holding: list[Condition] = []
        self.folder = folder

    def notifier(self, url: str = URL) -> Notifier:
        return Notifier(url, self.folder, VirtualClock(), self._post, at_once)

    def _post(self, url: str, body: Mapping[str, object]) -> str:
        assert url == URL
        self.sent.append(body)
        return self.answers.pop(0) if self.answers else ""

    async def watch(self, seconds: float, notifier: Notifier | None = None) -> None:
        """A daemon that runs for so long."""
        async with (notifier or self.notifier()).watch(lambda: "tiny", lambda: self.holding):
            await trio.sleep(seconds)


async def at_once(function: Callable[[], str]) -> str:
    """In no thread: threads know nothing of virtual time."""
    await trio.lowlevel.checkpoint()
    return function()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_notice_says_run_event_text_and_time_once(world: World, autojump_clock: MockClock) -> None:
    world.holding = [Condition("disk_full", "the disk is full\x1b[2J")]
    await world.watch(600)
    (sent,) = world.sent
    assert sent.keys() == {"run", "event", "text", "time"}
    assert (sent["run"], sent["event"], sent["time"]) == ("tiny", "disk_full", "2023-11-14T22:13:20+00:00")
    assert "\x1b" not in str(sent["text"])


async def test_an_error_that_ends_the_daemon_is_told_before_it_goes_on_its_way(
    world: World, autojump_clock: MockClock
) -> None:
    with pytest.RaisesGroup(MachineError):
        async with world.notifier().watch(lambda: "tiny", list):
            raise MachineError("no port", "a free one", "stop the other")
    assert [(each["event"], each["text"]) for each in world.sent] == [
        ("stopped", "stopped by an error: no port; expected a free one; stop the other")
    ]


async def test_a_daemon_that_fails_again_and_again_tells_it_once_an_hour(
    world: World, autojump_clock: MockClock
) -> None:
    for _ in range(3):
        with pytest.RaisesGroup(MachineError):
            async with world.notifier().watch(lambda: "tiny", list):
                raise MachineError("no port", "a free one")
    assert len(world.sent) == 1
    assert (world.folder / TOLD_FILE).exists()
    await trio.sleep(AGAIN_AFTER_S)
    with pytest.RaisesGroup(MachineError):
        async with world.notifier().watch(lambda: "tiny", list):
            raise MachineError("no port", "a free one")
    assert len(world.sent) == 2


async def test_the_last_look_at_the_end_is_sent_and_a_request_to_leave_is_no_error(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.notifier().watch(lambda: "tiny", lambda: world.holding):
        world.holding = [Condition("run_complete", "done")]
    with trio.CancelScope() as leaving:
        async with world.notifier().watch(lambda: "tiny", list):
            leaving.cancel()
            await trio.sleep_forever()
    assert [each["event"] for each in world.sent] == ["run_complete"]


async def test_a_refused_notice_is_tried_again_and_then_given_up_with_a_warning_without_the_address(
    world: World, autojump_clock: MockClock
) -> None:
    world.holding, world.answers = [Condition("disk_full", "full")], ["it answered with status 500"] * 10
    with structlog.testing.capture_logs() as logs:
        await world.watch(600)
    assert len(world.sent) == MOST_TRIES
    (warning,) = (each for each in logs if each["event"] == "notice_not_sent")
    assert (warning["to"], warning["reason"]) == ("https://hooks.example.org", "it answered with status 500")
    assert "c2VjcmV0" not in str(logs)


async def test_a_webhook_that_hangs_holds_up_neither_the_daemon_nor_its_end(
    world: World, autojump_clock: MockClock
) -> None:
    goes_on, notifier = threading.Event(), Notifier(URL, world.folder, VirtualClock(), lambda *_: str(goes_on.wait()))
    autojump_clock.autojump_threshold = 0.01
    try:
        begin_s = trio.current_time()
        async with notifier.watch(lambda: "tiny", lambda: [Condition("disk_full", "full")]):
            await trio.sleep(100)
        assert trio.current_time() - begin_s <= 100 + WITHIN_S + 1
    finally:
        goes_on.set()


async def test_the_queue_is_bounded(world: World, autojump_clock: MockClock) -> None:
    world.holding, world.answers = [Condition(f"kind_{n}", "x") for n in range(100)], ["no"] * 1000
    with structlog.testing.capture_logs() as logs:
        await world.watch(10)
    assert sum(each["event"] == "notice_dropped" for each in logs) == 100 - MOST_QUEUED


async def test_without_an_address_nothing_is_looked_at_or_written(world: World, autojump_clock: MockClock) -> None:
    world.holding = [Condition("disk_full", "full")]
    await world.watch(60, world.notifier(""))
    assert world.sent == []
    assert list(world.folder.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"disk_full": "soon"}', "[" * 100_000])
async def test_a_damaged_note_of_what_was_told_is_none(world: World, text: str, autojump_clock: MockClock) -> None:
    (world.folder / TOLD_FILE).write_text(text)
    world.holding = [Condition("disk_full", "full")]
    await world.watch(10)
    assert len(world.sent) == 1
