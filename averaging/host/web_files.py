"""Files of the pages that both daemons serve, and the headers of every response."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class AsciiJson(JSONResponse):
    """JSON in ASCII. Names of files may be no text, which UTF-8 cannot say and escapes can."""

    def render(self, content: object) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


SHARED_FOLDER: Final = Path(__file__).with_name("web")
SHARED_FILES: Final[Mapping[str, str]] = {
    "/base.css": "base.css",
    "/icon.svg": "icon.svg",
    "/words.js": "words.js",
}
"""Files that make the pages of host and peer look alike and format numbers alike."""

_MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

SAFE_HEADERS: Final[Mapping[str, str]] = {
    # names and reasons come from strangers; the pages write them as text, and this is a second protection
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def file_routes(folder: Path, files: Mapping[str, str]) -> list[Route]:
    """A route for each of these files, by path, and for the files that all pages share. They are read once, here."""
    own = [Route(path, _answer(folder / name)) for path, name in files.items()]
    return own + [Route(path, _answer(SHARED_FOLDER / name)) for path, name in SHARED_FILES.items()]


def _answer(file: Path) -> Callable[[Request], Response]:
    content, media_type = file.read_bytes(), _MEDIA_TYPES[file.suffix]

    def answer(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=SAFE_HEADERS)

    return answer
