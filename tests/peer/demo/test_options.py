from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from peer.demo.options import MAX_TOKENS, DemoOptions
from protocol.errors import ConfigError, StorageError


def _options(
    folder: Path,
    *,
    directory: Path | None = None,
    json_file: Path | None = None,
    plot_file: Path | None = None,
    total_tokens: int = 1000,
    limit_s: float = 900.0,
) -> DemoOptions:
    return DemoOptions(directory, json_file, plot_file or folder / "plot.png", total_tokens, limit_s)


def test_usual_options_are_fine_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    _options(tmp_path, directory=tmp_path / "new" / "folder", json_file=tmp_path / "old.json").check()
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


@pytest.mark.parametrize("total_tokens", [0, -1, MAX_TOKENS + 1])
def test_tokens_that_no_run_can_have_are_refused(tmp_path: Path, total_tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"tokens is {total_tokens}"):
        _options(tmp_path, total_tokens=total_tokens).check()


@pytest.mark.parametrize("limit_s", [0.0, -1.0, math.nan, math.inf])
def test_limit_that_is_no_time_is_refused(tmp_path: Path, limit_s: float) -> None:
    with pytest.raises(ConfigError, match="limit-s is"):
        _options(tmp_path, limit_s=limit_s).check()


def test_folder_of_an_earlier_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(ConfigError, match=r"is not empty.*--dir"):
        _options(tmp_path, directory=tmp_path).check()
    with pytest.raises(ConfigError, match="Not a directory"):
        _options(tmp_path, directory=tmp_path / "run.toml").check()


@pytest.mark.parametrize("name", ["absent/file", "taken", "x" * 300, "file/under"])
def test_what_could_not_be_written_three_minutes_later_is_said_now(tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--plot"):
        _options(tmp_path, plot_file=tmp_path / name).check()
    with pytest.raises(StorageError, match="--json"):
        _options(tmp_path, json_file=tmp_path / name).check()


def test_shards_that_no_demo_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shards is 'layers'; expected data or expert or pipeline"):
        replace(_options(tmp_path), shards="layers").check()
    for shards in ("expert", "pipeline"):
        replace(_options(tmp_path), shards=shards).check()
