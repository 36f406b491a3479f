"""Asking a daemon of this machine: one JSON object over HTTP, with a deadline and a bound. Imports nothing heavy."""

from __future__ import annotations

import json
import urllib.request
from http.client import HTTPException
from typing import Final

from protocol.errors import UnreachableError

_WITHIN_S: Final = 5.0
"""A daemon on this machine answers in milliseconds; one that is stopped in a debugger should not hold up a command for long."""

_MAX_BYTES: Final = 64 << 20
"""A status of a long run with many peers is some megabytes; more than this is not one."""

_DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Past any proxy of the environment: it knows nothing of this machine's own ports."""


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
