from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from peer.demo.observation import Omission
from peer.demo.screen import bits, in_bytes, open_screen, picture, print_summary, sparkline, weights_line
from peer.demo.script_core import EXPERTS, DemoState, Stage
from peer.demo.summary import Facts, summarise
from tests.peer.demo_world import observation, report, round_row

STATE = DemoState(started_s=0.0, limit_s=600.0, stage=Stage.TRAINING)
SEEN = observation((round_row(1), round_row(2)), heldout=(5.6, 2.4, 2.0))


def _console() -> Console:
    return Console(file=io.StringIO(), width=140)


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_picture_shows_progress_loss_yardsticks_members_and_bytes() -> None:
    console = _console()
    console.print(picture(SEEN, STATE, "training"))
    text = _text(console)
    for part in ("200 of 1,000 tokens", "2.89 bits/byte", "zlib", "pair model", "peer 2 33%", "100 B", "200 B"):
        assert part in text


def test_picture_of_a_run_of_experts_says_who_holds_which() -> None:
    console = _console()
    assert SEEN.host is not None
    curves = {"expert-0": SEEN.host.heldout[:2], "expert-1": ()}
    seen = replace(SEEN, host=SEEN.host.model_copy(update={"heldout_experts": curves}))
    console.print(picture(seen, replace(STATE, cast=EXPERTS), "training"))
    text = _text(console)
    assert re.search(r"expert-0 +3\.46 bits/byte", text)
    for part in ("four volunteers", "1, expert 0", "2, expert 1 (to be killed)", "4, expert 1"):
        assert part in text


def test_each_peer_of_a_run_of_experts_is_one_line_of_a_screen_of_120_letters() -> None:
    console = Console(file=io.StringIO(), width=120)
    busy = {
        number: report(number).model_copy(
            update={
                "name": "mellow-honey",
                "tokens_per_s": 12_345.0,
                "tokens_ready": 12_288,
                "loss": 2.4,
                "bytes_up": 123_400_000,
                "bytes_down": 123_400_000,
            }
        )
        for number in (1, 2, 3)
    }
    console.print(picture(replace(SEEN, reports=busy), replace(STATE, cast=EXPERTS), "training"))
    assert re.search(
        r"2, expert 1 \(to be killed\) +mellow-honey .*3\.46 bits/byte +123\.4 MB .*abababab", _text(console)
    )


def test_picture_says_what_is_awaited_before_the_host_answers() -> None:
    console = _console()
    empty = observation()
    console.print(picture(type(empty)(None, {}, {}, {}), STATE, "waiting for the host's status page"))
    assert "waiting for the host's status page" in _text(console)


def test_plain_screen_prints_a_line_only_when_something_changed() -> None:
    console = _console()
    with open_screen(console) as screen:
        screen.show(SEEN, STATE, "training")
        screen.show(SEEN, STATE, "training")
        screen.show(observation((round_row(3),), (5.6,)), STATE, "training")
    assert len(_text(console).splitlines()) == 2


def test_plain_line_stays_one_line_however_narrow_rich_thinks_the_pipe_is() -> None:
    console = Console(file=io.StringIO(), width=20)
    with open_screen(console) as screen:
        screen.show(SEEN, STATE, "training")
    assert len(_text(console).splitlines()) == 1


@pytest.mark.parametrize(("kept", "where"), [(None, "--dir DIR"), (Path("here"), "here/logs")])
def test_failed_demo_says_what_to_do_and_where_the_logs_are(
    kept: Path | None, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = Facts(checkpoint_verified=False, rejoin_s=None, plot="p.png", seconds=1.0)
    print_summary(summarise(SEEN, {}, facts, "not finished within 9 s"), "", kept)
    said = capsys.readouterr().out
    assert "FAILED: not finished within 9 s" in said
    assert where in said


def test_summary_tells_how_long_the_others_waited_for_who_was_killed(capsys: pytest.CaptureFixture[str]) -> None:
    facts = Facts(checkpoint_verified=True, rejoin_s=31.5, others_paused_s=22.4, plot="p.png", seconds=1.0)
    print_summary(summarise(SEEN, {}, facts), "", None)
    assert "killed peer      counted again after 31.5 s, the others waited 22 s for it" in capsys.readouterr().out


def test_weights_line_names_who_was_left_out_and_why() -> None:
    row = round_row(4, ("one", "three")).model_copy(
        update={"omitted": (Omission(peer="two", reason="silent for 2 s"),)}
    )
    assert weights_line(SEEN, row) == "peer 1 50%, peer 3 50%; peer 2 left out: silent for 2 s"


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2_000_000, "2.0 MB")])
def test_in_bytes_uses_powers_of_a_thousand(count: int, shown: str) -> None:
    assert in_bytes(count) == shown


def test_bits_are_nats_over_the_logarithm_of_two() -> None:
    assert bits(0.693147) == "1.00 bits/byte"
    assert bits(None) == "-"


def test_sparkline_spans_lowest_to_highest_within_its_width() -> None:
    assert sparkline([3.0, 2.0, 1.0])[0] == "█"
    assert sparkline([3.0, 2.0, 1.0])[-1] == "▁"
    assert len(sparkline([float(i) for i in range(1000)])) <= 48
    assert sparkline([]) == ""
