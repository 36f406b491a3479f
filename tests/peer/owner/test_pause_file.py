from __future__ import annotations

from pathlib import Path

import pytest

from peer.owner.controls_core import OwnerPause
from peer.owner.pause_file import MAX_FILE_BYTES, PAUSE_FILE, read_pause, remove_pause, write_pause
from protocol.errors import ConfigError, StorageError


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    (tmp_path / "identity").write_bytes(b"somebody")
    return tmp_path


@pytest.mark.parametrize("pause", [OwnerPause(), OwnerPause(1_800_000_000.5)], ids=["for ever", "with an end"])
def test_a_pause_is_read_as_it_was_written_by_its_owner_alone(state_dir: Path, pause: OwnerPause) -> None:
    write_pause(state_dir, pause)
    assert read_pause(state_dir) == pause
    assert (state_dir / PAUSE_FILE).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in state_dir.iterdir()) == ["identity", PAUSE_FILE]


def test_the_later_pause_replaces_the_earlier_and_resuming_removes_it(state_dir: Path) -> None:
    write_pause(state_dir, OwnerPause(1_800_000_000.0))
    write_pause(state_dir, OwnerPause())
    assert read_pause(state_dir) == OwnerPause()
    assert remove_pause(state_dir)
    assert read_pause(state_dir) is None
    assert not remove_pause(state_dir)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"until_unix_s": true}',
        b'{"until_unix_s": "soon"}',
        b'{"until_unix_s": NaN}',
        b'{"until_unix_s": Infinity}',
        b'{"until_unix_s": -1}',
        b'{"until_unix_s": 1e300}',
        b'{"until_unix_s": null, "more": 1}',
        b"\xff\xfe",
        b"[" * MAX_FILE_BYTES,
        b'{"until_unix_s": null}' + b" " * MAX_FILE_BYTES,
    ],
)
def test_a_file_that_makes_no_sense_is_a_pause_that_says_so(state_dir: Path, data: bytes) -> None:
    (state_dir / PAUSE_FILE).write_bytes(data)
    pause = read_pause(state_dir)
    assert pause is not None
    assert pause.damage == f"the pause file {state_dir / PAUSE_FILE} makes no sense"
    assert remove_pause(state_dir)


def test_a_file_that_cannot_be_read_is_a_pause_that_says_why(state_dir: Path) -> None:
    (state_dir / PAUSE_FILE).mkdir()
    pause = read_pause(state_dir)
    assert pause is not None
    assert "cannot be read (Is a directory)" in pause.damage
    with pytest.raises(StorageError, match="cannot be removed"):
        remove_pause(state_dir)
    with pytest.raises(StorageError, match="cannot be written"):
        write_pause(state_dir, OwnerPause())
    assert sorted(path.name for path in state_dir.iterdir()) == ["identity", PAUSE_FILE]


@pytest.mark.parametrize("command", [lambda folder: write_pause(folder, OwnerPause()), remove_pause])
def test_where_no_peer_has_run_nothing_is_written(tmp_path: Path, command: object) -> None:
    with pytest.raises(ConfigError, match="no peer has run from"):
        command(tmp_path / "none")  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []
