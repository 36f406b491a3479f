"""The base of an adapter's checkpoint is found in the data folder of the host or the peer that the checkpoint is of."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from averaging.data.base_files import BaseFile, StoredAdapter, find_base
from protocol.errors import ConfigError, StorageError
from protocol.tensors.adapter_schema import AdapterConfig

PARTS = (b"first part", b"second")
NAMES = tuple(sha256(part).hexdigest() for part in PARTS)
ADAPTER = StoredAdapter(
    numbers=AdapterConfig(rank=1, alpha=1.0),
    base_name="base",
    base=tuple(BaseFile(sha256=name, num_bytes=len(part)) for name, part in zip(NAMES, PARTS, strict=True)),
)


def _data(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, part in zip(NAMES, PARTS, strict=True):
        (folder / name).write_bytes(part)
    return folder


@pytest.mark.parametrize("place", ["host/checkpoints/00000003-cc", "runs/ab/checkpoints/00000003-cc", "runs/ab/.own/3"])
def test_the_data_folder_beside_a_checkpoint_has_its_base(tmp_path: Path, place: str) -> None:
    top = tmp_path / "host" if place.startswith("host") else tmp_path
    data = _data(top / "data")
    assert find_base(tmp_path / place, ADAPTER) == tuple(data / name for name in NAMES)


def test_a_given_folder_is_the_only_one_that_is_looked_in(tmp_path: Path) -> None:
    _data(tmp_path / "data")
    with pytest.raises(ConfigError, match=f"is not in {tmp_path / 'other'}; expected 2 files"):
        find_base(tmp_path / "checkpoints" / "3", ADAPTER, tmp_path / "other")
    other = _data(tmp_path / "other")
    assert find_base(tmp_path / "checkpoints" / "3", ADAPTER, other)[0].parent == other


def test_a_base_that_a_peer_keeps_apart_from_its_text_is_found(tmp_path: Path) -> None:
    data = _data(tmp_path / "data" / "weights")
    assert find_base(tmp_path / "runs/ab/checkpoints/3", ADAPTER) == tuple(data / name for name in NAMES)


def test_a_part_of_a_base_is_none(tmp_path: Path) -> None:
    (_data(tmp_path / "data") / NAMES[1]).unlink()
    with pytest.raises(ConfigError, match="is not in"):
        find_base(tmp_path / "checkpoints" / "3", ADAPTER)


def test_a_damaged_base_is_refused(tmp_path: Path) -> None:
    (_data(tmp_path / "data") / NAMES[1]).write_bytes(b"secons")
    with pytest.raises(StorageError, match="is lost or damaged"):
        find_base(tmp_path / "checkpoints" / "3", ADAPTER)
