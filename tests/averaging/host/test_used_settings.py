"""The settings in use are on disk, so that a report tells those and not what is configured since."""

from __future__ import annotations

from pathlib import Path

import pytest

import coordinator.status.local_view
import peer.status.local_view
from averaging.host.used_settings import SETTINGS_FILE, remember_settings, used_settings
from peer.settings.config import PeerConfig
from protocol.errors import StorageError


def test_a_report_shows_the_settings_that_the_peer_was_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_settings(tmp_path, PeerConfig(state_dir=tmp_path, duty_percent=25.0).model_dump(mode="json"))
    monkeypatch.setenv("POTLUCK_PEER_DUTY_PERCENT", "50")
    assert peer.status.local_view.settings(tmp_path)["duty_percent"] == 25.0
    assert peer.status.local_view.settings(tmp_path / "new")["duty_percent"] == 50.0


def test_a_report_shows_the_settings_that_the_host_was_started_with(tmp_path: Path) -> None:
    remember_settings(tmp_path, {"invite_uses": 7})
    assert coordinator.status.local_view.settings(tmp_path) == {"invite_uses": 7}


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_a_damaged_record_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / SETTINGS_FILE).write_bytes(data)
    assert used_settings(tmp_path) is None


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        remember_settings(tmp_path / "nowhere", {})
