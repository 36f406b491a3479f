from __future__ import annotations

import socket
import ssl
from typing import cast

import pytest

from averaging.network.tls_socket import MAX_RECORD_BYTES, MOST_WAKE_BYTES, SMALLEST_WAKE_BYTES, TlsSocket


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
