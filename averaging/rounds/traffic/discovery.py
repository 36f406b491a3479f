"""Discovery: every peer announces itself in the directory, and lists the others from time to time.

Records only say that a peer exists and where it is. Heartbeats go direct, because frequent DHT records cost each peer too much
traffic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from averaging.network.seams.interfaces import Clock, DirectoryEntry, Network
from averaging.rounds.traffic.directory_keys import KEYS_A_LOOK, DirectoryKeys
from protocol.ids import PeerId

ANNOUNCE_EVERY_S: Final = 30.0
RECORD_LIFE_S: Final = 120.0
LIST_EVERY_S: Final = 5.0
AGAIN_FIRST_S: Final = 1.0
AGAIN_GROWTH: Final = 1.5
AGAIN_LAST_S: Final = 16.0
"""Pauses after a directory that did not answer; each is longer than the last one, so that retries do not overload a slow machine."""

SETTLED_LIST_EVERY_S: Final = 60.0
"""Interval while the same peers are there. A poll downloads all records from several nodes, and a new peer announces itself by
its heartbeats.
"""

LOOK_BYTES_PER_S: Final = 64.0
CHANGED_RATIO: Final = 6.0
"""Average traffic of polls in a settled swarm, and how much sooner the next one may follow after a peer came or left. A record is
about a kilobyte; without a limit, polls would be most of an idle peer's traffic.
"""


LONGEST_LOOK_S: Final = 1800.0
"""Longest interval between polls, however many bytes one takes: a peer that no heartbeat reaches is found within that time."""


MAX_RECORDS_KEPT: Final = 16_384
"""Records of keys that have their turns. Beyond them the keys looked at longest ago are dropped. Bounds memory in the largest runs."""


def _holds_nothing() -> tuple[int, ...]:
    return ()


class DirectoryPoller:
    """Polls the records of a run for all of this process. One poll downloads the records of a few keys (directory_keys.py).

    Args:
        held: the parts of the model that this peer holds now, by their numbers.
        patience_s: how long after its time a poll of a settled swarm waits for another caller to poll. A peer that announces
            itself polls before some of its records (peer/membership/process_takeover.py).
    """

    def __init__(
        self,
        network: Network,
        keys: DirectoryKeys,
        patience_s: float = ANNOUNCE_EVERY_S + AGAIN_LAST_S,
        held: Callable[[], tuple[int, ...]] = _holds_nothing,
    ) -> None:
        self.network = network
        self.keys = keys
        self.patience_s = patience_s
        self._held = held
        self._answers: dict[str, Sequence[DirectoryEntry]] = {}
        self._silent: set[str] = set()
        self._found: Sequence[DirectoryEntry] = ()
        self._num_looks = 0
        self._looked = trio.Event()
        self._under_way: trio.Event | None = None

    async def poll(self) -> Sequence[DirectoryEntry]:
        """The newest known record of each peer, ours too; none if the directory is away. Keys that were not looked at this time count
        as they were when they had their turn. A caller that comes during a poll waits for that one.
        """
        before = self._num_looks
        while self._under_way is not None:
            await self._under_way.wait()
            if self._num_looks > before:
                return self._found
        self._under_way = trio.Event()
        try:
            self._found = await self._look()
            self._num_looks += 1
            over, self._looked = self._looked, trio.Event()
            over.set()
        finally:  # callers that wait for a cancelled poll make their own
            over, self._under_way = self._under_way, None
            over.set()
        return self._found

    async def _look(self) -> Sequence[DirectoryEntry]:
        looked_at = self.keys.looked_at(self.network.peer_id, self._held(), self._num_looks)
        if len(looked_at) == 1:
            return await self.network.lookup(looked_at[0])
        answers: dict[str, Sequence[DirectoryEntry]] = {}

        async def look(key: str) -> None:
            answers[key] = await self.network.lookup(key)

        async with trio.open_nursery() as nursery:
            for key in looked_at:
                nursery.start_soon(look, key)
        if not any(answers.values()):
            return ()
        for key in looked_at:
            self._take_answer(key, answers[key])
        return _newest(self._answers.values())

    def _take_answer(self, key: str, found: Sequence[DirectoryEntry]) -> None:
        """An empty answer may be a look-up that failed: the second in a row is believed."""
        earlier = self._answers.pop(key, ())
        self._answers[key] = found if found or key in self._silent else earlier
        (self._silent.discard if found else self._silent.add)(key)
        num_records = sum(map(len, self._answers.values()))
        while num_records > MAX_RECORDS_KEPT and len(self._answers) > KEYS_A_LOOK:
            dropped = next(iter(self._answers))
            num_records -= len(self._answers.pop(dropped))
            self._silent.discard(dropped)

    def own_keys(self, now_unix_s: float) -> tuple[str, ...]:
        """The keys under which this peer announces itself: its group's, and the lobby's while it is its turn."""
        me = self.network.peer_id
        seen = (PeerId(entry.subkey) for entry in self._found)
        in_lobby = (self.keys.lobby,) if self.keys.is_in_lobby(me, seen, now_unix_s) else ()
        return (self.keys.home(me, self._held()), *in_lobby)

    async def look_within(self, seconds: float) -> Sequence[DirectoryEntry]:
        """The result of the next poll by another caller; if there is none within `seconds`, of our own."""
        with trio.move_on_after(seconds):
            await self._looked.wait()
            return self._found
        return await self.poll()


def _newest(answers: Iterable[Sequence[DirectoryEntry]]) -> Sequence[DirectoryEntry]:
    """One record of each peer, by name: the one that expires last."""
    newest: dict[str, DirectoryEntry] = {}
    for entry in (entry for answer in answers for entry in answer):
        known = newest.get(entry.subkey)
        if known is None or entry.expires_unix_s > known.expires_unix_s:
            newest[entry.subkey] = entry
    return tuple(entry for _, entry in sorted(newest.items()))


def look_after_s(found: Sequence[DirectoryEntry], least_s: float, bytes_per_s: float = LOOK_BYTES_PER_S) -> float:
    """The time until the next poll, so that polls of this size take at most `bytes_per_s` on average; at most LONGEST_LOOK_S unless
    `least_s` is longer.
    """
    num_bytes = sum(len(entry.subkey) + len(entry.value) for entry in found)
    return max(least_s, min(LONGEST_LOOK_S, num_bytes / bytes_per_s))


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The interval between polls: `every_s` after a change, and twice the last interval while the same peers are found, up to
    `settled_every_s`.

    If `settled_every_s` is longer than `every_s`, a swarm with more records than `bytes_per_s` allows is polled at two intervals
    only. The short one after a change allows CHANGED_RATIO times that rate; the other one allows that rate. A caller that must
    see new peers at once polls as often as ever.
    """

    every_s: float = LIST_EVERY_S
    settled_every_s: float = LIST_EVERY_S
    bytes_per_s: float = LOOK_BYTES_PER_S

    def settled_s(self, found: Sequence[DirectoryEntry]) -> float:
        """The interval between two polls of a swarm without changes, for polls of this size."""
        if self.settled_every_s <= self.every_s:
            return self.every_s
        return look_after_s(found, self.settled_every_s, self.bytes_per_s)

    def next_s(self, found: Sequence[DirectoryEntry], last_s: float, *, is_same: bool) -> float:
        """The interval after a poll with this result. `last_s`: the last interval; `is_same`: whether the same peers were found."""
        settled_s = self.settled_s(found)
        if settled_s > self.settled_every_s:
            return settled_s if is_same else look_after_s(found, self.every_s, CHANGED_RATIO * self.bytes_per_s)
        return min(2 * last_s, settled_s) if is_same else self.every_s


