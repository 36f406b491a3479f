"""The host that keeps its run here, running or not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from averaging.host.http import bind_http, serve_http
from averaging.host.http_client import STATUS_ADDRESS_FILE
from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from coordinator.status import local_view
from coordinator.status.local_view import folder_of, is_here, read_daemon
from coordinator.status.metrics.moment import Counts, Moment
from coordinator.status.status_page import RunSource, status_app
from tests.coordinator.progress.test_run_view import picture, timed
from tests.coordinator.status.test_row_pages import crowded


def _remember(folder: Path, url: str) -> None:
    with open_ledger(folder / LEDGER_FILE):
        pass  # a folder with a ledger is a host's
    (folder / STATUS_ADDRESS_FILE).write_text(url + "\n", encoding="ascii")


async def test_running_host_is_asked_at_the_address_in_its_folder(tmp_path: Path) -> None:
    shown = replace(picture((timed(1, 300, 100), timed(2, 600, 110))))
    listener = bind_http("127.0.0.1", 0)
    _remember(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}")
    moment = Moment(shown, Counts(), 100.0)
    async with trio.open_nursery() as nursery:
        source = RunSource(lambda: moment, lambda _most: (), str)
        await nursery.start(serve_http, listener, status_app(source))
        found = await trio.to_thread.run_sync(read_daemon, tmp_path)
        nursery.cancel_scope.cancel()
    assert (found.kind, found.is_running) == ("host", True)
    assert [row["index"] for row in found.rounds] == [1, 2]
    assert len(found.peers) == 2
    assert found.lines[0] == "tiny: training"
    assert json.loads(json.dumps(found.status))["run"] == "tiny"


async def test_all_peers_and_rounds_of_a_large_run_are_read_page_by_page(tmp_path: Path) -> None:
    listener = bind_http("127.0.0.1", 0)
    _remember(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}")
    moment = Moment(crowded(), Counts(), 100.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listener, status_app(RunSource(lambda: moment, lambda _most: (), str)))
        found = await trio.to_thread.run_sync(read_daemon, tmp_path)
        nursery.cancel_scope.cancel()
    assert {row["peer"] for row in found.peers} >= set(moment.picture.peers)
    assert [row["index"] for row in found.rounds] == list(range(1, 126))
    assert "  and 150 more: potluck peers" in found.lines


def test_stopped_host_says_what_to_do(tmp_path: Path) -> None:
    assert not is_here(tmp_path)
    _remember(tmp_path, "http://127.0.0.1:9")
    assert is_here(tmp_path)
    found = read_daemon(tmp_path)
    assert (found.is_running, found.status) == (False, {})
    assert "no host runs from" in found.note
    assert "potluck host" in found.note
    assert "is damaged" not in found.note
    (tmp_path / LEDGER_FILE).write_bytes(b"no database")
    assert f"the ledger {tmp_path / LEDGER_FILE} is damaged" in read_daemon(tmp_path).note


def test_stopped_host_of_a_complete_run_says_what_a_start_is_good_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _remember(tmp_path, "http://127.0.0.1:9")
    monkeypatch.setattr(local_view, "runs", lambda _folder: [{"phase": "finished", "note": ""}])
    assert f"no host runs from {tmp_path}: its run is complete; to show its page" in read_daemon(tmp_path).note


def test_folder_is_the_one_given_or_the_configured_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_HOST_STATE_DIR", str(tmp_path / "env"))
    assert folder_of(None) == tmp_path / "env"
    assert folder_of(tmp_path) == tmp_path
