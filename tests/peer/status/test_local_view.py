"""The peer that keeps its state here, running or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from averaging.host.daemon_views import DaemonView, status_text
from averaging.host.http import bind_http, serve_http
from averaging.host.http_client import STATUS_ADDRESS_FILE
from peer.status.local_view import is_here, read_daemon
from peer.status.status import FINAL_STATUS_FILE, PeerStatus, write_final_status
from peer.status.status_http import peer_app
from protocol.identity.identity_file import open_identity

STATUS = PeerStatus(peer="12D3KooW", name="calm-otter", state="training", reason="training", index=7)
PEERS = [{"peer": "12D3KooX", "name": "brisk-lentil"}]
ROUNDS = [{"index": 7}]


def _reported_to_answer_at(folder: Path, url: str) -> PeerStatus:
    """Its status, by the identity in the folder."""
    (folder / STATUS_ADDRESS_FILE).write_text(url + "\n", encoding="ascii")
    with open_identity(folder / "identity") as held:
        return STATUS.model_copy(update={"peer": held.identity.peer_id})


async def _look_at_running(folder: Path, **changes: object) -> DaemonView:
    listener = bind_http("127.0.0.1", 0)
    own = _reported_to_answer_at(folder, f"http://127.0.0.1:{listener.getsockname()[1]}")
    status = own.model_copy(update=changes)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listener, peer_app(lambda: status, lambda: PEERS, lambda: ROUNDS))
        found = await trio.to_thread.run_sync(read_daemon, folder)
        nursery.cancel_scope.cancel()
    return found


async def test_running_peer_is_asked_where_it_says_that_it_answers(tmp_path: Path) -> None:
    found = await _look_at_running(tmp_path)
    assert (found.kind, found.is_running, found.note) == ("peer", True, "")
    assert (found.status["index"], found.peers, found.rounds) == (7, PEERS, ROUNDS)
    assert found.lines[0] == "calm-otter in no run yet: training"


async def test_port_that_went_to_another_daemon_is_no_running_peer(tmp_path: Path) -> None:
    found = await _look_at_running(tmp_path, peer="12D3KooX")
    assert not found.is_running
    assert found.note.startswith("no peer runs from ")
    assert "potluck join" in found.note


def test_killed_peer_is_shown_as_it_left_the_time_before(tmp_path: Path) -> None:
    _reported_to_answer_at(tmp_path, "http://127.0.0.1:9")
    assert read_daemon(tmp_path).status == {}
    write_final_status(tmp_path, STATUS)
    found = read_daemon(tmp_path)
    assert (found.is_running, found.status["index"]) == (False, 7)
    assert status_text([found])[:2] == [f"last status of the peer in {tmp_path}", "calm-otter in no run yet: training"]


def test_peer_that_does_not_run_is_told_in_one_sentence_without_the_error_of_the_system(tmp_path: Path) -> None:
    _reported_to_answer_at(tmp_path, "http://127.0.0.1:9")
    note = read_daemon(tmp_path).note
    assert note == f"no peer runs from {tmp_path}; start it with: potluck join --state-dir {tmp_path}"


def test_peer_of_a_complete_run_is_not_to_be_started_again(tmp_path: Path) -> None:
    _reported_to_answer_at(tmp_path, "http://127.0.0.1:9")
    write_final_status(tmp_path, STATUS.model_copy(update={"state": "finished"}))
    assert read_daemon(tmp_path).note == f"no peer runs from {tmp_path}: its run is complete"


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"peer": 5}'], ids=range(5))
def test_damaged_files_are_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    for name in (FINAL_STATUS_FILE, STATUS_ADDRESS_FILE):
        (tmp_path / name).write_bytes(damage)
    found = read_daemon(tmp_path)
    assert (found.is_running, found.status) == (False, {})
    assert found.note.startswith("no peer runs from")


def test_folder_is_a_peers_when_one_ran_from_it(tmp_path: Path) -> None:
    assert not is_here(tmp_path)
    (tmp_path / "identity").write_bytes(b"")
    assert is_here(tmp_path)