OFTEN: Final = Rhythm()
"""For a peer that waits for others to come."""

IN_ROUNDS: Final = Rhythm(settled_every_s=SETTLED_LIST_EVERY_S)


async def announce(
    poller: DirectoryPoller,
    clock: Clock,
    make_value: Callable[[float], Awaitable[bytes]],
    changed: Callable[[], trio.Event] = trio.Event,
) -> None:
    """Publish our record repeatedly, until cancelled.

    Args:
        poller: the directory and our keys in it.
        make_value: (when it expires, unix time in s) -> the signed record.
        changed: the event that is set when the record must change; it is then published at once.
    """
    again_s = AGAIN_FIRST_S
    while True:
        is_old, expires_unix_s = changed(), clock.unix_s() + RECORD_LIFE_S
        value = await make_value(expires_unix_s)
        is_stored = await _publish(poller, clock.unix_s(), value, expires_unix_s)
        with trio.move_on_after(ANNOUNCE_EVERY_S if is_stored else again_s):
            await is_old.wait()
        again_s = AGAIN_FIRST_S if is_stored else min(AGAIN_GROWTH * again_s, AGAIN_LAST_S)


async def _publish(poller: DirectoryPoller, now_unix_s: float, value: bytes, expires_unix_s: float) -> bool:
    """Store our record under all our keys. Whether the first one, our group's, has it."""
    network, stored = poller.network, list[bool]()
    for key in poller.own_keys(now_unix_s):
        stored.append(await network.publish(key, network.peer_id, value, expires_unix_s=expires_unix_s))
    return stored[0]


async def list_peers(
    poller: DirectoryPoller, take: Callable[[Sequence[DirectoryEntry]], Awaitable[None]], rhythm: Rhythm = OFTEN
) -> None:
    """Poll repeatedly, until cancelled."""
    here, wait_s, again_s = frozenset[str](), rhythm.every_s, AGAIN_FIRST_S
    found = await poller.poll()
    while True:
        entries = [entry for entry in found if PeerId(entry.subkey) != poller.network.peer_id]
        if not entries:
            # only our own: we came first; none at all: the directory is away, the peers are not
            again_s = AGAIN_FIRST_S if found else again_s
            found = await poller.look_within(again_s)
            again_s = min(AGAIN_GROWTH * again_s, AGAIN_LAST_S)
            continue
        await take(entries)
        before, here, again_s = here, frozenset(entry.subkey for entry in entries), AGAIN_FIRST_S
        wait_s = rhythm.next_s(found, wait_s, is_same=here == before)
        is_settled = wait_s == rhythm.settled_s(found) > rhythm.every_s
        found = await poller.look_within(wait_s + (poller.patience_s if is_settled else 0.0))
