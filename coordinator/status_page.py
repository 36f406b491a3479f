"""The host's web server, on trio: the status page, /api/status, /metrics and /healthz."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from coordinator.metrics import Moment, render_metrics
from coordinator.run_view import status_json
from protocol.errors import MachineError

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

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


def bind_http(host: str, port: int) -> socket.socket:
    """A listening socket; `getsockname()[1]` says which port it got when `port` is 0.

    Raises:
        MachineError: the port is in use or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
    except OSError as error:
        listener.close()
        raise MachineError(
            f"cannot listen on {host}:{port} ({error.strerror})",
            "a free port on an address of this machine",
            "give another with --http-port, or 0 for any",
        ) from error
    return listener


async def serve_status(
    listener: socket.socket,
    look: Callable[[], Moment],
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled. The socket is taken over, and closed at the end; `task_status` gets the URLs."""
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = 1.0
    app = cast("ASGIFramework", status_app(look))
    await serve(app, config, shutdown_trigger=trio.sleep_forever, task_status=task_status, mode="asgi")
