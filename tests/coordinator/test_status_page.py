"""The host's web server over a real socket."""

from __future__ import annotations

import json
import urllib.request
from functools import partial

import pytest
import trio

from averaging.network.http import bind_http, serve_http
from coordinator.metrics import Counts, Moment
from coordinator.status_page import status_app
from protocol.errors import MachineError
from tests.coordinator.test_run_view import picture


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=5) as reply:
        return reply.headers["Content-Type"], reply.read().decode()


async def test_page_status_metrics_and_health_are_served() -> None:
    listener = bind_http("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listener, status_app(lambda: Moment(picture(), Counts(), 100.0)))
        pages = {}
        for path in ("/", "/api/status", "/metrics", "/healthz"):
            with trio.fail_after(10):
                pages[path] = await trio.to_thread.run_sync(partial(get, url + path))
        nursery.cancel_scope.cancel()
    assert pages["/"][0].startswith("text/html")
    assert "http" not in pages["/"][1].replace("http://www.w3.org/2000/svg", "")
    assert json.loads(pages["/api/status"][1])["run"] == "tiny"
    assert "potluck_run_tokens 600.0" in pages["/metrics"][1]
    assert pages["/healthz"][1] == "ok\n"


def test_port_in_use_is_one_clear_error() -> None:
    with bind_http("127.0.0.1", 0) as taken, pytest.raises(MachineError, match="cannot listen on"):
        bind_http("127.0.0.1", taken.getsockname()[1])
