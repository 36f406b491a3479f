"""Connections that outlive their stream: the next stream to the same peer goes over one of them.

A kept connection needs no handshake, and congestion control that keeps its state (BBR) starts at the line's rate instead of growing
into packet loss. Both sides confirm the end of a stream before its connection is kept, so later bytes never belong to it.

A kept connection sends nothing, not even keepalives. Its first use shows whether it is alive: the other kernel acknowledges the
bytes at once, however busy its machine is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import structlog
import trio

from averaging.network.direct.tls_identity import TlsCredential
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.direct.tls_stream import ask_opening, hear_status
from averaging.network.seams.frames import Status
from protocol.errors import PotluckError
from protocol.identity.names import peer_name
from protocol.ids import PeerId

log = structlog.get_logger()

KEPT_FOR_S: Final = 1800.0
LONGER_KEPT_FOR_S: Final = 1860.0
"""For the side that was dialled: the dialler closes first, so that no opening meets a connection that is just being closed."""

MAX_AGE_S: Final = 86_400.0
MAX_BYTES: Final = 100 << 30
"""An AES-GCM key may encrypt some 390 GB in records of 16 kB (RFC 8446, section 5.5), and keys are never changed here."""

MAX_SPARES_PER_PEER: Final = 4
MAX_SPARES_OF_PEER: Final = 2 * MAX_SPARES_PER_PEER
"""For the side that was dialled, which may still keep connections that the dialler has dropped."""

MAX_SPARES: Final = 256
"""Bound of all kept connections; each costs a socket and some memory."""

ACKNOWLEDGED_WITHIN_S: Final = 0.5
ACKNOWLEDGED_RTTS: Final = 4.0
ACKNOWLEDGED_SHARE: Final = 0.3
"""Time limit for the other kernel to acknowledge an opening: seconds plus round trips, at most this share of the caller's time
limit.

After that a router has forgotten the connection, or the machine is gone. The rest of the time is left for a new connection.
"""

SHORTER: Final = 0.5
LEAST_KEPT_FOR_S: Final = 30.0
"""After a dead connection, later ones to that peer are kept for this share of its age, but at least for LEAST_KEPT_FOR_S."""

MAX_KNOWN: Final = 4096


class _Silence(Enum):
    """The reason of a missing answer to an opening."""

    BUSY = auto()
    GONE = auto()


@dataclass(eq=False)
class _Spare:
    """A kept connection, the time since when it is kept, and the task that watches it."""

    peer: PeerId
    tls: TlsSocket
    own: TlsCredential
    since_s: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_let_go: trio.Event = field(default_factory=trio.Event)


class SpareConnections:
    """Kept connections that one network dialled, each watched by a task of the nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._spares: OrderedDict[_Spare, None] = OrderedDict()
        """Ordered by the time of keeping, oldest first."""

        self._kept_for_s: OrderedDict[PeerId, float] = OrderedDict()
        """Time to keep a connection, for peers to which one was found dead."""

    def __len__(self) -> int:
        return len(self._spares)

    def keep(self, peer: PeerId, tls: TlsSocket, own: TlsCredential) -> None:
        """Keep a connection whose stream both sides have ended; `own` is the credential that was shown on it.

        It is closed instead if it is old or if the peer has enough. If there are too many in all, the oldest one is closed.
        """
        is_full = sum(spare.peer == peer for spare in self._spares) >= MAX_SPARES_PER_PEER
        if is_full or tls.age_s > MAX_AGE_S or tls.num_bytes > MAX_BYTES:
            tls.close()
            return
        if len(self._spares) >= MAX_SPARES:
            self._drop(next(iter(self._spares)))
        spare = _Spare(peer, tls, own, trio.current_time())
        try:
            self._nursery.start_soon(self._hold, spare)
        except RuntimeError:  # trio raises this if the nursery has closed
            tls.close()
            return
        self._spares[spare] = None

    async def reopened(
        self, peer: PeerId, channel: str, own: TlsCredential, check: Callable[[bytes], None], within_s: float
    ) -> tuple[TlsSocket, Status] | None:
        """A kept connection and the peer's answer to an opening on it; None if there is no live one.

        Args:
            own: our present credential; connections on which another one was shown are closed.
            check: verifies the peer's credential again; raises RefusedError if it is not valid now.
            within_s: time limit for the answer of a busy peer.
        """
        while (spare := self._newest(peer)) is not None:
            tls = await self._let_go(spare)
            if spare.own != own or tls.is_closed:
                tls.close()
                continue
            try:
                check(tls.shown)
                status = await _asked(tls, channel, within_s)
            except (OSError, PotluckError) as error:
                log.debug("spare_connection_ended", peer=peer_name(peer), reason=str(error)[:200])
                tls.close(is_reset=True)
                continue
            except BaseException:
                tls.close(is_reset=True)
                raise
            if isinstance(status, Status):
                return tls, status
            tls.close(is_reset=True)
            if status is _Silence.BUSY:
                return None
            self._found_gone(spare)
        return None

    def forget(self, peer: PeerId) -> None:
        """The next stream to a peer goes over a new connection."""
        for spare in [spare for spare in self._spares if spare.peer == peer]:
            self._drop(spare)

    def _found_gone(self, spare: _Spare) -> None:
        """Drop the peer's older connections, which are dead as well, and keep its later ones for a shorter time."""
        kept_s = trio.current_time() - spare.since_s
        self._kept_for_s.pop(spare.peer, None)
        if len(self._kept_for_s) >= MAX_KNOWN:
            self._kept_for_s.popitem(last=False)
        self._kept_for_s[spare.peer] = max(LEAST_KEPT_FOR_S, SHORTER * kept_s)
        self.forget(spare.peer)

    def _newest(self, peer: PeerId) -> _Spare | None:
        return next((spare for spare in reversed(self._spares) if spare.peer == peer), None)

    async def _let_go(self, spare: _Spare) -> TlsSocket:
        """Stop watching a connection and return it."""
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
        """Watch a connection until it is used again. Anything that comes on it before that ends it."""
        try:
            with spare.scope:
                with trio.move_on_after(min(KEPT_FOR_S, self._kept_for_s.get(spare.peer, KEPT_FOR_S))):
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


