"""A list of open runs at a web address: GET gives its cards, POST brings one. Nothing that comes from there is trusted."""

from __future__ import annotations

import base64
import json
import urllib.request
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlsplit

from averaging.notices.webhook import post_json
from protocol.errors import RemoteProtocolError, UnreachableError
from protocol.host.run_card import MAX_CARD_BYTES, decode_cards

CARDS_PATH: Final = "/api/cards"
MOST_CARDS: Final = 256
"""Cards of one list."""

WITHIN_S: Final = 10.0
MAX_URL: Final = 500
_MAX_BYTES: Final = 2 * MOST_CARDS * MAX_CARD_BYTES


def unfit_list_url(url: str) -> str:
    """The expected kind of address; empty if it can be that of a list. Cards are signed, so plain http is enough."""
    expected = 'the address of a list, such as "http://example.org:8080"'
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return expected
    is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL
    is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
    return "" if is_plain and is_web and not parts.query and not parts.fragment else expected


def post_card(url: str, card: bytes) -> str:
    """Bring a card to the list at `url`. Blocks, at most some seconds. Returns why it was not taken; empty if it was."""
    return post_json(_cards_url(url), {"card": base64.b64encode(card).decode("ascii")})


def get_cards(url: str) -> list[bytes]:
    """The cards of the list at `url`, unchecked. Blocks, at most some seconds.

    Raises:
        UnreachableError: nobody answers there.
        RemoteProtocolError: no list of runs.
    """
    request = urllib.request.Request(_cards_url(url), headers={"User-Agent": "potluck"})
    try:
        with urllib.request.urlopen(request, timeout=WITHIN_S) as reply:
            raw = reply.read(_MAX_BYTES + 1)
    except HTTPError as error:
        raise UnreachableError(f"{url} answers, and keeps no list of runs", "a host with --keep-list") from error
    except (OSError, HTTPException, ValueError) as error:
        raise UnreachableError(f"no list of runs answers at {url} ({error})", "a host with --keep-list") from error
    if len(raw) > _MAX_BYTES:
        raise RemoteProtocolError("a list of runs that is too long", f"at most {_MAX_BYTES >> 10} KiB")
    try:
        return decode_cards(json.loads(raw), MOST_CARDS)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError("something else than a list of runs", "JSON") from error


def _cards_url(url: str) -> str:
    return url.rstrip("/") + CARDS_PATH
