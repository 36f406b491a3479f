"""The command of a host's last start, as messages repeat it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from coordinator.run.hosted_folder import fetch_status
from coordinator.run.start_command import (
    COMMAND_FILE,
    UNKNOWN,
    closing_words,
    last_command,
    remember_command,
    run_at_close,
    start_command,
)
from protocol.errors import UnreachableError


def test_command_repeats_the_run_file_and_the_flags_that_were_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {
        "listen_host": "127.0.0.1",
        "grpc_port": 4600,
        "helper": False,
        "http_port": None,
        "state_dir": Path("a b"),
    }
    command = start_command(Path("mine.toml"), flags)
    assert (
        str(command) == "potluck host mine.toml --listen-host 127.0.0.1 --grpc-port 4600 --no-helper --state-dir 'a b'"
    )
    monkeypatch.chdir("/")
    assert f"potluck host {str(tmp_path)[1:]}/mine.toml " in str(command) or f"{tmp_path}/mine.toml" in str(command)
    assert str(command.changed(grpc_port=1, listen_host=None, state_dir=None)).endswith(
        "mine.toml --no-helper --grpc-port 1"
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"arguments": []}', '{"arguments": 3}', "[" * 100_000])
def test_damaged_record_is_an_unknown_command(tmp_path: Path, text: str) -> None:
    (tmp_path / COMMAND_FILE).write_text(text)
    assert last_command(tmp_path) == UNKNOWN


def test_status_names_the_run_file_that_the_host_was_started_with(tmp_path: Path) -> None:
    with open_ledger(tmp_path / LEDGER_FILE):
        remember_command(tmp_path, start_command(Path("/srv/mine.toml"), {"listen_host": "127.0.0.1"}))
    with pytest.raises(
        UnreachableError, match=r"start it with: potluck host /srv/mine\.toml --listen-host 127\.0\.0\.1"
    ):
        fetch_status(tmp_path)


@pytest.mark.parametrize(
    ("phase", "num_here", "says"),
    [
        ("training", 2, "closed; peers train on without the host. Go on with: "),
        ("training", 0, "closed; no peer is here, so nobody trains. Go on with: "),
        ("gathering", 0, "closed; no peer is here, so nobody trains. Go on with: "),
        ("gathering", 1, "closed; the run has not begun, and its peers wait for the host. Go on with: "),
        ("finished", 3, "closed; the run is complete. To serve its page and its model again: "),
        ("finished", None, "closed; the run is complete. To serve its page and its model again: "),
        ("training", None, "closed. Go on with: "),
        (None, None, "closed. Go on with: "),
        ([], 1, "closed. Go on with: "),
    ],
)
def test_host_that_closes_says_what_becomes_of_the_run_and_how_to_go_on(
    phase: object, num_here: object, says: str
) -> None:
    assert closing_words(UNKNOWN, run_at_close(phase, num_here)) == says + "potluck host run.toml"
