from __future__ import annotations

from pathlib import Path

import pytest

from peer.profile.profile_files import (
    FRESH_S,
    REQUEST_FILE,
    profile_folder,
    read_summary,
    take_request,
    withdraw_request,
    write_problem,
    write_request,
)
from peer.training.profiling.profile_summary import MOST_SUMMARY_BYTES, SUMMARY_FILE
from protocol.errors import StorageError

NOW_S = 1_800_000_000.0


def test_a_request_is_taken_once(tmp_path: Path) -> None:
    asked = write_request(tmp_path, 5, NOW_S)
    assert take_request(tmp_path, NOW_S + 1) == asked
    assert take_request(tmp_path, NOW_S + 1) is None


def test_an_old_request_is_removed_and_not_answered(tmp_path: Path) -> None:
    write_request(tmp_path, 5, NOW_S)
    assert take_request(tmp_path, NOW_S + FRESH_S + 1) is None
    assert list(profile_folder(tmp_path).iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "no", "x" * 10_000),
        '{"request":"0123456789abcdef","num_steps":0,"asked_unix_s":1800000000.0}',
        '{"request":"../../etc/passwd","num_steps":1,"asked_unix_s":1800000000.0}',
    ],
)
def test_a_request_that_makes_no_sense_is_removed(text: str, tmp_path: Path) -> None:
    profile_folder(tmp_path).mkdir()
    (profile_folder(tmp_path) / REQUEST_FILE).write_text(text)
    assert take_request(tmp_path, NOW_S) is None
    assert list(profile_folder(tmp_path).iterdir()) == []


def test_a_request_that_nobody_took_can_be_withdrawn(tmp_path: Path) -> None:
    write_request(tmp_path, 5, NOW_S)
    assert withdraw_request(tmp_path)
    assert not withdraw_request(tmp_path)


def test_an_answer_is_read_by_the_request_that_it_belongs_to(tmp_path: Path) -> None:
    first, second = write_request(tmp_path, 5, NOW_S), write_request(tmp_path, 5, NOW_S)
    assert read_summary(tmp_path, first) is None
    write_problem(tmp_path, first, "paused")
    found = read_summary(tmp_path, first)
    assert found is not None
    assert found.problem == "paused"
    assert read_summary(tmp_path, second) is None


@pytest.mark.parametrize("text", ["{", "x" * (MOST_SUMMARY_BYTES + 5), '{"request":"r","wall_s":NaN}'])
def test_a_damaged_answer_is_one_line(text: str, tmp_path: Path) -> None:
    request = write_request(tmp_path, 5, NOW_S)
    (profile_folder(tmp_path) / SUMMARY_FILE).write_text(text)
    with pytest.raises(StorageError, match="makes no sense") as caught:
        read_summary(tmp_path, request)
    assert "\n" not in str(caught.value)
