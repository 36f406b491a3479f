from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from protocol.errors import ConfigError, MachineError
from protocol.identity.identity_file import open_identity, read_identity


def test_the_first_start_makes_a_private_file_and_the_next_finds_the_same_peer(tmp_path: Path) -> None:
    path = tmp_path / "state" / "identity"
    with open_identity(path) as first:
        assert first.was_created
    with open_identity(path) as second:
        assert not second.was_created
        assert second.identity.peer_id == first.identity.peer_id
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_is_refused_with_the_mending_command(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity"
    with open_identity(path):
        pass
    path.chmod(mode)
    with pytest.raises(MachineError, match=r"chmod 600"), open_identity(path):
        pass


def test_a_second_process_with_the_same_identity_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    imports = "from pathlib import Path\nfrom protocol.identity.identity_file import open_identity\n"
    code = f"{imports}with open_identity(Path({str(path)!r})): pass"
    with open_identity(path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "in use by another process" in done.stderr
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("content", [b"", b"not a key", bytes(68)])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="identity"), open_identity(path):
        pass
    assert path.read_bytes() == content


def test_a_folder_in_its_place_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    os.mkdir(path)
    with (
        pytest.raises(MachineError, match=r"cannot be opened: Is a directory.*another --state-dir"),
        open_identity(path),
    ):
        pass


def test_a_file_of_another_user_is_named_with_the_mending_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "identity"
    with open_identity(path):
        pass
    before = path.read_bytes()

    def refuse(*_arguments: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)  # root could read it
        with pytest.raises(MachineError, match=r"cannot be opened: Permission denied.*chown"), open_identity(path):
            pass
    assert path.read_bytes() == before


def test_exfat_a_disk_without_hard_links_holds_a_key_that_is_private_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", _refuse(errno.EPERM))
    path = tmp_path / "state" / "identity"
    with open_identity(path) as first:
        assert first.was_created
    assert [found.name for found in path.parent.iterdir()] == ["identity"]
    assert read_identity(path).peer_id == first.identity.peer_id


def test_without_hard_links_a_key_that_another_process_made_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "identity", tmp_path / "other"
    with open_identity(other) as made:
        pass

    def link(_source: Path, _target: Path) -> None:
        os.rename(other, path)
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", link)
    with open_identity(path) as held:
        assert (held.was_created, held.identity.peer_id) == (False, made.identity.peer_id)
    assert [found.name for found in tmp_path.iterdir()] == ["identity"]


def test_ntfs_a_disk_without_modes_is_refused_for_that_and_gets_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state" / "identity"
    monkeypatch.setattr(os, "fstat", _with_mode(0o777))
    with pytest.raises(MachineError) as caught, open_identity(path):
        pass
    assert "keeps no file modes" in caught.value.found
    assert "chmod" not in caught.value.one_line()
    assert list(path.parent.iterdir()) == []


def test_ntfs_a_key_that_was_brought_to_such_a_disk_is_refused_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "identity"
    with open_identity(path):
        pass
    monkeypatch.setattr(os, "fstat", _with_mode(0o777))
    with pytest.raises(MachineError, match="keeps no file modes"):
        read_identity(path)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_disk_without_locks_is_refused_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    path = tmp_path / "state" / "identity"
    if is_there:
        with open_identity(path):
            pass
    monkeypatch.setattr(fcntl, "flock", _refuse(errno.ENOLCK))
    with pytest.raises(MachineError, match=r"has no file locks.*another disk"), open_identity(path):
        pass
    assert path.exists() == is_there


def _refuse(number: int) -> Callable[..., None]:
    def refuse(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def _with_mode(mode: int) -> Callable[[int], os.stat_result]:
    """As a disk that shows every file with this mode."""
    fstat = os.fstat

    def shown(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        return os.stat_result((found.st_mode & ~0o777 | mode, *found[1:]))

    return shown


def test_an_identity_is_read_beside_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "identity"
    with open_identity(path) as held:
        assert read_identity(path).peer_id == held.identity.peer_id
    path.chmod(0o644)
    with pytest.raises(MachineError, match="chmod 600"):
        read_identity(path)
    path.write_bytes(b"no key")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="identity"):
        read_identity(path)
    with pytest.raises(MachineError, match="cannot be opened"):
        read_identity(tmp_path / "absent")
