from __future__ import annotations

from pathlib import Path

import pytest

from averaging.system.private_file import write_private


def test_a_private_file_replaces_the_earlier_one_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "pause.json"
    path.write_text("of before")
    write_private(path, "new")
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pause.json"
    path.write_text("of before")

    def refuse(source: object, target: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr("averaging.system.private_file.os.replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        write_private(path, "new")
    assert path.read_text() == "of before"
    assert list(tmp_path.iterdir()) == [path]
