"""The host's screen."""

from __future__ import annotations

import io
from dataclasses import replace

import trio
import trio.testing
from rich.console import Console

from coordinator.ledger.ledger import LossPoint
from coordinator.progress.run_events import EventBook, RunEvent
from coordinator.progress.run_view import RunPicture, TimedRound
from coordinator.status.screen import EVENTS_SHOWN, HostView, PlainLines, host_picture, host_view, run_host_screen
from protocol.identity.names import peer_name
from protocol.ids import CommitId
from tests.coordinator.progress.test_run_view import A, picture, timed

LOSSES = (LossPoint("train", 2, 600, 1.386294, A), LossPoint("heldout", 2, 600, 1.386294, A))
FULL = "the disk at /state is full: 8.0 MB needed, 1.0 MB free; free space and it goes on"


def _own(each: TimedRound) -> TimedRound:
    return replace(each, row=replace(each.row, commit=CommitId(bytes([each.row.index]) * 32)))


def _drawn(view: HostView) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(host_picture(view))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _view(shown: RunPicture, events: tuple[RunEvent, ...] = (), trouble: str = "") -> HostView:
    return host_view(shown, events, 100.0, trouble)


def test_panel_has_progress_losses_members_and_alerts_the_unusual_first() -> None:
    text = _drawn(_view(picture((timed(1, 300, 100), timed(2, 600, 110)), LOSSES), trouble=FULL))
    for part in (
        "600 of 1,000 tokens (60%), 13 s to go",
        "training 2.000, held-out 2.000",
        peer_name(A),
        "2 peers banned",
    ):
        assert part in text
    assert text.index(FULL) < text.index("600 of 1,000")
    for word in ("lineage", "bulk", "bans", "coordinator"):
        assert word not in text


def test_panel_says_that_peers_train_on_without_the_host_only_where_some_do() -> None:
    run = picture((timed(1, 300, 100),), LOSSES)
    assert "(Ctrl-C closes the host; peers train on)" in _drawn(_view(run))
    assert "(Ctrl-C closes the host)" in _drawn(_view(replace(run, peers={})))


def test_panel_shows_the_newest_events_and_text_of_strangers_as_text() -> None:
    events = tuple(RunEvent(number, 0, "peer", f"event {number} [b]\x1b") for number in range(1, 20))
    text = _drawn(_view(picture(), events))
    assert "event 19 [b]\\x1b" in text
    assert f"event {19 - EVENTS_SHOWN} " not in text


def test_plain_output_is_one_line_a_round_with_members_loss_and_progress() -> None:
    book, lines = EventBook(), PlainLines()
    said = list[str]()
    rounds = tuple(_own(timed(index, 300 * index, 90 + 10 * index)) for index in (1, 2, 3))
    for number in (1, 2, 3):
        for _ in range(4):
            shown = picture(rounds[:number], LOSSES)
            book.note(shown, 100.0, 1000)
            said += lines.of(_view(shown, tuple(book.newest(100))), 100.0)
    first, second = said
    assert first.startswith("round 2: 2 counted")
    assert first.endswith("; training 2.000, held-out 2.000 bits per byte, 60% of the run, 13 s to go")
    assert second.startswith("round 3: ")


def test_the_line_of_a_runs_last_round_tells_no_time_to_go() -> None:
    book, lines = EventBook(), PlainLines()
    said = list[str]()
    rounds = tuple(_own(timed(index, 300 * index, 90 + 10 * index)) for index in (1, 2))
    for number in (1, 2):
        shown = picture(rounds[:number], LOSSES)
        book.note(shown, 100.0, 1000)
        view = _view(shown, tuple(book.newest(100)))
        said += lines.of(replace(view, status={**view.status, "eta_s": 0}), 100.0)
    assert said[-1].endswith("% of the run")


def test_full_disk_is_told_once_while_it_lasts_and_once_a_minute_at_most() -> None:
    lines, less = PlainLines(), FULL.replace("1.0 MB free", "999.0 kB free")
    seen = ((0, ""), (1, FULL), (2, less), (20, ""), (21, FULL), (22, ""), (61, less))
    said = [line for now_s, trouble in seen for line in lines.of(_view(picture(), trouble=trouble), float(now_s))]
    assert said == [FULL, "the disk has room again", "the disk has room again", less]


async def test_piped_host_prints_the_lines(autojump_clock: trio.testing.MockClock) -> None:
    console = Console(file=io.StringIO(), width=200)
    with trio.move_on_after(2.5):
        await run_host_screen(lambda: _view(picture(), trouble=FULL), mode="plain", console=console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [FULL]
