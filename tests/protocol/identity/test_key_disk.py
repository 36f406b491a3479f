from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from protocol.identity.key_disk import missing_on_disk


def test_a_disk_with_modes_and_locks_lacks_nothing_and_keeps_no_trial_file(tmp_path: Path) -> None:
    assert missing_on_disk(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_modes_is_told_from_one_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda _: SimpleNamespace(st_mode=0o100777))
        assert "file modes" in missing_on_disk(tmp_path)

    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    assert missing_on_disk(tmp_path) == "has no file locks (No locks available)"
    assert list(tmp_path.iterdir()) == []
