from __future__ import annotations

from pathlib import Path

from peer.status.status import (
    FINAL_STATUS_FILE,
    PeerStatus,
    last_status,
    write_final_status,
)


def test_final_status_replaces_the_old_one_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=1))
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=2))
    assert [path.name for path in tmp_path.iterdir()] == [FINAL_STATUS_FILE]
    assert PeerStatus.model_validate_json((tmp_path / FINAL_STATUS_FILE).read_bytes()).index == 2


def test_last_status_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert last_status(tmp_path) is None
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=1))
    found = last_status(tmp_path)
    assert found is not None
    assert found.index == 1