async def _asked(tls: TlsSocket, channel: str, within_s: float) -> Status | _Silence:
    """The peer's answer to an opening. A cancelled wait for the answer loses nothing.

    Raises:
        OSError: the connection broke.
        RemoteProtocolError: a malformed answer.
    """
    path = tls.stats()
    patience_s = ACKNOWLEDGED_WITHIN_S + ACKNOWLEDGED_RTTS * (path.best_rtt_s if path is not None else 0.0)
    with trio.move_on_after(within_s):
        await ask_opening(tls, channel)
        with trio.move_on_after(min(patience_s, ACKNOWLEDGED_SHARE * within_s)):
            return await hear_status(tls)
        path = tls.stats()
        if path is None or not path.is_idle:
            return _Silence.GONE
        return await hear_status(tls)
    return _Silence.BUSY


class Resting:
    """Connections that peers dialled, between two of their streams. The oldest make room, since their peer may be gone."""

    def __init__(self) -> None:
        self._resting: OrderedDict[TlsSocket, PeerId] = OrderedDict()

    async def rest(self, tls: TlsSocket, peer: PeerId) -> bool:
        """Wait on a connection. True if bytes come on it; False if either side closed it.

        Raises:
            OSError: the other side broke it.
        """
        of_peer = [other for other, whose in self._resting.items() if whose == peer]
        if len(of_peer) >= MAX_SPARES_OF_PEER:
            of_peer[0].close()
        elif len(self._resting) >= MAX_SPARES:
            next(iter(self._resting)).close()
        self._resting[tls] = peer
        is_wanted = False
        try:
            with trio.move_on_after(LONGER_KEPT_FOR_S):
                await tls.rest()
                is_wanted = True
        except OSError:
            if not tls.is_closed:
                raise
        finally:
            del self._resting[tls]
        if not is_wanted:
            tls.close()
        return is_wanted
