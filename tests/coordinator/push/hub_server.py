"""A server on this machine with the calls of a model hub that huggingface_hub makes to write, list, read and remove files."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import unquote, urlsplit

MODEL: Final = "nobody/model"
_API: Final = f"/api/models/{MODEL}"
_COMMIT: Final = "c" * 40


class Hub:
    """One repository: its files by path. `is_closed`: it takes nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.is_closed = False

    def commit(self, lines: bytes) -> None:
        """Carry out a commit: lines of JSON, each a key and a value."""
        for line in map(json.loads, lines.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del self.files[value["path"]]

    def tree(self, folder: str, *, recursive: bool) -> list[Mapping[str, object]] | None:
        """The entries of a folder; None if there is no such folder."""
        prefix = f"{folder}/" if folder else ""
        below = [path for path in self.files if path.startswith(prefix)]
        if folder and not below:
            return None
        parts = [path[len(prefix) :].split("/") for path in below]
        folders = {"/".join(part[:depth]) for part in parts for depth in range(1, len(part))}
        entries = [_entry("directory", prefix + each, 0) for each in sorted(folders)]
        entries += [_entry("file", path, len(self.files[path])) for path in below]
        return [entry for entry in entries if recursive or "/" not in str(entry["path"])[len(prefix) :]]


def _entry(kind: str, path: str, size: int) -> Mapping[str, object]:
    return {"type": kind, "path": path, "size": size, "oid": "0" * 40}


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """A hub with an empty repository, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _hub(self) -> Hub:
        hub = self.server.hub  # type: ignore[attr-defined]
        assert isinstance(hub, Hub)
        return hub

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        if path in (_API, f"{_API}/revision/main"):
            self._answer({"id": MODEL, "sha": _COMMIT, "private": True, "tags": [], "downloads": 0, "likes": 0})
        elif path.startswith(f"{_API}/tree/main"):
            folder = path.removeprefix(f"{_API}/tree/main").strip("/")
            self._answer(self._hub.tree(folder, recursive="recursive=true" in parts.query.lower()), "EntryNotFound")
        elif path.startswith(f"/{MODEL}/resolve/main/"):
            self._give(self._hub.files.get(path.removeprefix(f"/{MODEL}/resolve/main/")))
        else:
            self._answer(None, "RepoNotFound")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._hub.is_closed:
            self._send(403, b'{"error": "Forbidden: verysecret"}')
        elif self.path.startswith(f"{_API}/preupload/main"):
            files = [each["path"] for each in json.loads(body)["files"]]
            self._answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in files]})
        elif self.path.startswith(f"{_API}/commit/main"):
            self._hub.commit(body)
            self._answer({"commitUrl": f"{self._hub.url}/{MODEL}/commit/{_COMMIT}", "commitOid": _COMMIT})
        else:
            self._answer(None, "RepoNotFound")

    def _give(self, data: bytes | None) -> None:
        if data is None:
            self._answer(None, "EntryNotFound")
        else:
            begin, _, stop = self.headers.get("range", f"bytes=0-{len(data)}").removeprefix("bytes=").partition("-")
            self._send(206, data[int(begin) : int(stop or len(data)) + 1])

    def _answer(self, value: object, error: str = "") -> None:
        if value is None:
            self._send(404, json.dumps({"error": error}).encode(), error)
        else:
            self._send(200, json.dumps(value).encode())

    def _send(self, status: int, data: bytes, error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name of http.server
        """Nothing."""
