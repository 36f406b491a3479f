from __future__ import annotations

from pathlib import Path

import pytest

from peer.status import (
    FINAL_STATUS_FILE,
    PeerStatus,
    StatusPlace,
    forget_status_place,
    last_status,
    status_place,
    write_final_status,
    write_status_place,
)
from protocol.errors import StorageError


def test_final_status_replaces_the_old_one_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=1))
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=2))
    assert [path.name for path in tmp_path.iterdir()] == [FINAL_STATUS_FILE]
    assert PeerStatus.model_validate_json((tmp_path / FINAL_STATUS_FILE).read_bytes()).index == 2


def test_place_where_a_daemon_answers_is_remembered_and_forgotten(tmp_path: Path) -> None:
    assert status_place(tmp_path) is None
    place = StatusPlace(url="http://127.0.0.1:80", peer="p")
    write_status_place(tmp_path, place)
    assert status_place(tmp_path) == place
    forget_status_place(tmp_path)
    forget_status_place(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="cannot be written"):
        write_status_place(tmp_path / "none", place)


def test_last_status_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert last_status(tmp_path) is None
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=1))
    found = last_status(tmp_path)
    assert found is not None
    assert found.index == 1
