"""`potluck stop`: finds the process of a peer by what it recorded, asks it to leave and waits; never hits another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from peer.owner.running_peer import PROCESS_FILE, RunningPeer, running_here, running_peer, stop_peer
from protocol.errors import StorageError, TemporaryError, UnreachableError

LEAVES = (
    "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('up', flush=True); signal.pause()"
)
STAYS = (
    "import signal; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True)\nwhile True: signal.pause()"
)


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is recorded as the peer of tmp_path."""
    process = subprocess.Popen([sys.executable, "-c", request.param], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    started_unix_s = psutil.Process(process.pid).create_time()
    (tmp_path / PROCESS_FILE).write_text(json.dumps({"pid": process.pid, "started_unix_s": started_unix_s}))
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_process_is_recorded_while_it_runs_the_peer(tmp_path: Path) -> None:
    assert running_peer(tmp_path) is None
    with running_here(tmp_path):
        assert running_peer(tmp_path) == RunningPeer(psutil.Process().pid)
    assert running_peer(tmp_path) is None
    with pytest.raises(StorageError, match="cannot be written"), running_here(tmp_path / "nowhere"):
        pass


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": 1}', '{"pid": 1, "started_unix_s": 0}', '{"pid": "x", "started_unix_s": 0}']
)
def test_a_damaged_record_is_no_running_peer(tmp_path: Path, text: str) -> None:
    (tmp_path / PROCESS_FILE).write_text(text)
    assert running_peer(tmp_path) is None


@pytest.mark.parametrize("program", [LEAVES], indirect=True)
def test_a_running_peer_is_asked_to_leave_and_waited_for(tmp_path: Path, program: subprocess.Popen[str]) -> None:
    assert stop_peer(tmp_path) == f"the peer has left; go on with: potluck join --state-dir {tmp_path}"
    assert program.wait() == 0
    with pytest.raises(UnreachableError, match="no peer runs from"):
        stop_peer(tmp_path)


@pytest.mark.parametrize("program", [STAYS], indirect=True)
def test_a_peer_that_takes_long_is_left_alone_and_the_owner_is_told(
    tmp_path: Path, program: subprocess.Popen[str]
) -> None:
    with pytest.raises(TemporaryError, match="the peer is still leaving"):
        stop_peer(tmp_path, within_s=0.0)
    assert program.poll() is None


@pytest.mark.parametrize("program", [STAYS], indirect=True)
def test_another_process_with_the_number_of_a_dead_peer_is_not_touched(
    tmp_path: Path, program: subprocess.Popen[str]
) -> None:
    record = json.loads((tmp_path / PROCESS_FILE).read_text())
    (tmp_path / PROCESS_FILE).write_text(json.dumps({**record, "started_unix_s": record["started_unix_s"] - 60}))
    with pytest.raises(UnreachableError, match="no peer runs from"):
        stop_peer(tmp_path)
    assert program.poll() is None
