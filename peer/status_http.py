"""The peer's own web server, on trio: /status.json, /metrics, /healthz and the volunteer's panel, which shows the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from averaging.network.web_files import SAFE_HEADERS, file_routes
from peer.metrics import metrics_text
from peer.status import PeerStatus

WEB_FOLDER: Final = Path(__file__).with_name("web")
PAGE_FILES: Final[Mapping[str, str]] = {"/": "index.html", "/panel.css": "panel.css", "/panel.js": "panel.js"}


def peer_app(read_status: Callable[[], PeerStatus]) -> Starlette:
    """The web application; `read_status` is called at each request and must not block."""

    async def status(_request: Request) -> Response:
        return Response(read_status().model_dump_json(), media_type="application/json", headers=SAFE_HEADERS)

    async def metrics(_request: Request) -> Response:
        return Response(metrics_text(read_status), media_type=CONTENT_TYPE_LATEST)

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    handlers = {"/status.json": status, "/metrics": metrics, "/healthz": health}
    routes = [Route(path, handler) for path, handler in handlers.items()]
    return Starlette(routes=[*file_routes(WEB_FOLDER, PAGE_FILES), *routes])
