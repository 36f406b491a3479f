"""The host's web server, on trio: the status page and its data, metrics, health and checkpoint files.

There are two views. The host's own shows everything. The public one, on its own port, shows the same run without anything about the
host's machine.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from averaging.host.web_files import SAFE_HEADERS, AsciiJson, file_routes
from coordinator.progress.run_events import RunEvent
from coordinator.progress.run_view import Json, now_json, public_json, status_json
from coordinator.scores.score_core import curve_json, num_scores
from coordinator.status.metrics import Moment, render_metrics
from coordinator.status.model_downloads import ModelDownloads
from protocol.errors import PotluckError
from protocol.run.page_section import NO_WORDS, PageSection

WEB_FOLDER: Final = Path(__file__).with_name("web")
PAGE_FILES: Final[Mapping[str, str]] = {
    "/": "index.html",
    "/page.css": "page.css",
    "/page.js": "page.js",
    "/charts.js": "charts.js",
    "/uPlot.js": "uPlot.iife.min.js",
    "/uPlot.css": "uPlot.min.css",
}

LOOK_EVERY_S: Final = 1.0
"""How often a stream sends changes, in seconds: people read no faster."""

MAX_STREAMS: Final = 100
"""Most open streams. Each costs a task that takes a snapshot every second; further pages poll every few seconds instead."""

NUM_EVENTS: Final = 200


@dataclass(frozen=True)
class RunSource:
    """The pages' source of data. Nothing here may block except `verify`, which runs in a thread.

    Attributes:
        snapshot: a snapshot of the run.
        events: the newest events, oldest first, at most the given number.
        verify: recompute the hashes of the checkpoint in this folder; returns one sentence, or raises PotluckError.
        downloads: the newest model's files, for the public view; None if the host gives none.
        page: the host's words about the run.
    """

    snapshot: Callable[[], Moment]
    events: Callable[[int], tuple[RunEvent, ...]]
    verify: Callable[[Path], str]
    downloads: ModelDownloads | None = None
    page: PageSection = NO_WORDS


@dataclass
class _Streams:
    """Number of open streams."""

    number: int = 0


@dataclass(frozen=True)
class _Pages:
    """The answers of one view."""

    source: RunSource
    is_public: bool
    streams: _Streams = field(default_factory=_Streams)
    verifying: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    def shown(self, status: Json, moment: Moment) -> Json:
        """The status with the host's words, the view's name, and what is known of this machine, limited to what the view may show."""
        own: Json = {
            "page": self.source.page.as_json(),
            "view": "public" if self.is_public else "host",
            "energy": moment.energy.json(),
            "gives_model": self.is_public and self.source.downloads is not None,
        }
        push = moment.push.as_json(moment.now_s) if moment.push is not None else None
        status = {**status, "trouble": moment.trouble, "push": push}
        return {**(public_json(status) if self.is_public else status), **own}

    def now(self, moment: Moment) -> Json:
        """One message of a stream."""
        newest = self.source.events(1)
        number = newest[-1].number if newest else 0
        now = now_json(moment.picture, moment.now_s, moment.past, moment.reach.warning)
        return {**self.shown(now, moment), "last_event": number, "num_scores": num_scores(moment.scores)}

    async def status(self, _request: Request) -> Response:
        """The whole status."""
        moment = self.source.snapshot()
        status = status_json(moment.picture, moment.now_s, moment.past, moment.reach.warning)
        tasks = [curve_json(curve) for curve in moment.scores]
        scores = {"tasks": tasks, "num_scores": num_scores(moment.scores)}
        return AsciiJson({**self.shown(status, moment), **scores}, headers=SAFE_HEADERS)

    async def events(self, _request: Request) -> Response:
        """The newest events, oldest first."""
        rows = [
            {"number": e.number, "unix_s": e.unix_s, "kind": e.kind, "text": e.text, "peer": e.peer}
            for e in self.source.events(NUM_EVENTS)
        ]
        return AsciiJson(rows, headers=SAFE_HEADERS)

    async def stream(self, _request: Request) -> Response:
        """Server-sent events: the state of the run, whenever it changes."""
        if self.streams.number >= MAX_STREAMS:
            return PlainTextResponse("too many streams; ask /api/status every few seconds\n", 503, SAFE_HEADERS)
        return EventSourceResponse(self._changes(), headers=SAFE_HEADERS, send_timeout=30.0)

    async def _changes(self) -> AsyncIterator[dict[str, str]]:
        self.streams.number += 1
        try:
            sent = ""
            while True:
                text = json.dumps(self.now(self.source.snapshot()))
                if text != sent:
                    sent = text
                    yield {"event": "now", "data": text}
                await trio.sleep(LOOK_EVERY_S)
        finally:
            self.streams.number -= 1

    async def checkpoint_files(self, request: Request) -> Response:
        """Names and sizes of a checkpoint's files."""
        folder = self._checkpoint(request)
        sizes = None if folder is None else await trio.to_thread.run_sync(_sizes, folder)
        if sizes is None:
            return _missing("checkpoint")
        rows = [{"name": name, "num_bytes": num_bytes} for name, num_bytes in sorted(sizes.items())]
        return AsciiJson(rows, headers=SAFE_HEADERS)

    async def checkpoint_file(self, request: Request) -> Response:
        """One file of a checkpoint."""
        folder, name = self._checkpoint(request), request.path_params["file"]
        sizes = None if folder is None else await trio.to_thread.run_sync(_sizes, folder)
        if folder is None or sizes is None or name not in sizes:
            return _missing("file")
        return FileResponse(folder / name, filename=f"{folder.name}-{name}", headers=SAFE_HEADERS)

    async def verify(self, request: Request) -> Response:
        """Recompute a checkpoint's hashes, one checkpoint at a time."""
        folder = self._checkpoint(request)
        if folder is None:
            return _missing("checkpoint")
        try:
            sentence = await trio.to_thread.run_sync(partial(self.source.verify, folder), limiter=self.verifying)
        except PotluckError as error:
            return AsciiJson({"ok": False, "sentence": error.one_line()}, headers=SAFE_HEADERS)
        return AsciiJson({"ok": True, "sentence": sentence}, headers=SAFE_HEADERS)

    def _checkpoint(self, request: Request) -> Path | None:
        """The folder of a checkpoint. Only names in the ledger have one: a path from outside is compared, never opened."""
        picture, name = self.source.snapshot().picture, request.path_params["name"]
        known = {row.path for row in picture.checkpoints}
        return picture.checkpoint_folder / name if name in known else None

    async def metrics(self, _request: Request) -> Response:
        """Metrics for Prometheus."""
        return Response(render_metrics(self.source.snapshot), media_type=CONTENT_TYPE_LATEST)


