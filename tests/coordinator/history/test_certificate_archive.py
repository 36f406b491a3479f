from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.history.certificate_archive import file_name, read_archive, write_archive
from protocol.errors import StorageError
from protocol.ids import UnitName

RAWS = [b"one", b"", b"three" * 1000]


def test_certificates_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder, name = tmp_path / "archive", file_name(UnitName("fragment-0"), 1, 512)
    digest = write_archive(folder, name, RAWS)
    assert read_archive(folder / name, digest) == RAWS
    assert [path.name for path in folder.iterdir()] == ["fragment-0-000000001-000000512.xz"]
    assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert write_archive(folder, name, RAWS) == digest, "after a crash before the ledger had its row"


def test_a_file_that_is_not_what_was_written_is_named(tmp_path: Path) -> None:
    digest = write_archive(tmp_path, "a.xz", RAWS)
    data = bytearray((tmp_path / "a.xz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "b.xz").write_bytes(data)
    for path, words in ((tmp_path / "b.xz", "damaged"), (tmp_path / "none.xz", "could not be read")):
        with pytest.raises(StorageError, match=words):
            read_archive(path, digest)


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"a file in the place of the folder")
    with pytest.raises(StorageError, match="nothing was lost"):
        write_archive(tmp_path / "archive", "a.xz", RAWS)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]
