"""Connects to the first of several addresses at which the right peer answers."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

import trio

from averaging.network.direct.tls_socket import TlsSocket, wrap
from averaging.network.seams.bulk_address import BulkAddress
from protocol.errors import PotluckError, UnreachableError

NEXT_AFTER_S: Final = 0.15
"""Delay between the starts of two dials, which run concurrently, so that an address that swallows packets delays no other."""


FIRST_PAUSE_S: Final = 1.0
PAUSE_GROWTH: Final = 4.0
LONGEST_PAUSE_S: Final = 600.0


class RedialPause:
    """The growing pause before a peer is dialled again after a failure.

    Attributes:
        not_before_s: earliest time of the next dial, by trio's clock.
        pause_s: length of the pause after the next failure.
    """

    def __init__(self) -> None:
        self.not_before_s = 0.0
        self.pause_s = FIRST_PAUSE_S

    def failed(self, now_s: float) -> None:
        """Begin a pause, and make the next one longer."""
        self.not_before_s = now_s + self.pause_s
        self.pause_s = min(PAUSE_GROWTH * self.pause_s, LONGEST_PAUSE_S)

    def worked(self) -> None:
        """End the pause and reset its length."""
        self.not_before_s = 0.0
        self.pause_s = FIRST_PAUSE_S


Connected = Callable[[BulkAddress, bool], None]
"""(address, whether a TCP connection is there)."""


def _unnoticed(address: BulkAddress, is_there: bool) -> None:
    pass


async def dial_first(
    addresses: Sequence[BulkAddress],
    context: ssl.SSLContext,
    check: Callable[[bytes], None],
    connected: Connected = _unnoticed,
) -> tuple[BulkAddress, TlsSocket]:
    """Connect and shake hands; the first connection whose certificate passes `check` is returned, all others are closed.

    `connected` is called with True for each TCP connection, and with False if it then fails. A TCP connection shows that a machine
    is there and its peer may only be busy, but another machine may have that address.

    Raises:
        UnreachableError: all dials failed; the message says why the last one did.
    """
    found: list[tuple[BulkAddress, TlsSocket]] = []
    reasons: list[str] = []

    async def attempt(address: BulkAddress, failed: trio.Event) -> None:
        try:
            tls = await _dial(address, context, check, connected)
        except (OSError, PotluckError) as error:
            reasons.append(f"{address.host} port {address.port}: {error}")
            failed.set()
            return
        if found:
            tls.close()
            return
        found.append((address, tls))
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                failed = trio.Event()
                nursery.start_soon(attempt, address, failed)
                with trio.move_on_after(NEXT_AFTER_S):
                    await failed.wait()
    except BaseException:
        for _, tls in found:
            tls.close()
        raise
    if not found:
        raise UnreachableError(reasons[-1] if reasons else "no address", "a peer that answers")
    return found[0]


async def _dial(
    address: BulkAddress, context: ssl.SSLContext, check: Callable[[bytes], None], connected: Connected
) -> TlsSocket:
    connection = await _connected(address)
    connected(address, True)
    try:
        tls = wrap(connection, context, is_server=False)
        try:
            check(await tls.handshake())
        except BaseException:
            tls.close(is_reset=True)
            raise
    except BaseException:
        connected(address, False)
        raise
    return tls


async def _connected(address: BulkAddress) -> socket.socket:
    """A connection to the first address of a name that takes one; they are dialled one shortly after the other.

    Raises:
        OSError: the name is unknown, or none of its addresses takes connections: the last one's reason.
    """
    places = await trio.socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    made, failures = list[socket.socket](), list[OSError]()

    async def attempt(family: int, place: object, failed: trio.Event) -> None:
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await _connect(connection, place)
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            failures.append(error)
            failed.set()
            return
        made.append(connection)
        nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            for family, _, _, _, place in places:
                failed = trio.Event()
                nursery.start_soon(attempt, family, place, failed)
                with trio.move_on_after(NEXT_AFTER_S):
                    await failed.wait()
    except BaseException:
        for connection in made:
            connection.close()
        raise
    if not made:
        raise failures[-1]
    for connection in made[1:]:
        connection.close()
    return made[0]


async def _connect(connection: socket.socket, place: object) -> None:
    code = connection.connect_ex(place)  # type: ignore[arg-type]
    if code == errno.EINPROGRESS:
        await trio.lowlevel.wait_writable(connection)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
