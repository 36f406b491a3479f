from __future__ import annotations

import io

import pytest

from averaging.host.progress import LINE_S, QUIET_S, Progress, no_progress, progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_long_work_says_now_and_then_how_far_it_is_and_how_long_it_still_takes() -> None:
    said, clock = io.StringIO(), _Time()
    shown = Progress("packing the data", 400e6, "bytes", said, clock)
    for _ in range(40):
        clock.now_s += 1.0
        shown.add(1e6)
    shown.close()
    first, second = said.getvalue().splitlines()
    assert first == "packing the data: 15.0 MB of 400.0 MB (3.7%), 6 min to go"
    assert second.startswith("packing the data: 30.0 MB of 400.0 MB (7.5%), ")
    assert LINE_S == 15.0


def test_terminal_gets_one_line_that_is_redrawn_and_removed() -> None:
    said, clock = _Terminal(), _Time()
    shown = Progress("merging", 0, "steps", said, clock)
    for _ in range(10):
        clock.now_s += 1.0
        shown.add(1)
    shown.close()
    assert "\n" not in said.getvalue()
    assert "merging: 9 steps so far" in said.getvalue()
    assert said.getvalue().endswith("\r\x1b[K")


def test_short_work_says_nothing() -> None:
    said, clock = _Terminal(), _Time()
    shown = Progress("verifying", 10, "bytes", said, clock)
    clock.now_s += QUIET_S / 2
    shown.add(10)
    shown.close()
    assert said.getvalue() == ""


def test_estimate_that_was_too_low_never_shows_more_than_all_of_it() -> None:
    shown = Progress("packing", 10, "bytes", None, _Time())
    shown.add(25)
    assert shown.text() == "packing: 10 B of 10 B (100%), 0 s to go"


def test_services_of_a_daemon_show_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with no_progress(), progress("verifying", 10) as shown:
        assert shown._stream is None
    with progress("verifying", 10) as shown:
        assert shown._stream is not None
    assert capsys.readouterr().err == ""
