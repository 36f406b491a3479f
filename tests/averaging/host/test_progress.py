"""Progress of a long command: nothing for a short one, then a line now and then, with the time to go."""

from __future__ import annotations

import io
import sys

import pytest

from averaging.host.progress import LINE_EVERY_S, shown_progress


class _Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_log_gets_a_line_now_and_then_with_the_time_to_go(capsys: pytest.CaptureFixture[str]) -> None:
    clock = _Clock()
    with shown_progress("verifying", clock) as show:
        for step in range(5):
            clock.now_s = step * LINE_EVERY_S / 2
            show(step * 1_000_000, 10_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "verifying: 2.0 MB of 10.0 MB, about 40 s to go",
        "verifying: 4.0 MB of 10.0 MB, about 30 s to go",
    ]


def test_a_short_command_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_progress("verifying", _Clock()) as show:
        show(0, 10)
        show(10, 10)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with shown_progress("fetching the model") as show:
        show(500, 1000)
    assert "fetching the model" in terminal.getvalue()
