"""Posts JSON to a webhook. Its address is a secret: whoever knows it can write there, so only its scheme and host are shown."""

from __future__ import annotations

import ipaddress
import json
import urllib.request
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException
from typing import IO, Final
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, urlsplit

WITHIN_S: Final = 10.0
"""A notice must be taken in this time."""

MAX_URL: Final = 2000
_READ_BYTES: Final = 1024


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could lead to another machine, or to one of this network."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """No new request."""


_OPENER: Final = urllib.request.build_opener(_NoRedirect)
_DIRECT: Final = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
"""For this machine itself, which no proxy of the environment can reach."""


def unfit_url(url: str) -> str:
    """The expected kind of address; empty if notices can be posted to `url`."""
    expected = 'an address such as "https://example.org/hook", or http on this machine'
    parts = _parts(url)
    if parts is None or len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        return expected
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or ""))
    return "" if is_safe and parts.hostname and parts.username is None else expected


def shown_url(url: str) -> str:
    """The scheme and host of an address, without its path, name or password; empty for none."""
    parts = _parts(url)
    if not url or parts is None or not parts.hostname:
        return "[hidden]" if url else ""
    return f"{parts.scheme}://{parts.hostname}"


def post_json(url: str, body: Mapping[str, object]) -> str:
    """Post one object. Blocks, with `WITHIN_S` for each step. Returns why it was not taken, without the address; empty if it was."""
    data = json.dumps(dict(body)).encode("ascii")
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", "User-Agent": "potluck"})
    opener = _DIRECT if _is_loopback(urlsplit(url).hostname or "") else _OPENER
    try:
        with opener.open(request, timeout=WITHIN_S) as reply:
            reply.read(_READ_BYTES)
    except HTTPError as error:
        error.close()
        return f"it answered with status {error.code}"
    except URLError as error:
        return f"it does not answer ({getattr(error.reason, 'strerror', None) or type(error.reason).__name__})"
    except (OSError, HTTPException, ValueError) as error:  # a ValueError: a host name that cannot be encoded
        return f"it does not answer as a web server does ({type(error).__name__})"
    return ""


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port
    except ValueError:
        return None
    return parts


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
