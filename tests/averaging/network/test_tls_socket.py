from __future__ import annotations

import ssl
from typing import cast

import pytest

from averaging.network.tls_socket import TlsSocket


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
