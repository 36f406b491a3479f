"""The ranks' folder is private, has room for sockets, and is gone afterwards."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from peer.training.supervision.meeting_folder import PREFIX, meeting_folder, meeting_roots


@pytest.fixture
def root() -> Path:
    """With a short path."""
    return Path(tempfile.mkdtemp(prefix="pm-", dir="/tmp"))


def test_only_its_user_enters_the_folder_and_it_is_removed_with_all_in_it(root: Path) -> None:
    with meeting_folder([root]) as folder:
        assert folder.parent == root
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "store").write_text("x")
    assert list(root.iterdir()) == []


def test_each_life_has_a_folder_of_its_own(root: Path) -> None:
    with meeting_folder([root]) as one, meeting_folder([root]) as other:
        assert one != other
        assert one.exists(), "one in use is not taken away"


def test_a_place_that_cannot_be_written_or_has_too_long_a_path_gives_way_to_the_next(root: Path) -> None:
    long = root / ("x" * 100)
    long.mkdir()
    with meeting_folder([Path("/proc/nowhere"), long, root]) as folder:
        assert folder.parent == root
    assert list(long.iterdir()) == []


def test_without_any_place_the_reason_of_each_and_a_remedy_are_told(root: Path) -> None:
    long = root / ("x" * 100)
    long.mkdir()
    with pytest.raises(OSError, match=r"several cards: /proc/nowhere \(.*x \(.*too long.*set TMPDIR"):
        meeting_folder([Path("/proc/nowhere"), long]).__enter__()


def test_the_folder_of_a_killed_daemon_is_removed_by_the_next(root: Path) -> None:
    left = root / f"{PREFIX}left"
    left.mkdir()
    (left / "held").write_text("")
    (left / "orders").write_text("")
    with meeting_folder([root]) as folder:
        assert [*root.iterdir()] == [folder]


def test_the_folder_for_temporary_files_comes_first_then_shared_memory_then_the_peers_own() -> None:
    found = meeting_roots(Path("/srv/peer"))
    assert found == (Path(tempfile.gettempdir()), Path("/dev/shm"), Path("/srv/peer"))
    assert meeting_roots(None) == found[:2]


def test_without_a_folder_for_temporary_files_shared_memory_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert meeting_roots(Path("state")) == (Path("/dev/shm"), Path(os.path.abspath("state")))
