"""Connections that outlive their stream: the next stream to the same peer goes over one of them.

It has no handshake to wait for, and begins at the pace that the line was found to carry: a new connection sends more and more until
packets are lost, which costs a line of 100 Mbit/s a tenth of a second and more, in each direction. Both sides have told each other
that the stream is over before its connection is kept, so nothing of it is still on its way.

A connection that is kept says nothing, not even that it is alive. Whether it still is shows when it is used: the other kernel
acknowledges what was sent there at once, however busy its machine is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from averaging.network.frames import Status
from averaging.network.tls_identity import TlsCredential
from averaging.network.tls_socket import TlsSocket
from averaging.network.tls_stream import ask_opening, hear_status
from protocol.errors import PotluckError
from protocol.ids import PeerId

log = structlog.get_logger()

KEPT_FOR_S: Final = 1800.0
LONGER_KEPT_FOR_S: Final = 1860.0
"""Of the side that was dialled, so that it is the dialler who closes, and no opening meets a connection that is just being closed."""

MAX_SPARES_PER_PEER: Final = 4
MAX_SPARES_OF_PEER: Final = 2 * MAX_SPARES_PER_PEER
"""Of the side that was dialled: what the dialler drops may still stand here."""

MAX_SPARES: Final = 256
"""Each is a socket and some 50 kB."""

ACKNOWLEDGED_WITHIN_S: Final = 0.5
ACKNOWLEDGED_RTTS: Final = 4.0
"""An opening that the other kernel has not acknowledged after the sum of both went nowhere: a router between has forgotten the
connection, or the machine is gone.
"""


@dataclass(eq=False)
class _Spare:
    """One connection, and who looks whether it ends."""

    peer: PeerId
    tls: TlsSocket
    own: TlsCredential
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_let_go: trio.Event = field(default_factory=trio.Event)


class SpareConnections:
    """Those of one network that it dialled, each in a task of the nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._spares: OrderedDict[_Spare, None] = OrderedDict()
        """The one that was kept last stands last."""

    def __len__(self) -> int:
        return len(self._spares)

    def keep(self, peer: PeerId, tls: TlsSocket, own: TlsCredential) -> None:
        """A connection on which `own` was shown, and whose stream both sides have ended. One too many of a peer is closed, and where
        there are too many in all the oldest goes.
        """
        if sum(spare.peer == peer for spare in self._spares) >= MAX_SPARES_PER_PEER:
            tls.close()
            return
        if len(self._spares) >= MAX_SPARES:
            self._drop(next(iter(self._spares)))
        spare = _Spare(peer, tls, own)
        try:
            self._nursery.start_soon(self._hold, spare)
        except RuntimeError:  # trio's word for a nursery that has closed
            tls.close()
            return
        self._spares[spare] = None

    async def reopened(
        self, peer: PeerId, channel: str, own: TlsCredential, check: Callable[[bytes], None], until_s: float
    ) -> TlsSocket | None:
        """A connection that the peer has taken for a stream on this channel; None where there is none, and a new one decides why.

        Args:
            own: our credential as of now; a connection on which another was shown is of no use any more.
            check: of the credential that the peer has shown; raises RefusedError where that does not count any more.
            until_s: in trio's time; for so long a peer may be busy.
        """
        while (spare := self._newest(peer)) is not None:
            tls = await self._let_go(spare)
            if spare.own == own and not tls.is_closed and await _is_taken(tls, channel, check, until_s):
                return tls
            tls.close(is_reset=True)
        return None

    def forget(self, peer: PeerId) -> None:
        """The next stream to a peer goes over a new connection."""
        for spare in [spare for spare in self._spares if spare.peer == peer]:
            self._drop(spare)

    def _newest(self, peer: PeerId) -> _Spare | None:
        return next((spare for spare in reversed(self._spares) if spare.peer == peer), None)

    async def _let_go(self, spare: _Spare) -> TlsSocket:
        """Nobody waits on it any more."""
        del self._spares[spare]
        spare.scope.cancel()
        try:
            await spare.is_let_go.wait()
        except BaseException:
            spare.tls.close(is_reset=True)
            raise
        return spare.tls

    def _drop(self, spare: _Spare) -> None:
        del self._spares[spare]
        spare.tls.close()

    async def _hold(self, spare: _Spare) -> None:
        """Until it is wanted again; whatever comes on it before that, its end or a word that nobody asked for, is its end."""
        try:
            with spare.scope:
                with trio.move_on_after(KEPT_FOR_S):
                    await spare.tls.rest()
                spare.tls.close()
        except OSError:
            spare.tls.close()
        except BaseException:
            spare.tls.close()
            raise
        finally:
            self._spares.pop(spare, None)
            spare.is_let_go.set()


async def _is_taken(tls: TlsSocket, channel: str, check: Callable[[bytes], None], until_s: float) -> bool:
    """Whether the peer opens a stream there. A cancelled wait for its answer loses nothing of that."""
    path, status = tls.look(), None
    patience_s = ACKNOWLEDGED_WITHIN_S + ACKNOWLEDGED_RTTS * (path.rtt_s if path is not None else 0.0)
    try:
        check(tls.shown)
        with trio.move_on_at(until_s):
            await ask_opening(tls, channel)
            with trio.move_on_after(patience_s):
                status = await hear_status(tls)
            if status is None and (path := tls.look()) is not None and path.is_idle:
                status = await hear_status(tls)
    except (OSError, PotluckError) as error:
        log.debug("spare_connection_ended", reason=str(error)[:200])
    except BaseException:
        tls.close(is_reset=True)
        raise
    return status is Status.FINE
