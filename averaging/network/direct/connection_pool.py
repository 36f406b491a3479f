"""Connections that outlive their stream: the next stream to the same peer goes over one of them.

It has no handshake to wait for, and where congestion control keeps what it learned (BBR) it begins at the pace that the line carries:
a new connection sends more and more until packets are lost, which costs a line of 100 Mbit/s a tenth of a second and more, in each
direction. Both sides have told each other that the stream is over before its connection is kept, so nothing that comes on it belongs
to that any more.

A connection that is kept says nothing, not even that it is alive. Whether it still is shows when it is used: the other kernel
acknowledges what was sent there at once, however busy its machine is.
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
from protocol.ids import PeerId

log = structlog.get_logger()

KEPT_FOR_S: Final = 1800.0
LONGER_KEPT_FOR_S: Final = 1860.0
"""Of the side that was dialled, so that it is the dialler who closes, and no opening meets a connection that is just being closed."""

MAX_AGE_S: Final = 86_400.0
MAX_BYTES: Final = 100 << 30
"""What an AES-GCM key may encrypt is some 390 GB in records of 16 kB (RFC 8446, section 5.5), and nobody changes keys here."""

MAX_SPARES_PER_PEER: Final = 4
MAX_SPARES_OF_PEER: Final = 2 * MAX_SPARES_PER_PEER
"""Of the side that was dialled: what the dialler drops may still stand here."""

MAX_SPARES: Final = 256
"""Each is a socket and some 50 kB."""

ACKNOWLEDGED_WITHIN_S: Final = 0.5
ACKNOWLEDGED_RTTS: Final = 4.0
ACKNOWLEDGED_SHARE: Final = 0.3
"""An opening that the other kernel has not acknowledged after the sum of the first two went nowhere: a router between has forgotten
the connection, or the machine is gone. A share of what the caller allows at most: a new connection takes its time, too.
"""

SHORTER: Final = 0.5
LEAST_KEPT_FOR_S: Final = 30.0
"""Of the time that a connection had been kept when it was found gone: the next ones to that peer are kept for so long, or for the
latter, if that is longer.
"""

MAX_KNOWN: Final = 4096


class _Silence(Enum):
    """Where nothing is said to an opening."""

    BUSY = auto()
    GONE = auto()


@dataclass(eq=False)
class _Spare:
    """One connection, since when it is kept, and who looks whether it ends."""

    peer: PeerId
    tls: TlsSocket
    own: TlsCredential
    since_s: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_let_go: trio.Event = field(default_factory=trio.Event)


class SpareConnections:
    """Those of one network that it dialled, each in a task of the nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._spares: OrderedDict[_Spare, None] = OrderedDict()
        """The one that was kept last stands last."""

        self._kept_for_s: OrderedDict[PeerId, float] = OrderedDict()
        """Of peers to whom one was found gone."""

    def __len__(self) -> int:
        return len(self._spares)

    def keep(self, peer: PeerId, tls: TlsSocket, own: TlsCredential) -> None:
        """A connection on which `own` was shown, and whose stream both sides have ended. One too many of a peer, or one that is old,
        is closed, and where there are too many in all the oldest goes.
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
        except RuntimeError:  # trio's word for a nursery that has closed
            tls.close()
            return
        self._spares[spare] = None

    async def reopened(
        self, peer: PeerId, channel: str, own: TlsCredential, check: Callable[[bytes], None], within_s: float
    ) -> tuple[TlsSocket, Status] | None:
        """A connection, and what the peer says to an opening on it; None where there is none that still is one.

        Args:
            own: our credential as of now; a connection on which another was shown is of no use any more.
            check: of the credential that the peer has shown; raises RefusedError where that does not count any more.
            within_s: for so long a peer may be busy.
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
                log.debug("spare_connection_ended", peer=peer, reason=str(error)[:200])
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
        """So are those that were kept before it, mostly; and one that is kept as long will be."""
        kept_s = trio.current_time() - spare.since_s
        self._kept_for_s.pop(spare.peer, None)
        if len(self._kept_for_s) >= MAX_KNOWN:
            self._kept_for_s.popitem(last=False)
        self._kept_for_s[spare.peer] = max(LEAST_KEPT_FOR_S, SHORTER * kept_s)
        self.forget(spare.peer)

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
    """What the peer says to an opening. A cancelled wait for its answer loses nothing of that.

    Raises:
        OSError: the connection broke.
        RemoteProtocolError: an answer that is none.
    """
    path = tls.look()
    patience_s = ACKNOWLEDGED_WITHIN_S + ACKNOWLEDGED_RTTS * (path.best_rtt_s if path is not None else 0.0)
    with trio.move_on_after(within_s):
        await ask_opening(tls, channel)
        with trio.move_on_after(min(patience_s, ACKNOWLEDGED_SHARE * within_s)):
            return await hear_status(tls)
        path = tls.look()
        if path is None or not path.is_idle:
            return _Silence.GONE
        return await hear_status(tls)
    return _Silence.BUSY


class Resting:
    """Connections that a peer dialled, between two of its streams. The oldest make room for others: of those whose peer has vanished
    nobody hears.
    """

    def __init__(self) -> None:
        self._resting: OrderedDict[TlsSocket, PeerId] = OrderedDict()

    async def rest(self, tls: TlsSocket, peer: PeerId) -> bool:
        """Whether something comes on it; else it was closed, by either side.

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
