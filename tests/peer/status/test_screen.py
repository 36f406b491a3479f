from __future__ import annotations

import io

import trio
import trio.testing
from rich.console import Console

from peer.status.screen import PLAIN_SILENCE_S, PlainLines, peer_line, peer_picture, run_screen
from peer.status.status import LastRound, PeerStatus

STATUS = PeerStatus(
    peer="p", name="calm otter", run="demo", state="training", reason="all is well", index=3, loss=1.386294,
    restarted="restarted at round 3", tokens_per_s=5120.0, total_tokens=300, target_total_tokens=1000,
    last_round=LastRound(index=3, members=("p", "q"), weights={"p": 0.25, "q": 0.75}),
)  # fmt: skip


def test_line_says_state_round_speed_loss_and_reason() -> None:
    assert peer_line(STATUS) == "calm otter: training, round 3, 5,120 tokens/s, 2.000 bits per byte"


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
        await run_screen(
            lambda: STATUS.model_copy(update={"state": "waiting", "reason": "[/red]\x1b"}),
            mode="plain",
            console=console,
        )
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "calm otter: waiting: [/red]\\x1b\n"


def test_line_says_when_the_run_will_be_complete_once_that_is_known() -> None:
    line = peer_line(STATUS.model_copy(update={"eta_s": 7200.0}))
    assert line.endswith("2.000 bits per byte, 30% of the run, 2.0 h to go")


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


def test_plain_screen_tells_the_progress_of_a_download_once_a_minute() -> None:
    lines, said = PlainLines(), list[str]()
    for second in range(0, 181, 5):
        loading = {"state": "catching up", "reason": f"fetching the run's state: {second} MB of 900 MB, 9 min to go"}
        said += lines.of(STATUS.model_copy(update=loading), 1000.0 + second)
    assert [line.rpartition("state: ")[2].split()[0] for line in said] == ["0", "60", "120", "180"]


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
    assert first.startswith("calm otter: waiting for")
    assert later.startswith("calm otter: waiting for 10 min: ")


async def test_plain_screen_prints_one_line_a_round_with_members_own_part_and_loss(
    autojump_clock: trio.testing.MockClock,
) -> None:
    console = Console(file=io.StringIO(), width=200)
    shown = STATUS

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: run_screen(lambda: shown, mode="plain", console=console))
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(5)
        for index in (4, 5):
            last = LastRound(index=index, members=("p", "q"), weights={"p": 0.25, "q": 0.75})
            shown = STATUS.model_copy(
                update={"index": index, "last_round": last, "reason": f"round {index} has 2 acks"}
            )
            await trio.sleep(5)
            shown = shown.model_copy(update={"reason": "asking whether attempt 1 is wanted"})
            await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert isinstance(console.file, io.StringIO)
    first, *rounds = console.file.getvalue().splitlines()
    assert first == peer_line(STATUS)
    assert rounds == [
        f"calm otter: round {index}: 2 peers counted, your part 25%, loss 2.000 bits per byte, 30% of the run"
        for index in (4, 5)
    ]


def test_plain_screen_says_what_is_unusual_once_a_minute_at_most_and_before_the_round() -> None:
    lines = PlainLines()
    lines.of(STATUS, 0.0)
    offline = [
        STATUS.model_copy(update={"offline": f"offline for {seconds} s: no other peer and no host answers"})
        for seconds in (45, 46, 47)
    ]
    said = [line for second, status in enumerate(offline) for line in lines.of(status, 1.0 + second)]
    assert said == ["calm otter: offline for 45 s: no other peer and no host answers"]
    assert lines.of(STATUS, 9.0) == []
    assert lines.of(offline[0], 10.0) == []
    assert lines.of(STATUS, 11.0) == []
    assert len(lines.of(offline[0], 100.0)) == 1
    full = STATUS.model_copy(
        update={
            "trouble": "the disk at /s is full: 9 MB needed, 1 MB free",
            "last_round": LastRound(index=9, members=(), weights={}),
        }
    )
    assert [line.partition(": ")[2].split(":")[0] for line in lines.of(full, 101.0)] == [
        "the disk at /s is full", "round 9",
    ]  # fmt: skip
    assert lines.of(full.model_copy(update={"trouble": full.trouble.replace("1 MB", "900 kB")}), 102.0) == []
    assert [line.partition(": ")[2] for line in lines.of(full.model_copy(update={"trouble": ""}), 103.0)] == [
        "the disk has room again"
    ]


def test_picture_of_a_complete_run_says_what_this_peer_gave_and_no_speed() -> None:
    text = _drawn(STATUS.model_copy(update={"state": "finished", "tokens_counted": 75, "rounds_counted": 3}))
    assert "The run is complete. You trained 75 of its tokens (25%); 3 of 3 rounds counted your work." in text
    assert "tokens/s" not in text


def test_end_of_a_run_is_told_once_and_its_model_by_one_command() -> None:
    command = "its model: potluck checkpoint export latest OUT_DIR"
    lines, newest = PlainLines(), f"the run is complete; {command}"
    staying = STATUS.model_copy(update={"state": "finished", "reason": "staying until everybody has the last commit"})
    said = [*lines.of(STATUS, 0.0), *lines.of(staying, 10.0)]
    said += lines.of(staying.model_copy(update={"reason": newest}), 20.0)
    assert sum(line.startswith("The run is complete") for line in said) == 1
    assert said[-1].endswith(f": finished; {command}")
    assert "ask the host" not in "".join(said)
    assert command in _drawn(staying.model_copy(update={"reason": newest}))


def test_download_is_shown_with_its_size_and_its_time_to_go() -> None:
    loading = {"download_bytes_all": 8_000_000, "download_bytes_here": 2_000_000, "download_donors": 3}
    text = _drawn(STATUS.model_copy(update=loading | {"download_left_s": 120.0}))
    assert "the run's state: 2.0 MB of 8.0 MB from 3 peers, 2 min to go" in text
    assert "time left: not known yet" in _drawn(STATUS.model_copy(update=loading))


def test_picture_says_when_the_state_is_wrong_and_that_the_host_is_away() -> None:
    console = Console(file=io.StringIO(), width=140)
    ill = {"is_sound": False, "credential_left_s": 129600.0, "host_heard_ago_s": 700.0, "is_host_away": True, "bans": 2}
    console.print(peer_picture(STATUS.model_copy(update=ill)))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in ("is being rebuilt", "heard 12 min ago (away); credential good for 36.0 h; 2 peers banned"):
        assert part in text
    console = Console(file=io.StringIO(), width=140)
    console.print(peer_picture(STATUS))
    assert isinstance(console.file, io.StringIO)
    assert "being rebuilt" not in console.file.getvalue()
