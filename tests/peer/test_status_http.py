from __future__ import annotations

import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from averaging.network.http import bind_http, serve_http
from peer.status import PeerStatus
from peer.status_http import peer_app
from protocol.errors import MachineError

STATUS = PeerStatus(peer="12D3KooW", name="calm otter", state="training", loss=2.0, bytes_up=10, control_bytes_up=4)


@asynccontextmanager
async def _served() -> AsyncIterator[str]:
    listener = bind_http("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        port = listener.getsockname()[1]
        await nursery.start(serve_http, listener, peer_app(lambda: STATUS, lambda: [{"name": "brisk-lentil"}]))
        with trio.fail_after(20):
            yield f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


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


def test_binding_a_port_in_use_says_so_and_what_to_do() -> None:
    with bind_http("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(MachineError, match=f"cannot listen on 127.0.0.1:{port}.*--http-port"):
            bind_http("127.0.0.1", port)
