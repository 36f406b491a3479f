"""The log on disk: bounded, private, and never in the way."""

from __future__ import annotations

import errno
import io
import json
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from averaging.host.log_file import MAX_LETTERS, NUM_FILES, LogFile, LogTail, keep_log, log_files, log_line, readable


def _read(path: Path) -> list[str]:
    with closing(LogTail(path)) as tail:
        return tail.new()


def _numbers(lines: list[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines]


def test_log_is_bounded_and_private(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "peer.log"
    log = LogFile(path, file_bytes=100)
    for number in range(100):
        log.write(f"{number} {'x' * 20}")
    log.close()
    assert sorted(p.name for p in path.parent.iterdir()) == ["peer.log", "peer.log.1", "peer.log.2", "peer.log.3"]
    assert all(p.stat().st_size <= 100 for p in path.parent.iterdir())
    assert {p.stat().st_mode & 0o777 for p in path.parent.iterdir()} == {0o600}
    numbers = _numbers(_read(path))
    assert numbers == list(range(100 - len(numbers), 100))
    assert len(numbers) > 4 * (NUM_FILES - 1)


def test_later_process_appends_and_makes_room_first(tmp_path: Path) -> None:
    path = tmp_path / "peer.log"
    for number in range(3):
        log = LogFile(path, file_bytes=20)
        log.write(f"{number} " + "x" * 7)
        log.close()
    assert _numbers(_read(path)) == [0, 1, 2]
    assert (tmp_path / "peer.log.1").exists()


@pytest.mark.parametrize("between", [1, 3, 12], ids=["no rotation", "one", "two"])
def test_follower_misses_nothing_across_rotation(tmp_path: Path, between: int) -> None:
    path = tmp_path / "peer.log"
    log, tail = LogFile(path, file_bytes=60), LogTail(path)
    seen: list[int] = []
    for number in range(60):
        log.write(f"{number} {'x' * 8}")
        if number % between == 0:
            seen += _numbers(tail.new())
    log.close()
    seen += _numbers(tail.new())
    assert seen == list(range(60))
    tail.close()


def test_follower_waits_for_the_end_of_a_line_and_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "peer.log"
    tail = LogTail(path)
    assert tail.new() == []
    with path.open("ab") as file:
        file.write(b"half")
        file.flush()
        assert tail.new() == []
        file.write(b" and half\n\xff\n")
    assert tail.new() == ["half and half", "\ufffd"]
    tail.close()


class _Disk(io.FileIO):
    """A file on a disk that has room for `room_bytes` more."""

    room_bytes = 1 << 20

    def write(self, data: bytes) -> int:
        if not _Disk.room_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(bytes(data)[: _Disk.room_bytes])
        _Disk.room_bytes -= written
        return written


@pytest.fixture
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(log: LogFile) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BufferedWriter(_Disk(log.baseFilename, "ab")), encoding="ascii")

    monkeypatch.setattr(LogFile, "_open", opened)
    monkeypatch.setattr(_Disk, "room_bytes", 1 << 20)


@pytest.mark.usefixtures("_disk")
@pytest.mark.parametrize(("room_bytes", "torn"), [(0, []), (3, ["los"])], ids=["full", "full within a line"])
def test_full_disk_costs_lines_says_how_many_and_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int, torn: list[str]
) -> None:
    path = tmp_path / "peer.log"
    log = LogFile(path)
    log.write("before")
    monkeypatch.setattr(_Disk, "room_bytes", room_bytes)
    for line in ("lost", "lost too", "and this"):
        log.write(line)
    monkeypatch.setattr(_Disk, "room_bytes", 1 << 20)
    log.write("after")
    log.write("later")
    log.close()
    lines = _read(path)
    assert lines[:-3] == ["before", *torn]
    assert json.loads(lines[-3]) == {"event": "log_lines_lost", "lines": 3}
    assert lines[-2:] == ["after", "later"]


def test_folder_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    log = LogFile(tmp_path / "file" / "peer.log")
    log.write("lost")
    log.close()
    assert log_files(tmp_path / "x")[1].name == "x.1"


def test_what_is_logged_goes_to_the_file_too_and_only_meanwhile(tmp_path: Path) -> None:
    path, logger = tmp_path / "peer.log", structlog.get_logger()
    before = structlog.get_config()["processors"]
    with keep_log(path):
        logger.warning("report_refused", reason="a clock")
        try:
            raise ValueError("boom")
        except ValueError:
            logger.exception("failed")
    logger.warning("not kept")
    assert structlog.get_config()["processors"] == before
    refused, failed = map(json.loads, _read(path))
    assert (refused["event"], refused["level"], refused["reason"]) == ("report_refused", "warning", "a clock")
    assert "ValueError: boom" in failed["exception"]


def test_event_comes_back_readable_as_a_terminal_shows_it() -> None:
    line = log_line({"event": "joined", "level": "info", "timestamp": "T", "peer": "p", "reason": "two words", "n": 3})
    assert "\n" not in line
    assert readable(line) == "T [info     ] joined n=3 peer=p reason='two words'"


def test_what_json_has_no_word_for_is_written_as_python_shows_it() -> None:
    assert json.loads(log_line({"event": b"x"}))["event"] == "b'x'"


def test_line_that_would_be_too_long_is_cut_and_still_json() -> None:
    line = log_line({"event": "e", "level": "info", "text": 'x"\n' * MAX_LETTERS})
    assert len(line) <= MAX_LETTERS
    assert json.loads(line)["event"] == "e"


def test_traceback_has_lines_of_its_own_and_strangers_cannot_move_the_cursor() -> None:
    event = {"event": "failed\x1b[2J", "level": "error", "exception": "Traceback\n  boom\x07", "why\r": "a\nb"}
    head, *traceback = readable(log_line(event)).split("\n")
    assert traceback == ["    Traceback", "      boom\\x07"]
    assert head.isprintable()
    assert "failed\\x1b[2J" in head


@pytest.mark.parametrize("line", ["", "{cut off", "[1]", "[" * 100_000, "\x00", "{}"])
def test_what_is_no_event_is_shown_without_harm(line: str) -> None:
    assert readable(line).isprintable()
