"""`potluck runs forget`: asks, deletes one run, and never one in which a peer runs; and what a failed join leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from averaging.host.daemon_views import runs_text
from peer.membership.forget_run import cleared_if_refused, forget_run
from peer.membership.incarnation import take_incarnation
from peer.membership.saved_membership import last_run_folder, remember_last_run, run_folders
from peer.status.joined_runs import joined_runs
from peer.status.status import PeerStatus, last_status, write_final_status
from protocol.errors import ConfigError, MachineError, RefusedError
from protocol.identity.identity_file import open_identity
from tests.coordinator.host_world import RUN_TOML
from tests.peer.holdings.test_own_model import keep_run, tiny_run


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """The last run, and another one."""
    other = keep_run(tmp_path, tiny_run(RUN_TOML.replace('"tiny"', '"other"')))
    last = keep_run(tmp_path, tiny_run())
    remember_last_run(last)
    with open_identity(tmp_path / "identity"):
        pass
    return last, other


def test_a_run_is_deleted_after_a_yes_and_the_rest_stays(tmp_path: Path, two: tuple[Path, Path]) -> None:
    last, other = two
    asked: list[str] = []
    assert forget_run(tmp_path, "tiny", lambda question: bool(asked.append(question))) == "nothing was deleted"
    assert f"delete tiny ({last.name}, " in asked[0]
    assert run_folders(tmp_path) == sorted(two)
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", run="tiny"))
    assert forget_run(tmp_path, "tiny", lambda _question: True).startswith("deleted: tiny (")
    assert last_status(tmp_path) is None
    assert run_folders(tmp_path) == [other]
    assert list((tmp_path / "runs").iterdir()) == [other]
    assert (tmp_path / "identity").exists()
    assert last_run_folder(tmp_path) == other
    with pytest.raises(ConfigError, match="no run tiny was joined"):
        forget_run(tmp_path, "tiny", lambda _question: True)


def test_a_run_in_which_the_peer_runs_is_never_deleted(tmp_path: Path, two: tuple[Path, Path]) -> None:
    last, _ = two
    with open_identity(tmp_path / "identity"):
        with pytest.raises(MachineError, match=r"tiny \(.*in use by another process.*end it with: potluck stop"):
            forget_run(tmp_path, "tiny", lambda _question: True)
        forget_run(tmp_path, "other", lambda _question: True)
    assert run_folders(tmp_path) == [last]


def test_a_failed_join_leaves_no_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / ("ab" * 8)

    def join() -> None:
        with cleared_if_refused(folder):
            take_incarnation(folder)
            raise RefusedError("an invite that was used", "an unused invite")

    with pytest.raises(RefusedError):
        join()
    assert joined_runs(tmp_path) == []
    with cleared_if_refused(folder):
        pass  # nothing was made yet


def test_a_run_whose_votes_are_here_or_that_was_joined_is_not_cleared(tmp_path: Path, two: tuple[Path, Path]) -> None:
    held = tmp_path / "runs" / ("cd" * 8)
    (held / "fragment-0").mkdir(parents=True)
    for folder in (held, *two):
        with cleared_if_refused(folder):
            pass
        assert folder.is_dir()


def test_what_is_left_of_a_join_that_was_killed_is_called_not_joined(tmp_path: Path) -> None:
    take_incarnation(tmp_path / "runs" / ("ab" * 8))
    (row,) = joined_runs(tmp_path)
    assert (row["is_joined"], row["note"], row["name"]) == (False, "", None)
    text = "\n".join(runs_text([], [row]))
    assert "not joined: its host never let this peer in" in text
    assert "cannot be read" not in text
    assert forget_run(tmp_path, "abab", lambda _question: True).startswith("deleted: not joined (")
