"""The contents of a bug report, and how it reaches the disk."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from averaging.host.bug_report import as_json, layout, machine_facts, newest_logs, secrets_of_environment, write_zip
from protocol.errors import ConfigError, StorageError


def test_facts_are_json_and_name_versions_and_room(tmp_path: Path) -> None:
    facts = json.loads(as_json(machine_facts([tmp_path, tmp_path / "none"])))
    assert facts["packages"]["trio"][0].isdigit()
    assert facts["memory_bytes"] > 0
    assert facts["disk_free_bytes"][str(tmp_path)] > 0
    assert facts["disk_free_bytes"][str(tmp_path / "none")] is None


def test_layout_has_names_and_sizes_and_no_content(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").write_bytes(b"content")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    text = layout(tmp_path)
    assert "7  runs/x" in text
    assert "content" not in text
    assert text.splitlines()[-1].startswith("2 files, ")


def test_newest_logs_are_taken_whatever_bytes_they_hold(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("peer.log", "peer.log.1", "peer.log.2"):
        (tmp_path / "logs" / name).write_bytes(b"\xff" + name.encode())
    assert newest_logs(tmp_path, "peer.log") == {"peer.log": "\ufffdpeer.log", "peer.log.1": "\ufffdpeer.log.1"}
    assert newest_logs(tmp_path, "host.log") == {}


def test_variables_whose_names_say_so_are_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2hunter2")
    assert b"hunter2hunter2" in secrets_of_environment()


def test_zip_goes_through_a_pipe_for_a_dash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_zip(Path("-"), {"a/b.txt": "text"})
    with zipfile.ZipFile(io.BytesIO(capfdbinary.readouterr().out)) as archive:
        assert archive.read("a/b.txt") == b"text"
    assert list(tmp_path.iterdir()) == []


def test_zip_is_private_whole_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "out.zip"
    write_zip(path, {"a/b.txt": "text \udcff"})
    assert path.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(path) as archive:
        assert archive.read("a/b.txt") == b"text ?"
    with pytest.raises(ConfigError, match="exists already"):
        write_zip(path, {})
    with pytest.raises(StorageError, match="cannot be written"):
        write_zip(tmp_path / "none" / "out.zip", {})
    assert [p.name for p in tmp_path.iterdir()] == ["out.zip"]
