"""The host's web server, on trio: the status page and its data, metrics, health and checkpoint files.

There are two views. The host's own shows everything. The public one, on its own port, shows the same run without anything about the
host's machine.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

import trio
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from averaging.host.web_files import SAFE_HEADERS, AsciiJson, file_routes
from averaging.open_runs.card_lists import CARDS_PATH
from coordinator.progress.run_events import RunEvent
from coordinator.scores.score_core import curve_json, num_scores
from coordinator.status.card_list import CardList
from coordinator.status.event_stream import STILL_HERE, EventStream, event_of
from coordinator.status.metrics.metrics_text import render_metrics
from coordinator.status.metrics.moment import Moment
from coordinator.status.model_downloads import ModelDownloads
from coordinator.status.row_pages import ORDERS, PeerQuery, page_number, peer_page, round_page
from coordinator.status.run_json import PEERS_A_PAGE, Json, now_json, public_json, status_json
from protocol.errors import PotluckError, RemoteProtocolError
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
STILL_HERE_EVERY_S: Final = 15.0
"""How often a stream sends changes, in seconds: people read no faster."""

MAX_STREAMS: Final = 100
"""Most open streams. All get the same text, made once a second; further pages poll every few seconds instead."""

MAX_KEPT: Final = 32
"""Queries for pages of peers and rounds whose answers are kept for a second: most look at the first page."""

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
        cards: the list of open runs that the host keeps; None if it keeps none.
    """

    snapshot: Callable[[], Moment]
    events: Callable[[int], tuple[RunEvent, ...]]
    verify: Callable[[Path], str]
    downloads: ModelDownloads | None = None
    page: PageSection = NO_WORDS
    cards: CardList | None = None


@dataclass
class _Streams:
    """Number of open streams."""

    number: int = 0


@dataclass
class _Kept:
    """Bytes that are made anew at most once in LOOK_EVERY_S, however many ask for them."""

    content: bytes = b""
    made_s: float = -inf

    def newest(self, make: Callable[[], bytes]) -> bytes:
        """The bytes, made by `make` if they are too old."""
        now_s = trio.current_time()
        if now_s - self.made_s >= LOOK_EVERY_S:
            self.content, self.made_s = make(), now_s
        return self.content


@dataclass
class _KeptPages:
    """The newest answers to MAX_KEPT queries, each made anew at most once in LOOK_EVERY_S."""

    answers: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)

    def newest(self, query: str, make: Callable[[], Json]) -> Response:
        """The answer to a query, made by `make`. One that cannot be answered is refused in a line."""
        kept = self.answers.setdefault(query, _Kept())
        self.answers.move_to_end(query)
        if len(self.answers) > MAX_KEPT:
            self.answers.popitem(last=False)
        try:
            content = kept.newest(lambda: bytes(AsciiJson(make()).body))
        except RemoteProtocolError as error:
            return PlainTextResponse(f"{error.found}; expected {error.expected}\n", 400, SAFE_HEADERS)
        return Response(content, media_type="application/json", headers=SAFE_HEADERS)


@dataclass(frozen=True)
class _Pages:
    """The answers of one view."""

    source: RunSource
    is_public: bool
    streams: _Streams = field(default_factory=_Streams)
    kept_now: _Kept = field(default_factory=_Kept)
    kept_status: _Kept = field(default_factory=_Kept)
    kept_pages: _KeptPages = field(default_factory=_KeptPages)
    verifying: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    def shown(self, status: Json, moment: Moment) -> Json:
        """The status with the host's words, the view's name, and what is known of this machine, limited to what the view may show."""
        own: Json = {
            "page": self.source.page.as_json(),
            "view": "public" if self.is_public else "host",
            "energy": moment.energy.json(),
            "leaders": list(moment.leaders),
            "gives_model": self.is_public and self.source.downloads is not None,
        }
        push = moment.push.as_json(moment.now_s) if moment.push is not None else None
        status = {**status, "trouble": moment.trouble, "push": push}
        return {**(public_json(status) if self.is_public else status), **own}

    def _now(self) -> bytes:
        """One message of a stream. Peers of more than one page are left out: a page asks for those that it shows."""
        moment, newest = self.source.snapshot(), self.source.events(1)
        now = now_json(moment.picture, moment.now_s, moment.past, moment.reach.warning)
        if len(moment.picture.peers) > PEERS_A_PAGE:
            now = {**now, "peers": []}
        more = {"last_event": newest[-1].number if newest else 0, "num_scores": num_scores(moment.scores)}
        return event_of("now", json.dumps({**self.shown(now, moment), **more}))

    async def status(self, _request: Request) -> Response:
        """The whole status, with the first page of the peers and of the rounds."""
        content = self.kept_status.newest(self._status)
        return Response(content, media_type="application/json", headers=SAFE_HEADERS)

    def _status(self) -> bytes:
        moment = self.source.snapshot()
        status = status_json(moment.picture, moment.now_s, moment.past, moment.reach.warning)
        tasks = [curve_json(curve) for curve in moment.scores]
        scores = {"tasks": tasks, "num_scores": num_scores(moment.scores)}
        return bytes(AsciiJson({**self.shown(status, moment), **scores}).body)

    async def peers(self, request: Request) -> Response:
        """One page of the peers: ?page=0&order=name&search=."""
        asked = request.query_params

        def found() -> Json:
            moment, page = self.source.snapshot(), page_number(asked.get("page", "0"))
            query = PeerQuery(page, asked.get("order", ORDERS[0]), asked.get("search", ""))
            shown = peer_page(moment.picture, moment.now_s, moment.past, query)
            return public_json(shown) if self.is_public else shown

        return self.kept_pages.newest(f"peers?{asked}", found)

    async def rounds(self, request: Request) -> Response:
        """One page of the newest rounds: ?page=0."""
        page = request.query_params.get("page", "0")
        return self.kept_pages.newest(
            f"rounds?{page}", lambda: round_page(self.source.snapshot().picture, page_number(page))
        )

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
        return EventStream(self._changes())

    async def _changes(self) -> AsyncGenerator[bytes]:
        self.streams.number += 1
        try:
            sent, sent_at_s = b"", -math.inf
            while True:
                message, now_s = self.kept_now.newest(self._now), trio.current_time()
                if message != sent or now_s - sent_at_s >= STILL_HERE_EVERY_S:
                    yield STILL_HERE if message == sent else message
                    sent, sent_at_s = message, now_s
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
        Route("/api/peers", pages.peers),
        Route("/api/rounds", pages.rounds),
        Route("/api/events", pages.events),
        Route("/api/stream", pages.stream),
        Route("/healthz", _health),
        # Always ready: pages are served only after peers can be admitted.
        Route("/readyz", _health),
    ]
    if source.cards is not None:
        routes.append(Route(CARDS_PATH, source.cards.answer, methods=["GET", "POST"]))
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
