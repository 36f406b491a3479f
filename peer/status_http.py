"""The peer's own web server, on trio: /status.json, /peers.json, /rounds.json, /metrics, /healthz and a page that shows the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from peer.metrics import metrics_text
from peer.status import PeerStatus

_PAGE = """<!doctype html><meta charset="utf-8"><title>Potluck peer</title>
<style>body{font:15px system-ui;margin:3em auto;max-width:44em}
td{padding:.15em 1em .15em 0;overflow-wrap:anywhere}</style>
<h1>Potluck peer</h1><table id="t"></table><p><a href="/metrics">metrics</a> <a href="/status.json">status.json</a></p>
<script>
async function look() {
  const status = await (await fetch("/status.json")).json();
  const table = document.getElementById("t");
  table.replaceChildren();
  for (const [key, value] of Object.entries(status)) {
    const row = table.insertRow();
    row.insertCell().textContent = key;
    row.insertCell().textContent = typeof value === "object" ? JSON.stringify(value) : value;
  }
}
look(); setInterval(look, 2000);
</script>"""


Rows = Sequence[Mapping[str, object]]


def peer_app(
    read_status: Callable[[], PeerStatus],
    read_peers: Callable[[], Rows] = tuple,
    read_rounds: Callable[[], Rows] = tuple,
) -> Starlette:
    """The web application; what it reads is called at each request and must not block. /peers.json is {"peers": rows}, /rounds.json
    {"rounds": rows}, with the names that the host's /api/status has for them.
    """

    async def page(_request: Request) -> Response:
        return HTMLResponse(_PAGE)

    async def status(_request: Request) -> Response:
        return Response(read_status().model_dump_json(), media_type="application/json")

    async def peers(_request: Request) -> Response:
        return JSONResponse({"peers": list(read_peers())})

    async def rounds(_request: Request) -> Response:
        return JSONResponse({"rounds": list(read_rounds())})

    async def metrics(_request: Request) -> Response:
        return Response(metrics_text(read_status), media_type=CONTENT_TYPE_LATEST)

    async def health(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    handlers = {
        "/": page,
        "/status.json": status,
        "/peers.json": peers,
        "/rounds.json": rounds,
        "/metrics": metrics,
        "/healthz": health,
    }
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])
