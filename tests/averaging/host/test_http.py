from __future__ import annotations

import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from averaging.host import http
from averaging.host.http import bind_http, serve_http

NUM_CONNECTIONS = 120
WITHIN_S = 60.0


async def _answer(_request: Request) -> Response:
    return PlainTextResponse("here\n")


@asynccontextmanager
async def _served() -> AsyncIterator[int]:
    listener = bind_http("127.0.0.1", 0)
    port = int(listener.getsockname()[1])
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listener, Starlette(routes=[Route("/", _answer)]))
        with trio.fail_after(WITHIN_S):
            yield port
        nursery.cancel_scope.cancel()


async def test_a_storm_of_connections_that_ask_for_nothing_keeps_nobody_from_being_answered_and_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "ASKED_WITHIN_S", 3.0)
    configs, serve = list[Config](), http.serve

    async def seen(app: ASGIFramework, config: Config, **others: Any) -> None:
        configs.append(config)
        await serve(app, config, **others)

    monkeypatch.setattr(http, "serve", seen)
    async with _served() as port:
        with ExitStack() as stack:
            storm = await trio.to_thread.run_sync(_opened, stack, port)
            assert await trio.to_thread.run_sync(_fetched, f"http://127.0.0.1:{port}/") == b"here\n"
            for one in storm:
                assert await trio.to_thread.run_sync(_to_its_end, one)
    assert [config.keep_alive_timeout for config in configs] == [3.0], "hypercorn's own limit is another"


def _opened(stack: ExitStack, port: int) -> list[socket.socket]:
    """Connections of which half say nothing and half begin a request."""
    storm = []
    for number in range(NUM_CONNECTIONS):
        one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))
        if number % 2:
            one.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nX-Slow: ")
        storm.append(one)
    return storm


def _fetched(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:
        return bytes(answer.read())


def _to_its_end(connection: socket.socket) -> bool:
    """Whether the other side ended the connection; an answer of a refused request may come before that."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True
