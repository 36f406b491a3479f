"""The list of open runs that a host keeps: what it takes, what it gives, and that nobody fills it."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message

from averaging.host.http import ASKED_WITHIN_S, bind_http, serve_http
from averaging.open_runs.card_lists import CARDS_PATH, MOST_CARDS, get_cards, post_card
from coordinator.status.card_list import MAX_BODY_BYTES, MOST_OF_PREFIX, CardBook, CardList
from protocol.host.run_card import CARD_LIFE_S, SignedCard, open_card, seal_card
from protocol.identity.identity import Identity
from protocol.ids import PeerId
from tests.protocol.host.test_run_card import CARD, HOST, NOW, RUN, VERIFIER


def _card(host: Identity = HOST, made_unix_s: float = NOW) -> SignedCard:
    return open_card(seal_card(host, RUN, CARD, made_unix_s), verifier=VERIFIER, now_unix_s=made_unix_s)


def _hosts(count: int) -> list[Identity]:
    return [Identity((number + 1).to_bytes(32, "big")) for number in range(count)]


@asynccontextmanager
async def _serving(unix_s: Callable[[], float] = lambda: NOW) -> AsyncIterator[str]:
    listener = bind_http("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = Starlette(routes=[Route(CARDS_PATH, CardList(unix_s).answer, methods=["GET", "POST"])])
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listener, app)
        with trio.fail_after(120):
            yield url
        nursery.cancel_scope.cancel()


async def _post(url: str, raw: bytes) -> str:
    return await trio.to_thread.run_sync(post_card, url, raw)


async def _get(url: str) -> list[bytes]:
    return await trio.to_thread.run_sync(get_cards, url)


def _status(url: str, body: bytes) -> int:
    try:
        with urllib.request.urlopen(url + CARDS_PATH, data=body, timeout=60) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


async def test_a_posted_card_is_given_to_anybody_until_it_is_old() -> None:
    now = [NOW]
    async with _serving(lambda: now[0]) as url:
        raw = seal_card(HOST, RUN, CARD, NOW)
        assert await _post(url, raw) == ""
        assert await _get(url + "/") == [raw]
        now[0] += CARD_LIFE_S
        assert await _get(url) == []


async def test_what_is_no_card_is_refused_and_not_listed() -> None:
    bodies = {
        b"": 400,
        b"junk": 400,
        b"[]": 400,
        b'{"card": 7}': 400,
        json.dumps({"card": base64.b64encode(b"x" * 300).decode()}).encode(): 400,
        b"x" * (MAX_BODY_BYTES + 1): 413,
    }
    async with _serving() as url:
        found = {body: await trio.to_thread.run_sync(_status, url, body) for body in bodies}
        assert found == bodies
        old = seal_card(HOST, RUN, CARD, NOW - 2 * CARD_LIFE_S)
        assert await _post(url, old) == "it answered with status 400"
        assert await _get(url) == []


def test_a_host_has_one_card_and_the_newest_stands() -> None:
    book: CardBook | None = CardBook()
    for made_unix_s in (NOW, NOW + 60, NOW + 30):
        assert book is not None
        book = book.with_card(_card(made_unix_s=made_unix_s), "here", NOW + 60)
    assert book is not None
    assert [card.made_unix_s for card, _ in book.by_host.values()] == [int(NOW) + 60]


def test_one_owner_cannot_fill_the_list_and_nobody_makes_it_grow_for_ever() -> None:
    book, hosts = CardBook(), _hosts(MOST_CARDS + 1)
    for host in hosts[: MOST_OF_PREFIX + 5]:
        book = book.with_card(_card(host), "one", NOW) or book
    assert len(book.by_host) == MOST_OF_PREFIX
    for number, host in enumerate(hosts):
        book = book.with_card(_card(host), f"prefix {number}", NOW) or book
    assert len(book.by_host) == MOST_CARDS
    known = PeerId(hosts[0].peer_id)
    assert book.with_card(_card(hosts[0], NOW + 1), "prefix 0", NOW + 1) is not None
    assert known in book.by_host
    assert book.at(NOW + CARD_LIFE_S).by_host == {}


async def test_a_card_whose_bytes_do_not_come_is_refused_and_holds_no_place(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def never() -> Message:
        await trio.sleep_forever()
        raise AssertionError

    scope = {"type": "http", "method": "POST", "headers": [], "path": CARDS_PATH, "query_string": b"", "client": None}
    reply = await CardList(lambda: NOW).answer(Request(scope, never))
    assert reply.status_code == 408
    assert trio.current_time() <= 2 * ASKED_WITHIN_S
