"""The log on disk: bounded, private, and never in the way."""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import structlog

from averaging.host import log_file
from averaging.host.log_file import NUM_FILES, LogFile, LogTail, keep_log, log_files


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


def test_full_disk_costs_lines_and_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "peer.log"
    log = LogFile(path)
    log.write("before")
    write = os.write

    def full(_descriptor: int, _data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(log_file.os, "write", full)
    log.write("lost")
    log.write("lost too")
    monkeypatch.setattr(log_file.os, "write", write)
    log.write("after")
    first, told, last = _read(path)
    assert (first, last) == ("before", "after")
    assert json.loads(told) == {"event": "log_lines_lost", "lines": 2}


def test_line_that_a_full_disk_cut_off_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "peer.log"
    log = LogFile(path)
    write = os.write
    monkeypatch.setattr(log_file.os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    log.write("cut off")
    monkeypatch.setattr(log_file.os, "write", write)
    log.write("whole")
    lines = _read(path)
    assert (lines[0], lines[-1]) == ("cut", "whole")


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
