"""The list of open runs that a host may keep at its public page: hosts post their cards, and anybody reads them."""

from __future__ import annotations

import base64
import binascii
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from averaging.host.http import ASKED_WITHIN_S
from averaging.host.web_files import SAFE_HEADERS, AsciiJson
from averaging.open_runs.card_lists import MOST_CARDS
from coordinator.policy.door import address_prefix
from protocol.errors import PotluckError
from protocol.host.run_card import CARD_LIFE_S, MAX_CARD_BYTES, SignedCard, encode_cards, open_card
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId

MOST_OF_PREFIX: Final = 8
"""Cards of one address prefix: a key costs nothing, so one owner could fill the list."""

MAX_BODY_BYTES: Final = 2 * MAX_CARD_BYTES


@dataclass(frozen=True, slots=True)
class CardBook:
    """The cards of a list, one for each host, and where each came from."""

    by_host: Mapping[PeerId, tuple[SignedCard, str]] = field(default_factory=lambda: MappingProxyType({}))

    def at(self, now_unix_s: float) -> CardBook:
        """Without cards that are too old."""
        kept = {h: each for h, each in self.by_host.items() if each[0].made_unix_s + CARD_LIFE_S > now_unix_s}
        return self if len(kept) == len(self.by_host) else CardBook(MappingProxyType(kept))

    def with_card(self, card: SignedCard, prefix: str, now_unix_s: float) -> CardBook | None:
        """With this card, which replaces an older one of its host; None if there is no place for it."""
        book = self.at(now_unix_s)
        before = book.by_host.get(card.host)
        if before is not None and before[0].made_unix_s > card.made_unix_s:
            return book
        of_prefix = Counter(place for host, (_, place) in book.by_host.items() if host != card.host)
        is_full = before is None and len(book.by_host) >= MOST_CARDS
        if is_full or of_prefix[prefix] >= MOST_OF_PREFIX:
            return None
        return CardBook(MappingProxyType({**book.by_host, card.host: (card, prefix)}))


class CardList:
    """The routes of one list."""

    def __init__(self, unix_s: Callable[[], float]) -> None:
        self._unix_s = unix_s
        self._book = CardBook()
        self._verifier = Ed25519Verifier()

    async def answer(self, request: Request) -> Response:
        """GET: all cards. POST: take one."""
        if request.method == "POST":
            return await self._take(request)
        self._book = self._book.at(self._unix_s())
        cards = sorted(self._book.by_host.items())
        return AsciiJson(encode_cards(card.raw for _, (card, _) in cards), headers=dict(SAFE_HEADERS))

    async def _take(self, request: Request) -> Response:
        body = bytearray()
        with trio.move_on_after(ASKED_WITHIN_S) as reading:
            async with aclosing(request.stream()) as parts:
                async for part in parts:
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        return _refused("a card that is too long", 413)
        if reading.cancelled_caught:
            return _refused("a card that came too slowly", 408)
        try:
            values = json.loads(bytes(body))
            raw = base64.b64decode(str(values["card"]), validate=True)
            card = open_card(raw, verifier=self._verifier, now_unix_s=self._unix_s())
        except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
            return _refused("no card", 400)
        except PotluckError as error:
            return _refused(error.one_line(), 400)
        prefix = address_prefix(request.client.host if request.client is not None else "")
        book = self._book.with_card(card, prefix, self._unix_s())
        if book is None:
            return _refused("the list is full", 429)
        self._book = book
        return PlainTextResponse("listed\n", headers=SAFE_HEADERS)


def _refused(why: str, status: int) -> Response:
    return PlainTextResponse(f"{why}\n", status, SAFE_HEADERS)
