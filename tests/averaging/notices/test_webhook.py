"""Posting to a webhook: a server on this machine's loopback."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from averaging.notices.webhook import post_json, shown_url, unfit_url

SECRET = "c2VjcmV0LXBhdGg"


class Hook(BaseHTTPRequestHandler):
    """Takes every notice, and answers with the status that the path ends with."""

    taken: list[tuple[str, object]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.taken.append((self.headers["content-type"], body))  # type: ignore[attr-defined]
        status = int(self.path.rsplit("/", 1)[1])
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere/200")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def hook() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.taken = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _post(hook: HTTPServer, status: int) -> tuple[str, list[tuple[str, object]]]:
    url = f"http://127.0.0.1:{hook.server_port}/{SECRET}/{status}"
    return post_json(url, {"event": "run_complete", "text": "the end \u2014 done"}), hook.taken  # type: ignore[attr-defined]


def test_a_notice_is_posted_as_json_whatever_proxy_is_set(hook: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    reason, taken = _post(hook, 204)
    assert reason == ""
    assert taken == [("application/json", {"event": "run_complete", "text": "the end \u2014 done"})]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_refusal_and_a_redirect_are_reasons_without_the_address(hook: HTTPServer, status: int) -> None:
    reason, taken = _post(hook, status)
    assert reason == f"it answered with status {status}"
    assert len(taken) == 1


def test_nobody_at_the_address_is_a_reason_without_the_address(hook: HTTPServer) -> None:
    hook.server_close()
    with socket.socket() as silent:  # nobody listens there, and nobody else can take the port meanwhile
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert post_json(f"http://127.0.0.1:{port}/{SECRET}", {}) == "it does not answer (Connection refused)"


@pytest.mark.parametrize(
    "url",
    ["https://hooks.example.org/a/b?c=d", "http://127.0.0.1:8080/hook", "http://localhost/x", "http://[::1]:80/x"],
)
def test_https_and_this_machine_fit(url: str) -> None:
    assert unfit_url(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "http://127.0.0.1.example.org/x",
        "https://",
        "https://me:word@example.org",
        "https://example.org/a b",
        "https://example.org/\u00e4",
        "https://example.org:port",
        "https://[x",
        "file:///etc/passwd",
        "ftp://127.0.0.1/x",
        "hook",
    ],
)
def test_every_other_address_is_unfit(url: str) -> None:
    assert "https" in unfit_url(url)


def test_only_scheme_and_host_of_an_address_are_shown() -> None:
    assert shown_url(f"https://hooks.example.org:8443/{SECRET}?{SECRET}") == "https://hooks.example.org"
    assert shown_url(SECRET) == shown_url(f"https://[{SECRET}") == "[hidden]"
    assert shown_url("") == ""
