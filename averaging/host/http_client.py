"""Reads the status of a daemon on this machine over HTTP, with a deadline and a bound. Imports nothing heavy.

A running daemon keeps the address of its web server in its state folder, where other commands find it.
"""

from __future__ import annotations

import json
import urllib.request
from contextlib import AbstractContextManager
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from averaging.system.kept_file import kept_file
from protocol.errors import ConfigError, StorageError, UnreachableError

_WITHIN_S: Final = 5.0
"""A daemon on this machine answers in milliseconds; one that is stopped in a debugger must not delay a command for long."""

_MAX_BYTES: Final = 64 << 20
"""The status of a long run with many peers has some megabytes; a longer answer is no status."""

_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Ignores any proxy of the environment, which cannot reach this machine's own ports."""


def get_json(url: str) -> dict[str, object]:
    """The JSON object at `url`. Blocks, at most some seconds.

    Raises:
        UnreachableError: nobody answers there, or something that is no JSON object.
    """
    try:
        with _DIRECT.open(url, timeout=_WITHIN_S) as reply:
            raw = reply.read(_MAX_BYTES + 1)
        found = json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except (OSError, HTTPException, ValueError, RecursionError) as error:
        raise UnreachableError(f"no answer at {url} ({error})", "a running daemon") from error
    if not isinstance(found, dict):
        raise UnreachableError(f"something else answers at {url}", "a running daemon")
    return found


MAX_PAGES: Final = 1100
"""Pages of the largest run's peers; a daemon that names more is none."""


def get_rows(url: str, what: str) -> list[dict[str, object]]:
    """All "peers" or "rounds" of the host at `url`, of all its pages; the oldest round first. Blocks, at most some seconds a page.

    Raises:
        UnreachableError: as `get_json`; also if there are fewer pages now than a moment ago.
    """
    pages, num_pages = list[list[dict[str, object]]](), 1
    while len(pages) < min(num_pages, MAX_PAGES):
        found = get_json(f"{url}/api/{what}?page={len(pages)}")
        rows, told = found.get(what), found.get("num_pages")
        pages.append([row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else [])
        num_pages = told if isinstance(told, int) else 1
    return [row for page in (reversed(pages) if what == "rounds" else pages) for row in page]


STATUS_ADDRESS_FILE: Final = "status_address"
"""File in the state folder of a running peer or host."""

ADDRESS_LIMIT_BYTES: Final = 300
"""A host name has at most 253 characters."""

HEALTH_WITHIN_S: Final = 4.0
"""A healthy daemon answers in milliseconds. Below the 5 s after which the container's check is killed."""

_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def local_address(url: str) -> str:
    """The URL at which this machine reaches a server that listens on `url`: loopback, if it listens on all addresses."""
    parts = urlsplit(url)
    host = _ANY.get(parts.hostname or "", parts.hostname or "")
    netloc = f"[{host}]" if ":" in host else host
    return f"http://{netloc}:{parts.port}"


def kept_status_address(folder: Path, url: str) -> AbstractContextManager[None]:
    """Keep the address in `folder` while the server listens. A killed process leaves it behind, and nobody answers there.

    Raises:
        StorageError: it cannot be written.
    """
    return kept_file(folder / STATUS_ADDRESS_FILE, local_address(url) + "\n")


def read_status_address(folder: Path) -> str:
    """The address that a daemon keeps in `folder`.

    Raises:
        UnreachableError: no daemon runs from there.
        ConfigError: the file was not written by a daemon.
        StorageError: it cannot be read.
    """
    path = folder / STATUS_ADDRESS_FILE
    try:
        with path.open("rb") as file:
            text = file.read(ADDRESS_LIMIT_BYTES + 1).decode("ascii").strip()
        parts = urlsplit(text)
        is_address = len(text) <= ADDRESS_LIMIT_BYTES and parts.scheme == "http" and parts.hostname and parts.port
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnreachableError(
            f"no daemon runs from {folder}", "the state folder of a running peer or host", "name it with --state-dir"
        ) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror})", "a readable state folder") from error
    except ValueError:
        is_address = None
    if not is_address:
        raise ConfigError(f"{path} holds no address", "http://address:port", "restart the daemon, which rewrites it")
    return text


def ask_health(folder: Path, within_s: float = HEALTH_WITHIN_S) -> str:
    """Ask the daemon whose state is in `folder` for its health; returns its address. Waiting for peers counts as healthy.

    Raises:
        UnreachableError: it does not run, or it is stuck; no good answer within `within_s` seconds.
        ConfigError, StorageError: as `read_status_address`.
    """
    url = read_status_address(folder)
    # ignore a proxy of the environment: it would look for 127.0.0.1 on another machine
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/healthz", timeout=within_s) as reply:
            text = reply.read(16)
    except (OSError, HTTPException) as error:
        raise UnreachableError(
            f"no good answer from {url} ({error})", f"one within {within_s:g} s", "restart the daemon if it stays so"
        ) from error
    if text != b"ok\n":
        raise UnreachableError(f"something else than Potluck answers at {url}", "a running daemon", "start it again")
    return url
