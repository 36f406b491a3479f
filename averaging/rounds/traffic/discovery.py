"""Who is there: every peer announces itself in the directory and lists the others from time to time.

Records only say who is there and where; heartbeats go direct (DHT records every 5 s cost kilobytes a second per peer).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from averaging.network.seams.interfaces import Clock, DirectoryEntry, Network
from protocol.ids import PeerId, RunId

ANNOUNCE_EVERY_S: Final = 30.0
RECORD_LIFE_S: Final = 120.0
LIST_EVERY_S: Final = 5.0
AGAIN_FIRST_S: Final = 1.0
AGAIN_GROWTH: Final = 1.5
AGAIN_LAST_S: Final = 16.0
"""After a directory that did not answer, longer each time: where machines do not keep up, asking each second what takes eight is more
than half of what they have to do.
"""

SETTLED_LIST_EVERY_S: Final = 60.0
"""While the same peers are there: a look brings all records from several nodes, and who comes says so itself, by its heartbeats."""

LOOK_BYTES_PER_S: Final = 64.0
CHANGED_RATIO: Final = 6.0
"""What looks at a settled swarm may bring on average, and how much sooner one may be after somebody came or went: a record is 0.9 kB,
and of 32 members all of them each minute were 500 bytes a second; all else that an idle peer says and hears is a tenth of that.
"""


def directory_key(run_id: RunId) -> str:
    """The directory key under which a run's peers announce themselves."""
    return f"potluck/{run_id.hex()}/peers"


class DirectoryPoller:
    """Looks at the records of a run, for all in this process who want to know: one look brings every record.

    Args:
        patience_s: for how long after its time a look at a settled swarm is left to whoever looks for a reason of its own; who
            announces itself does so before some of its records (peer/membership/process_takeover.py).
    """

    def __init__(self, network: Network, run_id: RunId, patience_s: float = ANNOUNCE_EVERY_S + AGAIN_LAST_S) -> None:
        self.network = network
        self.patience_s = patience_s
        self._key = directory_key(run_id)
        self._found: Sequence[DirectoryEntry] = ()
        self._num_looks = 0
        self._looked = trio.Event()
        self._under_way: trio.Event | None = None

    async def look(self) -> Sequence[DirectoryEntry]:
        """All records that stand now, ours too; none where the directory is away. Who comes while somebody looks waits for that."""
        before = self._num_looks
        while self._under_way is not None:
            await self._under_way.wait()
            if self._num_looks > before:
                return self._found
        self._under_way = trio.Event()
        try:
            self._found = await self.network.lookup(self._key)
            self._num_looks += 1
            over, self._looked = self._looked, trio.Event()
            over.set()
        finally:  # who waits for one that was given up looks for itself
            over, self._under_way = self._under_way, None
            over.set()
        return self._found

    async def look_within(self, seconds: float) -> Sequence[DirectoryEntry]:
        """What the next look of somebody else finds; where nobody looks for so long, what our own does."""
        with trio.move_on_after(seconds):
            await self._looked.wait()
            return self._found
        return await self.look()


def look_after_s(found: Sequence[DirectoryEntry], least_s: float, bytes_per_s: float = LOOK_BYTES_PER_S) -> float:
    """When to look next, so that looks which bring this take no more than that on average."""
    return max(least_s, sum(len(entry.subkey) + len(entry.value) for entry in found) / bytes_per_s)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """When to look next at who is there: `every_s` after others were found than the time before, and while they are the same twice as
    late each time, up to `settled_every_s`. Where that is longer than `every_s`, a swarm with records of more than `bytes_per_s` then
    (from four or five on) is looked at as rarely as CHANGED_RATIO times that asks for, and then as rarely as that does, with nothing
    between; who wants to know at once who comes looks as often as ever.
    """

    every_s: float = LIST_EVERY_S
    settled_every_s: float = LIST_EVERY_S
    bytes_per_s: float = LOOK_BYTES_PER_S

    def settled_s(self, found: Sequence[DirectoryEntry]) -> float:
        """Between two looks at a swarm in which nobody comes or goes, where a look brings this."""
        if self.settled_every_s <= self.every_s:
            return self.every_s
        return look_after_s(found, self.settled_every_s, self.bytes_per_s)

    def next_s(self, found: Sequence[DirectoryEntry], last_s: float, *, is_same: bool) -> float:
        """After a look that brought this. `last_s`: how long the last pause was, `is_same`: whether the same peers were found."""
        settled_s = self.settled_s(found)
        if settled_s > self.settled_every_s:
            return settled_s if is_same else look_after_s(found, self.every_s, CHANGED_RATIO * self.bytes_per_s)
        return min(2 * last_s, settled_s) if is_same else self.every_s


OFTEN: Final = Rhythm()
"""Of who waits for somebody to come."""

IN_ROUNDS: Final = Rhythm(settled_every_s=SETTLED_LIST_EVERY_S)


async def announce(
    network: Network,
    clock: Clock,
    run_id: RunId,
    make_value: Callable[[float], Awaitable[bytes]],
    changed: Callable[[], trio.Event] = trio.Event,
) -> None:
    """Publish our record again and again, until cancelled.

    Args:
        make_value: (when it expires, unix time in s) -> the signed record.
        changed: the event that is set when the record is to say something else: it is published at once then.
    """
    again_s = AGAIN_FIRST_S
    while True:
        is_old, expires_unix_s = changed(), clock.unix_s() + RECORD_LIFE_S
        value = await make_value(expires_unix_s)
        is_stored = await network.publish(directory_key(run_id), network.peer_id, value, expires_unix_s=expires_unix_s)
        with trio.move_on_after(ANNOUNCE_EVERY_S if is_stored else again_s):
            await is_old.wait()
        again_s = AGAIN_FIRST_S if is_stored else min(AGAIN_GROWTH * again_s, AGAIN_LAST_S)


async def list_peers(
    looks: DirectoryPoller, take: Callable[[Sequence[DirectoryEntry]], Awaitable[None]], rhythm: Rhythm = OFTEN
) -> None:
    """Look who is there again and again, until cancelled."""
    here, wait_s, again_s = frozenset[str](), rhythm.every_s, AGAIN_FIRST_S
    found = await looks.look()
    while True:
        entries = [entry for entry in found if PeerId(entry.subkey) != looks.network.peer_id]
        if not entries:
            # none but our own: we came first; none at all says that the directory is away, not that everybody went
            again_s = AGAIN_FIRST_S if found else again_s
            found = await looks.look_within(again_s)
            again_s = min(AGAIN_GROWTH * again_s, AGAIN_LAST_S)
            continue
        await take(entries)
        before, here, again_s = here, frozenset(entry.subkey for entry in entries), AGAIN_FIRST_S
        wait_s = rhythm.next_s(found, wait_s, is_same=here == before)
        is_settled = wait_s == rhythm.settled_s(found) > rhythm.every_s
        found = await looks.look_within(wait_s + (looks.patience_s if is_settled else 0.0))
