"""The directory over libp2p, on trio's side: counts its traffic, and publishes our records again after a restart of p2pd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from averaging.network.libp2p.libp2p_session import Session
from averaging.network.pacing.counters import ControlTally
from averaging.network.seams.asyncio_thread import AsyncioThread
from averaging.network.seams.interfaces import DirectoryEntry


class Libp2pDirectory:
    """The records of one network. `current` waits for the session of a running p2pd."""

    def __init__(self, thread: AsyncioThread, current: Callable[[], Awaitable[Session]], tally: ControlTally) -> None:
        self._thread = thread
        self._current = current
        self._tally = tally
        self._published: dict[tuple[str, str], tuple[bytes, float]] = {}

    async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
        """Store a record, and remember it for `publish_again` if a node stored it."""
        session = await self._current()
        self._tally.published(key, subkey, value)
        was_taken = await self._thread.run(session.publish, key, subkey, value, expires_unix_s)
        if was_taken:
            self._published[key, subkey] = (value, expires_unix_s)
        return was_taken

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        """The live records under a key."""
        session = await self._current()
        self._tally.looked_up(key)
        found = await self._thread.run(session.lookup, key)
        self._tally.found(found)
        return found

    async def publish_again(self, now_unix_s: float) -> None:
        """Publish our live records again after a restart of p2pd, which has lost those in its memory."""
        for (key, subkey), (value, expires_unix_s) in list(self._published.items()):
            if expires_unix_s <= now_unix_s:
                del self._published[key, subkey]
            else:
                await self.publish(key, subkey, value, expires_unix_s=expires_unix_s)
