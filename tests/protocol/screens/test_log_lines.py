from __future__ import annotations

import json

import pytest

from protocol.screens.log_lines import MAX_LETTERS, log_line, readable


def test_event_comes_back_readable() -> None:
    line = log_line({"event": "joined", "level": "info", "timestamp": "T", "peer": "p", "reason": "two words", "n": 3})
    assert "\n" not in line
    assert readable(line) == ["T info    joined peer=p reason='two words' n=3"]


def test_what_json_has_no_word_for_is_written_as_python_shows_it() -> None:
    assert json.loads(log_line({"event": b"x"}))["event"] == "b'x'"


def test_line_that_would_be_too_long_is_cut_and_still_json() -> None:
    line = log_line({"event": "e", "level": "info", "text": 'x"\n' * MAX_LETTERS})
    assert len(line) <= MAX_LETTERS
    assert json.loads(line)["event"] == "e"


def test_traceback_has_lines_of_its_own_and_strangers_cannot_move_the_cursor() -> None:
    line = log_line(
        {"event": "failed\x1b[2J", "level": "error", "timestamp": "T", "exception": "Traceback\n  boom\x07"}
    )
    assert readable(line) == ["T error   failed\\x1b[2J", "    Traceback", "      boom\\x07"]


@pytest.mark.parametrize("line", ["", "{cut off", "[1]", "[" * 100_000, "\x00"])
def test_what_is_no_event_is_shown_as_it_is(line: str) -> None:
    (shown,) = readable(line)
    assert shown.isprintable()
