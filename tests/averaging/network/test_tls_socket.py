from __future__ import annotations

import socket
import ssl
import struct
from typing import cast

import pytest

from averaging.network.tls_socket import (
    MAX_RECORD_BYTES,
    MOST_WAKE_BYTES,
    SENT_LATELY_MS,
    SMALLEST_WAKE_BYTES,
    TCP_INFO_BYTES,
    TlsSocket,
)


class _Connection:
    """Moves three bytes, and then wants the socket for the other direction."""

    def __init__(self, wanted: type[ssl.SSLError]) -> None:
        self._wanted = wanted
        self._has_moved = False

    def _moved(self) -> int:
        if self._has_moved:
            raise self._wanted
        self._has_moved = True
        return 3

    def send(self, _data: memoryview) -> int:
        return self._moved()

    def recv_into(self, _buffer: memoryview) -> int:
        return self._moved()


@pytest.mark.parametrize("wanted", [ssl.SSLWantReadError, ssl.SSLWantWriteError])
async def test_what_was_moved_is_told_before_the_socket_is_waited_for_again(wanted: type[ssl.SSLError]) -> None:
    """Who is cancelled in a wait would else send it twice, or lose it."""
    sending, receiving = (TlsSocket(cast("ssl.SSLSocket", _Connection(wanted))) for _ in range(2))
    assert await sending.send(memoryview(bytes(10)), 0) == 3
    assert await receiving.receive_into(memoryview(bytearray(10)), 0) == 3


class _Kernel:
    """Has nothing to read, and notes at how many bytes it is asked to say so when there is."""

    def __init__(self) -> None:
        self.wakes_at: list[int] = []

    def recv_into(self, _buffer: memoryview) -> int:
        raise ssl.SSLWantReadError

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.wakes_at.append(value)

    def fileno(self) -> int:
        return -1


@pytest.mark.parametrize(
    ("missing", "wakes_at"),
    [
        (1_000_000, [MOST_WAKE_BYTES]),
        (40_000, [40_000 - MAX_RECORD_BYTES]),
        (MAX_RECORD_BYTES + SMALLEST_WAKE_BYTES - 1, []),
        (4, []),
    ],
)
async def test_a_reader_is_woken_for_a_good_part_of_what_is_missing_never_for_more_than_the_kernel_will_get(
    missing: int, wakes_at: list[int]
) -> None:
    """A whole record less one byte may be in OpenSSL's hands already: waiting for those in the kernel would be for ever."""
    kernel = _Kernel()
    reading = TlsSocket(cast("ssl.SSLSocket", kernel))
    with pytest.raises(ValueError, match="descriptor"):  # there is no socket to wait for
        await reading.receive_into(memoryview(bytearray(missing)), 0)
    assert kernel.wakes_at == wakes_at


def _told(sent_ago_ms: int, rtt_us: int, least_us: int, num_bytes: int = TCP_INFO_BYTES) -> TlsSocket:
    """A connection whose kernel tells these of it."""
    info = bytearray(TCP_INFO_BYTES)
    for offset, value in ((44, sent_ago_ms), (68, rtt_us), (148, least_us)):
        struct.pack_into("I", info, offset, value)

    class Told:
        def getsockopt(self, level: int, option: int, room: int) -> bytes:
            assert (level, option, room) == (socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            return bytes(info[:num_bytes])

    return TlsSocket(cast("ssl.SSLSocket", Told()))


def test_how_long_packets_wait_is_what_they_take_over_the_best_of_those_sent_lately() -> None:
    assert _told(10, 1_520_000, 20_000).queue_s() == pytest.approx(1.5)
    assert _told(10, 20_000, 20_000).queue_s() == 0.0
    assert _told(SENT_LATELY_MS + 1, 1_520_000, 20_000).queue_s() is None
    assert _told(10, 1_520_000, 20_000, num_bytes=104).queue_s() is None, "a kernel that tells less"


def test_this_kernel_tells_it_of_a_connection_that_has_sent_something_and_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as near, server.accept()[0] as far:
            near.sendall(bytes(1000))
            far.recv(1000)
            connection = TlsSocket(cast("ssl.SSLSocket", near))
            wait_s = connection.queue_s()
            assert wait_s is not None
            assert 0.0 <= wait_s < 1.0
        assert connection.queue_s() is None
