from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from averaging.host import http_client
from averaging.host.http_client import kept_status_address
from averaging.system.process_record import PROCESS_FILE, running_here
from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from coordinator.run.hosted_folder import refuse_second_host, stop_host
from coordinator.run.start_command import UNKNOWN, remember_command
from protocol.errors import MachineError


def test_second_host_of_a_folder_is_refused_with_the_command_that_ends_the_first(tmp_path: Path) -> None:
    remember_command(tmp_path, UNKNOWN)
    refuse_second_host(tmp_path)
    with running_here(tmp_path), pytest.raises(MachineError) as refused:
        refuse_second_host(tmp_path)
    assert (
        refused.value.one_line()
        == f"a host runs from {tmp_path} already; expected one host for a folder; potluck stop ends it"
    )


def test_peer_of_a_folder_is_no_second_host(tmp_path: Path) -> None:
    with running_here(tmp_path):
        refuse_second_host(tmp_path)


@pytest.mark.parametrize(
    ("num_here", "says"),
    [(0, "no peer is here, so nobody trains"), (1, "the run has not begun, and its peers wait for the host")],
)
def test_stop_tells_what_becomes_of_the_run_by_what_the_host_said_last(
    num_here: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger(tmp_path / LEDGER_FILE):
        remember_command(tmp_path, UNKNOWN)
    monkeypatch.setattr(http_client, "get_json", lambda url: {"num_here": num_here})
    with kept_status_address(tmp_path, "http://127.0.0.1:1"), _process_of(tmp_path):
        assert stop_host(tmp_path) == f"the host has closed; {says}. Go on with: potluck host run.toml"


def test_stop_of_a_host_that_does_not_answer_says_nothing_about_its_peers(tmp_path: Path) -> None:
    remember_command(tmp_path, UNKNOWN)
    with _process_of(tmp_path):
        assert stop_host(tmp_path) == "the host has closed. Go on with: potluck host run.toml"


@contextmanager
def _process_of(folder: Path) -> Iterator[None]:
    """A process that is recorded as the daemon of a folder and ends when it is asked to."""
    with subprocess.Popen(["sleep", "600"]) as process:
        record = {"pid": process.pid, "started_unix_s": psutil.Process(process.pid).create_time()}
        (folder / PROCESS_FILE).write_text(json.dumps(record))
        try:
            yield
        finally:
            process.kill()
