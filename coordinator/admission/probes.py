"""The coordinator's part of `potluck doctor`: connect back to a caller, and move bytes for it to time.

It connects only to the address that the call came from, to one port a call, and sends nothing there. It reveals only whether the
caller's own nonce was read, and answers "no" always after the same time. So it is no use as an amplifier or a port scanner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from coordinator.admission.probe_core import CallLimit, Turns
from protocol.errors import RemoteProtocolError, TemporaryError
from protocol.host.calls import (
    DIAL_BACK_NONCE_BYTES,
    DIAL_BACK_WITHIN_S,
    MAX_PROBE_DOWN_BYTES,
    MAX_PROBE_UP_BYTES,
)

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock

MAX_AT_ONCE: Final = 8
"""Most connections in progress for all callers together. Each ends within seconds."""


class Probes:
    """The limits in force and the connections in progress."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit = CallLimit()
        self._turns = Turns()
        self._under_way = 0

    async def is_reached(self, host: str, port: int, nonce: bytes) -> bool:
        """Whether a service at this port of the caller's own address sends the nonce within DIAL_BACK_WITHIN_S.

        Raises:
            RemoteProtocolError: invalid port or nonce, or a caller without an address.
            TemporaryError: too many checks of this caller, or too many at once.
        """
        if not (host and 0 < port <= 65535 and len(nonce) == DIAL_BACK_NONCE_BYTES):
            raise RemoteProtocolError(
                f"port {port} and a nonce of {len(nonce)} bytes", f"a port, and {DIAL_BACK_NONCE_BYTES} bytes"
            )
        if self._under_way >= MAX_AT_ONCE:
            raise TemporaryError(f"{MAX_AT_ONCE} checks are under way", "fewer", "try again in a few seconds")
        self._limit.take(host, self._clock.monotonic_s())
        self._under_way += 1
        try:
            with trio.move_on_after(DIAL_BACK_WITHIN_S):
                if await _hears(host, port, nonce):
                    return True
                # A quick "no" would tell a closed port from a silent one.
                await trio.sleep_forever()
            return False
        finally:
            self._under_way -= 1

    def pass_bytes(self, host: str, padding: bytes, wanted_bytes: int) -> bytes:
        """The padding of the reply, if the caller's limits allow it.

        Raises:
            RemoteProtocolError: more bytes than one call may carry.
            TemporaryError: it is not the caller's turn.
        """
        if not host or wanted_bytes > MAX_PROBE_DOWN_BYTES or len(padding) > MAX_PROBE_UP_BYTES:
            raise RemoteProtocolError(f"{len(padding)} bytes up and {wanted_bytes} down", "a bounded check")
        self._turns.take(host, len(padding) + wanted_bytes, self._clock.monotonic_s())
        return bytes(wanted_bytes)


async def _hears(host: str, port: int, nonce: bytes) -> bool:
    heard = b""
    try:
        async with await trio.open_tcp_stream(host, port) as stream:
            while len(heard) < len(nonce):
                piece = await stream.receive_some(len(nonce) - len(heard))
                if not piece:
                    break
                heard += piece
    except (OSError, trio.BrokenResourceError):
        return False
    return heard == nonce
