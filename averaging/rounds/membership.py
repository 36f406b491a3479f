"""Who is there: every peer announces itself in the directory and lists the others from time to time.

Records only say who is there and where; heartbeats go direct (DHT records every 5 s cost kilobytes a second per peer).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from averaging.network.seams import Clock, DirectoryEntry, Network
from protocol.ids import PeerId, RunId

ANNOUNCE_EVERY_S: Final = 30.0
RECORD_LIFE_S: Final = 120.0
LIST_EVERY_S: Final = 5.0
"""While few peers are known; a settled swarm is listed as rarely as it is announced."""


def directory_key(run_id: RunId) -> str:
    """The directory key under which a run's peers announce themselves."""
    return f"potluck/{run_id.hex()}/peers"


async def announce(
    network: Network, clock: Clock, run_id: RunId, make_value: Callable[[float], Awaitable[bytes]]
) -> None:
    """Publish our record again and again, until cancelled. `make_value(expires_unix_s)` returns the signed record."""
    while True:
        expires_unix_s = clock.unix_s() + RECORD_LIFE_S
        value = await make_value(expires_unix_s)
        is_stored = await network.publish(directory_key(run_id), network.peer_id, value, expires_unix_s=expires_unix_s)
        await trio.sleep(ANNOUNCE_EVERY_S if is_stored else 1.0)


async def list_peers(
    network: Network,
    run_id: RunId,
    take: Callable[[Sequence[DirectoryEntry]], Awaitable[None]],
    every_s: float = LIST_EVERY_S,
) -> None:
    """Look who is there again and again, until cancelled."""
    while True:
        entries = [e for e in await network.lookup(directory_key(run_id)) if PeerId(e.subkey) != network.peer_id]
        if entries:  # none at all says that the directory is away, not that everybody went
            await take(entries)
        await trio.sleep(every_s if entries else 1.0)