def _sizes(folder: Path) -> dict[str, int] | None:
    """Size in bytes of each file in a folder, by name; None if the folder is gone."""
    try:
        return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    except OSError:
        return None


def _missing(what: str) -> Response:
    return PlainTextResponse(f"no such {what}\n", 404, SAFE_HEADERS)


async def _health(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


def status_app(source: RunSource, *, is_public: bool = False) -> Starlette:
    """The web application of one view."""
    pages = _Pages(source, is_public)
    routes = file_routes(WEB_FOLDER, PAGE_FILES)
    routes += [
        Route("/api/status", pages.status),
        Route("/api/events", pages.events),
        Route("/api/stream", pages.stream),
        Route("/healthz", _health),
        # Always ready: pages are served only after peers can be admitted.
        Route("/readyz", _health),
    ]
    if not is_public:
        # Not on the public page: recomputing hashes costs processor time, files cost upload without a limit, and metrics describe
        # the host's machine.
        routes += [
            Route("/api/checkpoints/{name}/files", pages.checkpoint_files),
            Route("/checkpoints/{name}/{file}", pages.checkpoint_file),
            Route("/api/checkpoints/{name}/verify", pages.verify),
            Route("/metrics", pages.metrics),
        ]
    elif source.downloads is not None:
        routes += [
            Route("/api/model", source.downloads.list_files),
            Route("/model/{name}/{file}", source.downloads.give_file),
        ]
    return Starlette(routes=routes)
