"""The host's web server, on trio: the status page, /api/status, /metrics and /healthz."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from coordinator.metrics import Moment, render_metrics
from coordinator.run_view import status_json

PAGE_FILE: Final = Path(__file__).with_name("status_page.html")
_SAFE_HEADERS: Final[Mapping[str, str]] = {
    # Names and reasons come from strangers; the page writes them as text, and this is the second lock.
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def status_app(look: Callable[[], Moment]) -> Starlette:
    """The web application; `look` is called at each request and must not block."""
    html = PAGE_FILE.read_text(encoding="utf8")

    async def page(_request: Request) -> Response:
        return HTMLResponse(html, headers=_SAFE_HEADERS)

    async def status(_request: Request) -> Response:
        moment = look()
        return JSONResponse(status_json(moment.picture, moment.now_s), headers=_SAFE_HEADERS)

    async def metrics(_request: Request) -> Response:
        return Response(render_metrics(look), media_type=CONTENT_TYPE_LATEST)

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    handlers = {"/": page, "/api/status": status, "/metrics": metrics, "/healthz": health}
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])
