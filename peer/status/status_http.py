"""The peer's own web server, on trio: JSON of status, peers, rounds and trace, /metrics, /healthz, /readyz and the panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from averaging.host.web_files import SAFE_HEADERS, AsciiJson, file_routes
from peer.status.metrics import metrics_text
from peer.status.status import PeerStatus

WEB_FOLDER: Final = Path(__file__).with_name("web")
PAGE_FILES: Final[Mapping[str, str]] = {"/": "index.html", "/panel.css": "panel.css", "/panel.js": "panel.js"}

_NOT_READY: Final = ("joining", "catching up", "leaving")
"""Healthy states in which a peer takes no part in rounds. A paused or waiting peer still takes part."""

Rows = Sequence[Mapping[str, object]]


def peer_app(
    read_status: Callable[[], PeerStatus],
    read_peers: Callable[[], Rows] = tuple,
    read_rounds: Callable[[], Rows] = tuple,
    read_spans: Callable[[], Rows] = tuple,
) -> Starlette:
    """The web application; what it reads is called at each request and must not block. /peers.json is {"peers": rows}, /rounds.json
    {"rounds": rows}, with the names that the host's /api/status has for them; /trace.json {"spans": rows}.
    """

    async def status(_request: Request) -> Response:
        return Response(read_status().model_dump_json(), media_type="application/json", headers=SAFE_HEADERS)

    async def peers(_request: Request) -> Response:
        return AsciiJson({"peers": list(read_peers())})

    async def rounds(_request: Request) -> Response:
        return AsciiJson({"rounds": list(read_rounds())})

    async def trace(_request: Request) -> Response:
        return AsciiJson({"spans": list(read_spans())})

    async def metrics(_request: Request) -> Response:
        return Response(metrics_text(read_status), media_type=CONTENT_TYPE_LATEST)

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request) -> Response:
        state, reason = read_status().state, read_status().reason
        if state in _NOT_READY:
            return PlainTextResponse(f"{state}: {reason}\n", 503, SAFE_HEADERS)
        return PlainTextResponse("ok\n", headers=SAFE_HEADERS)

    handlers = {
        "/status.json": status,
        "/peers.json": peers,
        "/rounds.json": rounds,
        "/trace.json": trace,
        "/metrics": metrics,
        "/healthz": health,
        "/readyz": ready,
    }
    routes = [Route(path, handler) for path, handler in handlers.items()]
    return Starlette(routes=[*file_routes(WEB_FOLDER, PAGE_FILES), *routes])
