"""A run by its name, by its id, or the last one, which is recorded and not guessed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peer.membership.named_run import find_run, run_name, run_of
from peer.membership.saved_membership import FILE_NAME, last_run_folder, remember_last_run
from protocol.errors import ConfigError
from protocol.ids import RunId
from tests.coordinator.host_world import RUN_TOML
from tests.peer.holdings.test_own_model import keep_run, tiny_run


def _two_runs(state_dir: Path) -> tuple[Path, Path]:
    return keep_run(state_dir, tiny_run()), keep_run(state_dir, tiny_run(RUN_TOML.replace('"tiny"', '"large"')))


def test_a_run_is_found_by_its_name_and_by_the_beginning_of_its_id(tmp_path: Path) -> None:
    tiny, large = _two_runs(tmp_path)
    assert (run_name(tiny), run_name(large)) == ("tiny", "large")
    assert find_run(tmp_path, "large") == large
    assert find_run(tmp_path, tiny.name[:6].upper()) == tiny
    assert (run_of(tmp_path, "tiny"), run_of(large), run_of(tmp_path / "elsewhere")) == (tiny, large, None)
    with pytest.raises(ConfigError, match=r"no run other was joined .*large \(.*see: potluck runs"):
        find_run(tmp_path, "other")
    with pytest.raises(ConfigError, match="no run was joined from"):
        find_run(tmp_path / "elsewhere", "")
    with pytest.raises(ConfigError, match="expected a run that was joined; see: potluck runs"):
        find_run(tmp_path / "elsewhere", "other")


def test_of_two_runs_of_one_name_the_id_is_asked_for(tmp_path: Path) -> None:
    _two_runs(tmp_path)
    keep_run(tmp_path, tiny_run(RUN_TOML.replace("total_tokens = 1000", "total_tokens = 2000")))
    with pytest.raises(ConfigError, match=r"2 runs are called tiny; .*name it by its id"):
        find_run(tmp_path, "tiny")


def test_the_last_run_is_the_recorded_one_whatever_the_times_of_the_files_say(tmp_path: Path) -> None:
    tiny, large = _two_runs(tmp_path)
    remember_last_run(tiny)
    os.utime(large / FILE_NAME, (2e9, 2e9))  # as a copied folder or a renewed credential
    assert last_run_folder(tmp_path) == find_run(tmp_path, "") == tiny
    remember_last_run(large)
    os.utime(tiny / FILE_NAME, (2.1e9, 2.1e9))
    assert last_run_folder(tmp_path) == large


@pytest.mark.parametrize("record", [None, "", "0123456789abcdef", "../../etc", "\xff"])
def test_without_a_good_record_it_is_the_one_that_was_written_last(tmp_path: Path, record: str | None) -> None:
    tiny, large = _two_runs(tmp_path)
    if record is not None:
        (tmp_path / "last_run").write_text(record, encoding="latin1")
    os.utime(large / FILE_NAME, (2e9, 2e9))
    assert last_run_folder(tmp_path) == large
    assert tiny.parent == large.parent
    assert last_run_folder(tmp_path / str(RunId(b"x"))) is None
