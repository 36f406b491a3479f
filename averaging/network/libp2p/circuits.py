"""Circuits: connections to peers that nobody can connect to, through a relay at which they hold a place. Encrypted end to end.

Relays are named by their multiaddresses, as "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooW...". A relay passes a bounded number of bytes for a
bounded time in each circuit; p2pd counts them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from protocol.errors import TransportError
from protocol.ids import PeerId

CIRCUIT: Final = "p2p-circuit"
NOBODY: Final = ("NO_RESERVATION", "CONNECTION_FAILED")
"""A relay's answers if the peer holds no place at it, or held one and is gone."""

CIRCUIT_WITHIN_S: Final = 4.0
RELAY_CHECK_S: Final = 10.0
_P2P: Final = b"\xa5\x03"
_CIRCUIT: Final = b"\xa2\x02"
"""Multiaddr codes 421 (p2p) and 290 (p2p-circuit) as varints. Ids are shorter than 128 bytes, so their length is one byte."""


def circuits_through(relays: Sequence[str], peer: PeerId) -> tuple[bytes, ...]:
    """The multiaddresses of circuits to `peer` through these relays, in p2pd's encoding. The relays themselves need none.

    hivemind encodes a relay's id inside an address in a way that p2pd cannot read, so that part is encoded here.
    """
    from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    ids = [relay_of(address) for address in relays]
    if peer in ids:
        return ()
    found: list[bytes] = []
    for address, relay in zip(relays, ids, strict=True):
        transport: Any = Multiaddr(address.rpartition("/p2p/")[0])
        relay_id = bytes(PeerID.from_base58(relay).to_bytes())
        found.append(b"".join((transport.to_bytes(), _P2P, bytes([len(relay_id)]), relay_id, _CIRCUIT)))
    return tuple(found)


def without_circuits(reason: str) -> str:
    """p2pd's reason without the lines about circuits: a relay that refuses a connection says nothing about the peer behind it."""
    return "\n".join(line for line in reason.splitlines() if CIRCUIT not in line)


def is_relay_away(reason: str) -> bool:
    """Whether p2pd tried a circuit and no relay knew if the peer is there."""
    return CIRCUIT in reason and not any(word in reason for word in NOBODY)


class ReservationWatch:
    """Whether p2pd must be started again to get a place at a relay: it asks a relay once, and for an hour not again."""

    def __init__(self) -> None:
        self._was_lost = False

    def saw(self, *, is_relay_there: bool) -> bool:
        """Note whether a relay answers now. Returns True if it does so again after it did not."""
        is_back = is_relay_there and self._was_lost
        self._was_lost = not is_relay_there
        return is_back


async def keep_place(
    relays: Sequence[str], ping: Callable[[PeerId], Awaitable[None]], begin_again: Callable[[], None]
) -> None:
    """Call `begin_again` whenever a relay that was away is back, until cancelled. `ping` raises TransportError if it is away."""
    ids = sorted({relay_of(address) for address in relays})
    watch = ReservationWatch()

    async def is_there(relay: PeerId) -> bool:
        try:
            await ping(relay)
        except TransportError:
            return False
        return True

    while ids:
        await trio.sleep(RELAY_CHECK_S)
        found = [await is_there(relay) for relay in ids]
        if watch.saw(is_relay_there=any(found)):
            begin_again()


def relay_of(address: str) -> PeerId:
    """The peer id at the end of a relay's multiaddress."""
    return PeerId(address.rpartition("/p2p/")[2])
