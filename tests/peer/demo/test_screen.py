from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from peer.demo.screen import open_screen, picture, plot_losses, print_summary, sparkline, weights_line
from peer.demo.summary import CASTS, DemoSummary, Omission, Seen, summarise
from protocol.errors import StorageError
from tests.peer.demo_world import report, round_row, sight

SEEN = sight((round_row(1), round_row(2)), heldout=(5.6, 2.4, 2.0))


def _drawn(seen: Seen, shards: str = "data", width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(picture(seen, CASTS[shards], "training", "all is well"))
    return _text(console)


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_picture_shows_progress_loss_yardsticks_members_and_bytes() -> None:
    text = _drawn(SEEN)
    for part in ("200 of 1,000 tokens", "2.885 bits/byte", "zlib", "pair model", "peer 2 33%", "100 B", "200 B"):
        assert part in text


def test_picture_of_a_run_of_experts_says_who_holds_which_on_a_screen_of_120_letters() -> None:
    seen = sight((round_row(1),), (5.6, 2.4))
    assert seen.host is not None
    seen.host = seen.host.model_copy(update={"heldout_experts": {"expert-0": seen.host.heldout, "expert-1": ()}})
    busy = {"name": "mellow-honey", "tokens_per_s": 12_345.0, "tokens_ready": 12_288, "loss": 2.4}
    busy |= {"bytes_up": 123_400_000, "bytes_down": 123_400_000}
    seen.peers[2] = report(2).model_copy(update=busy)
    text = _drawn(seen, "expert", 120)
    assert re.search(r"expert-0 +3\.462 bits/byte", text)
    assert re.search(r"2, expert 1 \(to be killed\) +mellow-honey .*3\.462 +123\.4 MB .*abababab", text)
    for part in ("four volunteers", "1, expert 0", "4, expert 1"):
        assert part in text


def test_picture_says_what_is_awaited_before_the_host_answers() -> None:
    assert "training: all is well" in _drawn(Seen())


def test_plain_screen_prints_one_line_however_narrow_it_is_and_only_when_something_changed() -> None:
    console = Console(file=io.StringIO(), width=20)
    with open_screen(CASTS["data"], console) as screen:
        screen.show(SEEN, "training", "all is well")
        screen.show(SEEN, "training", "all is well, still")
        screen.show(sight((round_row(3),), (5.6,)), "training", "all is well")
        screen.show(sight((round_row(3),), (5.6,)), "down", "killed [/red]")
    assert len(_text(console).splitlines()) == 3
    assert _text(console).endswith("killed [/red]\n")


def test_live_screen_is_drawn_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with open_screen(CASTS["data"], console) as screen:
        screen.show(SEEN, "training", "all is well")
    assert "Potluck demo: a host, three volunteers" in _text(console)


def _reported(**update: object) -> DemoSummary:
    return summarise(SEEN, {1: report(1)}, CASTS["data"]).model_copy(update={"plot": "p.png", **update})


@pytest.mark.parametrize(("kept", "where"), [(None, "--dir DIR"), (Path("here"), "here/logs")])
def test_failed_demo_says_what_to_do_and_where_the_logs_are(
    kept: Path | None, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(
        _reported(failures=("not finished within 9 s [red]",)), "", kept, Console(highlight=False), CASTS["data"]
    )
    said = capsys.readouterr().out
    assert "FAILED: not finished within 9 s [red]" in said
    assert where in said
    assert said.splitlines()[-1] == "not ok"


def test_last_words_tell_loss_bytes_and_how_long_the_others_waited(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(
        _reported(ok=True, rejoin_s=31.5, others_paused_s=22.4),
        "def main(",
        None,
        Console(highlight=False),
        CASTS["data"],
    )
    said = capsys.readouterr().out
    for part in (
        "Text that the model writes",
        "def main(",
        "held-out loss    8.079 -> 2.885 bits/byte (pair model 3.607)",
        "killed peer      counted again after 31.5 s, the others waited 22 s for it",
        "bytes            300 B up, 600 B down",
        "state roots      abababab",
        "loss curve       p.png",
    ):
        assert part in said
    assert said.splitlines()[-1] == "ok"


def test_weights_line_names_who_was_left_out_and_why() -> None:
    omitted = {"omitted": (Omission(peer="two", reason="silent for 2 s"),)}
    row = round_row(4, ("one", "three")).model_copy(update=omitted)
    assert weights_line(SEEN, row) == "peer 1 50%, peer 3 50%; peer 2 left out: silent for 2 s"


def test_sparkline_spans_lowest_to_highest_within_its_width() -> None:
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert len(sparkline([float(i) for i in range(1000)])) <= 48
    assert (sparkline([]), sparkline([2.0])) == ("", "▁")


@pytest.mark.parametrize("seen", [SEEN, Seen()], ids=["some points", "none"])
def test_plot_writes_a_png(tmp_path: Path, seen: Seen) -> None:
    plot_losses(seen, tmp_path / "curve.png", title="curve")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_plot_into_a_missing_folder_names_the_flag(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="--plot"):
        plot_losses(SEEN, tmp_path / "missing" / "curve.png", title="curve")
