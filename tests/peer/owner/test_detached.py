"""`potluck join --detach`: another session, a file for the output, and words on how to see and stop it."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from peer.owner.detached import OUTPUT_FILE, detached_arguments, join_detached, own_command
from peer.owner.running_peer import running_here
from protocol.errors import MachineError

SESSION = (
    "import os, sys, threading; print('session', os.getsid(0), 'input', sys.stdin.read(), flush=True); "
    "threading.Event().wait(600)"
)


def _said(folder: Path) -> str:
    path = folder / "logs" / OUTPUT_FILE
    return path.read_text() if path.exists() else ""


def test_the_peer_goes_on_in_a_session_of_its_own_with_its_output_in_a_file(tmp_path: Path) -> None:
    lines = join_detached(
        tmp_path, [sys.executable, "-c", SESSION], is_in=lambda folder, _pid: "session" in _said(folder)
    )
    pid = int(re.findall(r"process (\d+)", lines[0])[0])
    try:
        assert _said(tmp_path).split() == ["session", str(pid), "input"]
        assert os.getsid(0) != pid
        assert lines[0] == f"the peer runs in the background, as process {pid}"
        assert "potluck status" in lines[1]
        assert "potluck stop" in lines[2]
        assert lines[3].endswith(f"logs/{OUTPUT_FILE}")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_peer_that_ends_at_once_is_told_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    refused = [sys.executable, "-c", "import sys; print('potluck: the invite expired'); sys.exit(6)"]
    with pytest.raises(MachineError, match=r"ended with exit code 6: potluck: the invite expired"):
        join_detached(tmp_path, refused)


def test_a_folder_with_a_running_peer_gets_no_second_one(tmp_path: Path) -> None:
    with running_here(tmp_path), pytest.raises(MachineError, match=r"runs from .* already.*potluck stop"):
        join_detached(tmp_path, ["/nowhere"])
    assert not (tmp_path / "logs").exists()


def test_the_same_program_is_started_by_its_path_and_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bin/potluck", "join"])
    assert own_command() == [sys.executable, os.path.abspath("bin/potluck")]
    assert detached_arguments(["join", "--detach", "--run", "a"]) == ["join", "--run", "a"]
    given = ["join", "potluck1:x", "yz", "--detach", "--slowdown", "3"]
    assert detached_arguments(given, ["potluck1:x", "yz"]) == ["join", "--slowdown", "3", "-"]


def test_the_invite_reaches_the_process_in_the_background_by_its_input_alone(tmp_path: Path) -> None:
    program = "import sys; print(sys.stdin.read(), sys.argv[1:]); sys.exit(6)"
    with pytest.raises(MachineError, match=r"code 6: potluck1:secret / .*\[\]"):
        join_detached(tmp_path, [sys.executable, "-c", program], line="potluck1:secret", pieces=["potluck1:secret"])
