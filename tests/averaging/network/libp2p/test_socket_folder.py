from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from averaging.network.libp2p.socket_folder import SOCKET_PREFIX, make_socket_folder, socket_roots
from protocol.errors import MachineError

READ_ONLY = OSError(30, "Read-only file system")


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def _without(monkeypatch: pytest.MonkeyPatch, *read_only: Path) -> None:
    """These places take no new folder."""
    make = tempfile.mkdtemp

    def mkdtemp(*, prefix: str, **place: Path) -> str:
        if place["dir"] in read_only:
            raise READ_ONLY
        return make(prefix=prefix, **place)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)


def test_the_folder_of_a_killed_process_is_swept_and_a_living_ones_stays(root: Path) -> None:
    dead = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=root))
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(dead / "p2pd.sock"))
    os.utime(dead, (0, 0))
    alive = Path(tempfile.mkdtemp(prefix=SOCKET_PREFIX, dir=root))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(alive / "p2pd.sock"))
        listening.listen()
        os.utime(alive, (0, 0))
        made = make_socket_folder([root])
        assert not dead.exists()
        assert alive.exists()
        assert made.stat().st_mode & 0o777 == 0o700
        assert list(made.iterdir()) == []


def test_places_are_asked_from_the_owners_choice_to_the_state_folder() -> None:
    named = {"TMPDIR": "/mine", "XDG_RUNTIME_DIR": "/run/user/7", "TMP": "relative"}
    assert socket_roots(Path("/state"), named) == tuple(map(Path, ("/mine", "/tmp", "/run/user/7", "/state")))
    assert socket_roots(Path("state"), {})[-1] == Path.cwd() / "state"


def test_tmp_read_only_the_next_place_takes_the_sockets(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, Path("/tmp"))
    assert make_socket_folder([Path("/tmp"), root]).parent == root


def test_place_with_a_long_path_is_passed_over_and_left_clean(root: Path) -> None:
    long = root / ("x" * 80)
    long.mkdir()
    assert make_socket_folder([long, root]).parent == root
    assert list(long.iterdir()) == []


def test_place_whose_disk_keeps_no_modes_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = root / "exfat"
    open_to_all.mkdir()
    make = tempfile.mkdtemp

    def mkdtemp(*, prefix: str, **place: Path) -> str:
        made = make(prefix=prefix, **place)
        if place["dir"] == open_to_all:
            os.chmod(made, 0o777)
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    assert make_socket_folder([open_to_all, root]).parent == root
    assert list(open_to_all.iterdir()) == []


def test_tmp_read_only_everywhere_is_one_line_with_each_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without(monkeypatch, root)
    with pytest.raises(MachineError) as caught:
        make_socket_folder([root, Path("/no/such/place")])
    assert f"{root} (Read-only file system), /no/such/place (No such file or directory)" in caught.value.found
    assert "TMPDIR" in caught.value.remedy
