"""One process per identity across all machines: the newer process closes the older one.

On one machine a lock on the identity file ensures this. If the file was copied to another machine, both processes publish signed
directory records under the same name. A record's sequence number contains the session of its process (see envelope.py).

A duplicate peer id may cut the older process off from the directory. The host hears both, so it tells the older one at once.
Without the host the older one learns it from the directory, which it reads every minute or, in larger swarms, every few minutes.
Until then the two run in parallel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

import trio

from averaging.network.seams.directory import open_record
from averaging.network.seams.interfaces import DirectoryEntry
from averaging.rounds.traffic.discovery import DirectoryPoller, look_after_s
from peer.membership.credential_cache import CredentialCache
from protocol.errors import PotluckError
from protocol.identity.envelope import session_of, superseded
from protocol.identity.identity import Signer, Verifier
from protocol.ids import RunId

LOOK_EVERY_S: Final = 60.0
"""Minimum interval between reads of the directory: at most before every second record. Each read fetches the records of all peers,
which would otherwise dominate an idle peer's traffic.
"""

KEPT_RECORDS: Final = 256
"""Number of our own records that may still be stored. They live two minutes and are made every half minute, or every second while
none is stored.
"""


def is_of_newer_process(session: int, seen_session: int, *, is_ours: bool) -> bool:
    """Whether a record of that session, signed with our key, comes from a process started after ours. `is_ours`: we made that very
    record. If two processes started in the same second, each gives way to the other, because two must not run.
    """
    return seen_session > session or (seen_session == session and not is_ours)


class DirectoryClaim:
    """Makes our directory records, and checks before some of them for another process that uses our name."""

    def __init__(
        self,
        signer: Signer,
        run_id: RunId,
        session: int,
        next_sequence: Callable[[], int],
        verifier: Verifier,
        roster: CredentialCache,
    ) -> None:
        self._signer = signer
        self._run_id = run_id
        self._session = session
        self._next_sequence = next_sequence
        self._verifier = verifier
        self._roster = roster
        self._made: deque[bytes] = deque(maxlen=KEPT_RECORDS)
        self._look_at_s = 0.0

    async def make(self, poller: DirectoryPoller, expires_unix_s: float) -> bytes:
        """The next record. The directory keeps only the latest record of our name, and both processes overwrite each other's. So it
        is read just before each write: only then can each process see the other.

        Raises:
            SupersededError: another process with this identity was started after us.
        """
        if trio.current_time() >= self._look_at_s:
            began_s, found = trio.current_time(), await poller.poll()
            self._look_at_s = look_after_s(found, LOOK_EVERY_S) + began_s if found else 0.0
            self.check(found)
        network = poller.network
        value = self._roster.record(
            self._signer, self._next_sequence(), expires_unix_s, network.addresses(), network.bulk_addresses()
        )
        self._made.append(sha256(value).digest())
        return value

    def check(self, entries: Sequence[DirectoryEntry]) -> None:
        """Check our own record among these. Raises as `make`."""
        for entry in entries:
            seen = self._session_of(entry) if entry.subkey == self._signer.peer_id else None
            is_ours = sha256(entry.value).digest() in self._made
            if seen is not None and is_of_newer_process(self._session, seen, is_ours=is_ours):
                raise superseded()

    def _session_of(self, entry: DirectoryEntry) -> int | None:
        """The session of a record that was signed with our key; None for any other bytes."""
        try:
            envelope = open_record(entry.value, verifier=self._verifier, run_id=self._run_id)
        except PotluckError:
            return None
        return session_of(envelope.sequence) if envelope.sender == self._signer.peer_id else None
