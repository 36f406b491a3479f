from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from averaging.host.http_get import get_json
from protocol.errors import UnreachableError


@contextmanager
def _answering(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/x"
        thread.join()


def test_json_object_is_read_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with _answering(b'{"a": 1}') as url:
        assert get_json(url) == {"a": 1}


@pytest.mark.parametrize("body", [b"", b"[1]", b"hello", b"\xff\xfe", b"[" * 100_000], ids=range(5))
def test_what_is_no_json_object_is_said(body: bytes) -> None:
    with _answering(body) as url, pytest.raises(UnreachableError, match="at http://127"):
        get_json(url)


def test_server_that_speaks_no_http_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(UnreachableError, match=r"SSH-2\.0"):
            get_json(f"http://127.0.0.1:{server.getsockname()[1]}/x")
        thread.join()


def test_error_page_and_nobody_are_said() -> None:
    with _answering(b"{}", 500) as url, pytest.raises(UnreachableError, match="500"):
        get_json(url)
    with pytest.raises(UnreachableError, match="no answer"):
        get_json("http://127.0.0.1:9/")
