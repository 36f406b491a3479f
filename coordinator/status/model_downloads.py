"""Downloads of the run's newest model on the public page: the files of an export, which other programs load.

The export is made when somebody asks for it, once for each checkpoint, and replaces the one before. At most a few downloads run at
a time, so that strangers cannot take the host's upload from its peers.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from averaging.host.web_files import SAFE_HEADERS
from protocol.errors import PotluckError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_log = structlog.get_logger()

EXPORT_FOLDER: Final = "public_model"
"""In the host's folder: the newest export."""

Export = Callable[[Path, Path], object]
"""(checkpoint, target) -> anything: writes the model to a new folder, or raises PotluckError. Blocks."""


class ModelDownloads:
    """The newest model's files. `newest` returns the newest checkpoint's folder, and `most` bounds the downloads at a time."""

    def __init__(self, folder: Path, newest: Callable[[], Path | None], export: Export, most: int) -> None:
        self._folder = folder
        self._newest = newest
        self._export = export
        self._most = most
        self._running = 0
        self._making = trio.Lock()
        self._refused = ""
        """Name of the last checkpoint that could not be exported. It is not tried again."""

    async def list_files(self, _request: Request) -> Response:
        """The checkpoint's name, and names and sizes of the files; no files if there is no model to give."""
        made = await self._made()
        files = {} if made is None else await trio.to_thread.run_sync(_sizes, made)
        rows = [{"name": name, "num_bytes": num_bytes} for name, num_bytes in sorted(files.items())]
        return JSONResponse({"name": made.name if made is not None else "", "files": rows}, headers=SAFE_HEADERS)

    async def give_file(self, request: Request) -> Response:
        """One file of the newest model. A path from outside is compared with the names there, never opened."""
        made, name, file = await self._made(), request.path_params["name"], request.path_params["file"]
        if made is None or made.name != name or file not in await trio.to_thread.run_sync(_sizes, made):
            return PlainTextResponse("no such file\n", 404, SAFE_HEADERS)
        return _CappedFile(self, made / file, f"{name}-{file}")

    async def _made(self) -> Path | None:
        """The folder of the newest model's export, which is made now if it is not there; None without a model."""
        checkpoint = self._newest()
        if checkpoint is None or checkpoint.name == self._refused:
            return None
        target = self._folder / checkpoint.name
        async with self._making:
            if not target.exists():
                try:
                    await trio.to_thread.run_sync(partial(self._make, checkpoint, target))
                except PotluckError as error:
                    self._refused = checkpoint.name
                    _log.warning("model_not_exported", checkpoint=checkpoint.name, reason=error.one_line())
                    return None
        return target

    def _make(self, checkpoint: Path, target: Path) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._export(checkpoint, target)

    def take(self) -> bool:
        """Begin a download; False if too many run. A caller that began one calls `give_back`."""
        if self._running >= self._most:
            return False
        self._running += 1
        return True

    def give_back(self) -> None:
        """End a download."""
        self._running -= 1


def _sizes(folder: Path) -> Mapping[str, int]:
    try:
        return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    except OSError:
        return {}


class _CappedFile(FileResponse):
    """A file, sent only while few others are; ranges let a download go on where it broke off."""

    def __init__(self, downloads: ModelDownloads, path: Path, filename: str) -> None:
        super().__init__(path, filename=filename, headers=SAFE_HEADERS)
        self._downloads = downloads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._downloads.take():
            refusal = PlainTextResponse("too many downloads at once; try again later\n", 503, SAFE_HEADERS)
            await refusal(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._downloads.give_back()
