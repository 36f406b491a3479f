from __future__ import annotations

import io

import trio
import trio.testing
from rich.console import Console

from peer.status.screen import PLAIN_SILENCE_S, peer_line, peer_picture, run_screen
from peer.status.status import LastRound, PeerStatus

STATUS = PeerStatus(
    peer="p", name="calm otter", run="demo", state="training", reason="all is well", index=3, loss=1.386294,
    restarted="restarted at round 3", tokens_per_s=5120.0, total_tokens=300, target_total_tokens=1000,
    last_round=LastRound(index=3, members=("p", "q"), weights={"p": 0.25, "q": 0.75}),
)  # fmt: skip


def test_line_says_state_round_speed_loss_and_reason() -> None:
    assert peer_line(STATUS) == "calm otter: training, round 3, 5,120 tokens/s, 2.000 bits per byte; all is well"


def test_picture_shows_progress_and_the_own_share() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(peer_picture(STATUS))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("calm otter in demo", "300 of 1,000 tokens", "your share 25%", "restarted at round 3"):
        assert part in text


async def test_reason_of_a_stranger_gives_no_orders_to_the_screen(autojump_clock: trio.testing.MockClock) -> None:
    console = Console(file=io.StringIO(), width=200)
    with trio.move_on_after(3):
        await run_screen(lambda: STATUS.model_copy(update={"reason": "[/red]\x1b"}), mode="plain", console=console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().endswith("; [/red]\\x1b\n")


def test_line_says_when_the_run_will_be_complete_once_that_is_known() -> None:
    line = peer_line(STATUS.model_copy(update={"eta_s": 7200.0}))
    assert line.endswith("2.000 bits per byte, 30% of the run, 2.0 h to go; all is well")


def _drawn(status: PeerStatus) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(peer_picture(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_picture_has_a_bar_of_the_next_round_and_the_time_left_of_the_run() -> None:
    assert "next round" not in _drawn(STATUS)
    of_round = {"round_tokens_ready": 50, "round_target_tokens": 200, "round_waited_s": 20.0, "round_longest_s": 60.0}
    text = _drawn(STATUS.model_copy(update=of_round | {"eta_s": 7200.0}))
    assert "round 3, 300 of 1,000 tokens, 30% of the run, 2.0 h to go" in text
    assert "next round: 50 of 200 tokens ready, at the latest in 40 s" in text
    half = STATUS.model_copy(update=of_round | {"round_waited_s": 30.0})
    assert half.round_share == 0.5
    before, after = _drawn(half.model_copy(update={"round_waited_s": 0.0})), _drawn(half)
    assert before.splitlines()[3] != after.splitlines()[3]
    loading = half.model_copy(update={"download_bytes_all": 8, "download_bytes_here": 2, "download_donors": 3})
    assert "next round" not in _drawn(loading)


async def test_plain_screen_says_how_far_a_long_round_is(autojump_clock: trio.testing.MockClock) -> None:
    console = Console(file=io.StringIO(), width=200)
    of_round = {"round_tokens_ready": 50, "round_target_tokens": 200, "round_longest_s": 7200.0}
    shown = STATUS.model_copy(update=of_round)
    with trio.move_on_after(2 * PLAIN_SILENCE_S + 30):
        await run_screen(lambda: shown, mode="plain", console=console)
    assert isinstance(console.file, io.StringIO)
    first, *later = console.file.getvalue().splitlines()
    assert first == peer_line(shown)
    assert later == [f"{first}; next round: 50 of 200 tokens ready, at the latest in 2.0 h"] * 2


async def test_plain_screen_says_now_and_then_that_it_still_waits(autojump_clock: trio.testing.MockClock) -> None:
    console = Console(file=io.StringIO(), width=200)

    def waiting() -> PeerStatus:
        reported = {"state": "waiting", "state_s": trio.current_time() - began_s, "reason": "for one more peer"}
        return STATUS.model_copy(update=reported)

    began_s = trio.current_time()
    with trio.move_on_after(PLAIN_SILENCE_S + 30):
        await run_screen(waiting, mode="plain", console=console)
    assert isinstance(console.file, io.StringIO)
    first, later = console.file.getvalue().splitlines()
    assert first.startswith("calm otter: waiting, ")
    assert later.startswith("calm otter: waiting for 10 min, ")


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
    for part in ("is being rebuilt", "heard 12 min ago (away); credential good for 36.0 h; 2 bans"):
        assert part in text
    console = Console(file=io.StringIO(), width=140)
    console.print(peer_picture(STATUS))
    assert isinstance(console.file, io.StringIO)
    assert "being rebuilt" not in console.file.getvalue()
