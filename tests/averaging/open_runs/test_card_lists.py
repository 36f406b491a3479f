"""Addresses of lists, and answers that are none. Real lists: tests/coordinator/status/test_card_list.py."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from averaging.open_runs import card_lists
from averaging.open_runs.card_lists import get_cards, unfit_list_url
from protocol.errors import RemoteProtocolError, UnreachableError


@pytest.mark.parametrize("url", ["http://192.0.2.7:8080", "https://runs.example.org", "http://[2001:db8::1]:80/list"])
def test_the_address_of_a_list_may_be_plain_http(url: str) -> None:
    assert unfit_list_url(url) == ""


@pytest.mark.parametrize(
    "url",
    ["", "runs.example.org", "file:///etc/passwd", "http://", "http://a:b@example.org", "http://example.org/?x=1",
     "http://example.org:99999", "http://exam ple.org", "http://example.org/" + "x" * 600],
)  # fmt: skip
def test_something_else_is_no_address_of_a_list(url: str) -> None:
    assert "http://example.org:8080" in unfit_list_url(url)


@contextmanager
def _answering(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"cards": 1}', b'{"cards": ["*"]}', b"[" * 100_000])
def test_an_answer_that_is_no_list_is_refused(body: bytes) -> None:
    with _answering(body) as url, pytest.raises(RemoteProtocolError):
        get_cards(url)


def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_lists, "_MAX_BYTES", 1000)
    with _answering(b"x" * 2000) as url, pytest.raises(RemoteProtocolError, match="too long"):
        get_cards(url)


def test_a_server_without_a_list_is_told_from_one_that_does_not_answer() -> None:
    with (
        _answering(b"", status=404) as url,
        pytest.raises(
            UnreachableError, match=f"{url} answers, and keeps no list of runs; expected a host with --keep-list"
        ),
    ):
        get_cards(url)


def test_a_list_that_does_not_answer_is_named() -> None:
    with _answering(b"{}") as url:
        pass
    with pytest.raises(UnreachableError, match="no list of runs answers at"):
        get_cards(url)
