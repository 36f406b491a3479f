from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import trio

from averaging.host.http import bind_http, serve_http
from peer.status.status import PeerStatus
from peer.status.status_http import PAGE_FILES, WEB_FOLDER, peer_app
from protocol.errors import MachineError

STATUS = PeerStatus(peer="12D3KooW", name="calm otter", state="training", loss=2.0, bytes_up=10, control_bytes_up=4)


@asynccontextmanager
async def _served(shown: PeerStatus = STATUS) -> AsyncIterator[str]:
    listener = bind_http("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        port = listener.getsockname()[1]
        await nursery.start(serve_http, listener, peer_app(lambda: shown, lambda: [{"name": "brisk-lentil"}]))
        with trio.fail_after(120):
            yield f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


def _answer(url: str) -> tuple[int, str]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request("GET", urlsplit(url).path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


async def test_server_answers_status_metrics_health_and_page() -> None:
    async with _served() as base:
        status = json.loads(await trio.to_thread.run_sync(_get, f"{base}/status.json"))
        metrics = await trio.to_thread.run_sync(_get, f"{base}/metrics")
        health = await trio.to_thread.run_sync(_get, f"{base}/healthz")
        page = await trio.to_thread.run_sync(_get, f"{base}/")
        peers = json.loads(await trio.to_thread.run_sync(_get, f"{base}/peers.json"))
        rounds = json.loads(await trio.to_thread.run_sync(_get, f"{base}/rounds.json"))
    assert (peers, rounds) == ({"peers": [{"name": "brisk-lentil"}]}, {"rounds": []})
    assert status["name"] == "calm otter"
    assert 'potluck_peer_sent_bytes_total{lane="bulk"} 6.0' in metrics
    assert health == "ok\n"
    assert "Potluck peer" in page


async def test_every_file_of_the_panel_is_served() -> None:
    async with _served() as base:
        found = {path: await trio.to_thread.run_sync(_get, base + path) for path in PAGE_FILES}
    assert found == {path: (WEB_FOLDER / name).read_text(encoding="utf8") for path, name in PAGE_FILES.items()}


def test_the_panel_needs_nothing_from_outside_and_writes_strangers_words_as_text() -> None:
    for name in PAGE_FILES.values():
        text = (WEB_FOLDER / name).read_text(encoding="utf8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(
            r"https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|<script>|style=\"", text
        ), name


def test_binding_a_port_in_use_says_so_and_what_to_do() -> None:
    with bind_http("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1:{port}.*--http-port"):
            bind_http("127.0.0.1", port)


@pytest.mark.parametrize(
    ("state", "code"), [("joining", 503), ("catching up", 503), ("training", 200), ("paused", 200), ("leaving", 503)]
)
async def test_peer_is_ready_once_it_has_a_part_in_rounds(state: str, code: int) -> None:
    async with _served(STATUS.model_copy(update={"state": state, "reason": "so it is"})) as base:
        reported = await trio.to_thread.run_sync(_answer, f"{base}/readyz")
    assert reported == (code, "ok\n" if code == 200 else f"{state}: so it is\n")
