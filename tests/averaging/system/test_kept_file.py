from __future__ import annotations

from pathlib import Path

import pytest

from averaging.system.kept_file import kept_file
from protocol.errors import StorageError


def test_the_file_stands_while_the_block_runs_and_goes_with_its_error_too(tmp_path: Path) -> None:
    path = tmp_path / "note.json"

    def fail() -> None:
        with kept_file(path, "here\n"):
            assert [each.name for each in tmp_path.iterdir()] == ["note.json"]
            assert path.read_text() == "here\n"
            raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_already_is_no_error(tmp_path: Path) -> None:
    with kept_file(tmp_path / "note", "here\n"):
        (tmp_path / "note").unlink()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"), kept_file(tmp_path / "none" / "note", ""):
        pass
