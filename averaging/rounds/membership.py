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
SETTLED_LIST_EVERY_S: Final = 60.0
"""While the same peers are there: a look brings all records from several nodes, and who comes says so itself, by its heartbeats."""


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
    settled_every_s: float = LIST_EVERY_S,
) -> None:
    """Look who is there again and again, until cancelled: after `every_s` where others are there than the last time, and while they
    are the same twice as late each time, up to `settled_every_s`.
    """
    here, wait_s = frozenset[str](), every_s
    while True:
        entries = [e for e in await network.lookup(directory_key(run_id)) if PeerId(e.subkey) != network.peer_id]
        if entries:  # none at all says that the directory is away, not that everybody went
            await take(entries)
        before, here = here, frozenset(entry.subkey for entry in entries)
        wait_s = min(2 * wait_s, max(every_s, settled_every_s)) if here == before else every_s
        await trio.sleep(wait_s if entries else 1.0)
