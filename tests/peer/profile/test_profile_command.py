from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peer.profile import profile_command
from peer.profile.profile_command import recorded
from peer.profile.profile_files import take_request, write_problem
from protocol.errors import ConfigError, MachineError, TemporaryError, UnreachableError

TRAINS: dict[str, object] = {"worker_state": "training"}


def _peer(status: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("averaging.host.http_client.read_status_address", lambda _folder: "http://127.0.0.1:1")
    monkeypatch.setattr("averaging.host.http_client.get_json", lambda _url: status)


def _daemon(state_dir: Path, answers: bool) -> Callable[[float], None]:
    """A daemon that looks while the command waits."""

    def look(_seconds: float) -> None:
        import time

        request = take_request(state_dir, time.time())
        if request is not None and answers:
            write_problem(state_dir, request, "for a test")

    return look


def test_the_answer_to_the_own_request_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _peer(TRAINS, monkeypatch)
    said: list[str] = []
    assert recorded(tmp_path, 3, said.append, _daemon(tmp_path, answers=True)).problem == "for a test"
    assert said == ["recording 3 steps ..."]


def test_a_request_that_nobody_takes_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _peer(TRAINS, monkeypatch)
    with pytest.raises(TemporaryError, match="did not take"):
        recorded(tmp_path, 3, lambda _text: None, lambda _seconds: None)
    assert list((tmp_path / "profile").iterdir()) == []


def test_an_answer_that_never_comes_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _peer(TRAINS, monkeypatch)
    monkeypatch.setattr(profile_command, "DONE_WITHIN_S", 30.0)
    with pytest.raises(TemporaryError, match="no profile within"):
        recorded(tmp_path, 3, lambda _text: None, _daemon(tmp_path, answers=False))


def test_a_paused_peer_names_the_command_that_ends_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _peer(TRAINS | {"allowed_share": 0.0, "allowed_reason": "paused until 08:00 (weekly hours)"}, monkeypatch)
    with pytest.raises(TemporaryError, match=r"is paused until 08:00 \(weekly hours\).*`potluck resume`"):
        recorded(tmp_path, 3, lambda _text: None)
    assert not (tmp_path / "profile").exists(), "nothing is asked of it"


@pytest.mark.parametrize(
    ("status", "words"),
    [({}, "no training process"), ({"worker_state": "training", "lane_reason": "lane 1, stage 2"}, "pipeline run")],
)
def test_a_peer_that_cannot_be_recorded_says_so_at_once(
    status: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _peer(status, monkeypatch)
    with pytest.raises(MachineError, match=words):
        recorded(tmp_path, 3, lambda _text: None)


@pytest.mark.parametrize("steps", [0, -1, 51])
def test_too_few_and_too_many_steps_are_refused(steps: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 to 50"):
        recorded(tmp_path, steps, lambda _text: None)


def test_without_a_peer_there_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        recorded(tmp_path, 3, lambda _text: None)
