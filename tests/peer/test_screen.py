from __future__ import annotations

import io

import trio
import trio.testing
from rich.console import Console

from peer.screen import peer_line, peer_picture, run_screen
from peer.status import LastRound, PeerStatus

STATUS = PeerStatus(
    peer="p", name="calm otter", run="demo", state="training", reason="all is well", index=3, loss=1.386294,
    restarted="restarted at round 3", tokens_per_s=5120.0, total_tokens=300, target_total_tokens=1000,
    last_round=LastRound(index=3, members=("p", "q"), weights={"p": 0.25, "q": 0.75}),
)  # fmt: skip


def test_line_says_state_round_speed_loss_and_reason() -> None:
    assert peer_line(STATUS) == "calm otter: training, round 3, 5,120 tokens/s, loss 2.00 bits/byte; all is well"


def test_picture_shows_progress_and_the_own_share() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(peer_picture(STATUS))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("calm otter in demo", "300 of 1,000 tokens", "your share 25%", "restarted at round 3"):
        assert part in text


async def test_plain_screen_prints_each_change_once(autojump_clock: trio.testing.MockClock) -> None:
    console = Console(file=io.StringIO(), width=200)
    shown = STATUS

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_screen(lambda: shown, mode="plain", console=console))
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(5)
        shown = STATUS.model_copy(update={"index": 4})
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert isinstance(console.file, io.StringIO)
    assert [line.split(", ")[1] for line in console.file.getvalue().splitlines()] == ["round 3", "round 4"]


def test_picture_says_when_the_state_is_wrong_and_that_the_host_is_away() -> None:
    console = Console(file=io.StringIO(), width=140)
    ill = {"is_sound": False, "credential_left_s": 129600.0, "host_heard_ago_s": 700.0, "is_host_away": True, "bans": 2}
    console.print(peer_picture(STATUS.model_copy(update=ill)))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("is being made again", "heard 700 s ago (away), credential good for 1.5 days, 2 bans"):
        assert part in text
    console = Console(file=io.StringIO(), width=140)
    console.print(peer_picture(STATUS))
    assert isinstance(console.file, io.StringIO)
    assert "made again" not in console.file.getvalue()
