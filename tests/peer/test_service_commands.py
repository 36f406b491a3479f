"""`potluck stop` ends the peer of this machine, and where none runs its host; `potluck health` asks the same one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from averaging.system.process_record import running_here
from peer.service_commands import add_service_commands
from protocol.errors import UnreachableError


@dataclass
class _Host:
    """A host that runs from `folder`."""

    folder: Path
    runs: bool = True
    stopped: list[Path] = field(default_factory=list)

    def host_folder(self, state_dir: Path | None, /) -> Path:
        return state_dir or self.folder

    def is_running(self, folder: Path, /) -> bool:
        return self.runs and folder == self.folder

    def stop_host(self, folder: Path, /) -> str:
        self.stopped.append(folder)
        return "the host has closed"


def _stop(host: _Host, folder: Path) -> tuple[str, BaseException | None]:
    app = typer.Typer()
    add_service_commands(app, lambda: host)
    done = CliRunner().invoke(app, ["stop", "--state-dir", str(folder)])
    return done.output, done.exception


def _health(host: _Host, monkeypatch: pytest.MonkeyPatch, peers: Path) -> str:
    monkeypatch.setenv("POTLUCK_PEER_STATE_DIR", str(peers))
    monkeypatch.setattr("averaging.host.http_client.ask_health", str)
    app = typer.Typer()
    add_service_commands(app, lambda: host)
    return CliRunner().invoke(app, ["health"]).output


def test_health_asks_the_peer_and_the_host_where_no_peer_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, peers = _Host(tmp_path / "host"), tmp_path / "peer"
    peers.mkdir()
    assert _health(host, monkeypatch, peers) == f"ok: {host.folder}\n"
    with running_here(peers):
        assert _health(host, monkeypatch, peers) == f"ok: {peers}\n"
    assert _health(_Host(tmp_path / "host", runs=False), monkeypatch, peers) == f"ok: {peers}\n"


def test_stop_ends_a_host_and_says_that_neither_runs(tmp_path: Path) -> None:
    host = _Host(tmp_path / "host")
    assert _stop(host, tmp_path / "host")[0] == "the host has closed\n"
    assert host.stopped == [tmp_path / "host"]
    error = _stop(host, tmp_path / "elsewhere")[1]
    assert isinstance(error, UnreachableError)
    assert "a running peer or host" in error.one_line()


def test_record_of_a_host_in_the_named_folder_is_no_peer(tmp_path: Path) -> None:
    host = _Host(tmp_path)
    with running_here(tmp_path):
        assert _stop(host, tmp_path)[0] == "the host has closed\n"
