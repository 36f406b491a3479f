"""Tests of averaging/host/http_client.py."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from averaging.host.http_client import (
    ADDRESS_LIMIT_BYTES,
    STATUS_ADDRESS_FILE,
    ask_health,
    get_json,
    kept_status_address,
    local_address,
    read_status_address,
)
from protocol.errors import ConfigError, PotluckError, StorageError, UnreachableError


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


@contextmanager
def server(answer: bytes, status: int = 200) -> Iterator[str]:
    """A web server on loopback that gives one answer to everything; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("listening", "asked"),
    [
        ("http://127.0.0.1:7620", "http://127.0.0.1:7620"),
        ("http://0.0.0.0:7620", "http://127.0.0.1:7620"),
        ("http://[::]:7620", "http://[::1]:7620"),
        ("http://[fe80::1]:7620", "http://[fe80::1]:7620"),
        ("http://192.168.1.5:80", "http://192.168.1.5:80"),
    ],
)
def test_server_on_all_addresses_is_asked_on_loopback(listening: str, asked: str) -> None:
    assert local_address(listening) == asked


def test_address_is_there_while_the_server_is_and_gone_afterwards(tmp_path: Path) -> None:
    with kept_status_address(tmp_path, "http://0.0.0.0:7620"):
        assert read_status_address(tmp_path) == "http://127.0.0.1:7620"
        assert [path.name for path in tmp_path.iterdir()] == [STATUS_ADDRESS_FILE]
    assert list(tmp_path.iterdir()) == []


def test_address_left_behind_by_a_killed_process_is_replaced(tmp_path: Path) -> None:
    (tmp_path / STATUS_ADDRESS_FILE).write_text("http://127.0.0.1:1\n")
    with kept_status_address(tmp_path, "http://127.0.0.1:7620"):
        assert read_status_address(tmp_path) == "http://127.0.0.1:7620"


def test_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"), kept_status_address(tmp_path / "none", "http://a:1"):
        pass


def test_daemon_that_answers_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody's; loopback is asked without it
    with server(b"ok\n") as url, kept_status_address(tmp_path, url):
        assert ask_health(tmp_path) == url


def test_no_daemon_is_told_from_one_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="no daemon runs from"):
        ask_health(tmp_path)
    with server(b"ok\n") as url:
        pass
    with kept_status_address(tmp_path, url), pytest.raises(UnreachableError, match="no good answer"):
        ask_health(tmp_path)


@pytest.mark.parametrize(("answer", "status"), [(b"ok\n", 500), (b"ok\n", 404), (b"<html>", 200), (b"", 200)])
def test_wrong_answer_is_not_well(tmp_path: Path, answer: bytes, status: int) -> None:
    with server(answer, status) as url, kept_status_address(tmp_path, url), pytest.raises(UnreachableError):
        ask_health(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"hello",
        b"file:///etc/passwd",
        b"ftp://127.0.0.1:21",
        b"http://127.0.0.1",
        b"http://127.0.0.1:99999",
        b"http://[::1:80",
        b"\xff\xfe",
        b"http://" + b"a" * ADDRESS_LIMIT_BYTES + b":80",
    ],
)
def test_file_that_holds_no_address_is_one_clear_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / STATUS_ADDRESS_FILE).write_bytes(text)
    with pytest.raises(ConfigError, match="holds no address"):
        ask_health(tmp_path)


def test_folder_in_the_place_of_the_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / STATUS_ADDRESS_FILE).mkdir()
    with pytest.raises(PotluckError, match="cannot be read"):
        ask_health(tmp_path)
