"""One process for each identity, whatever machine it runs on: the newer closes the older.

On one machine the identity file is locked. Where it was copied to another, both processes publish a directory record under the same
name, each signed with the same key; the sequence number of a record tells the session of the process that made it (see envelope.py).
Whoever shares a peer id may be cut off from the directory by it, so the host, which hears both, says it to the older one as well: at
once, while the directory is looked at each minute, or less where a look at it brings more than an idle peer should take: every four
minutes with 16 members, eight with 32. So long the two may go on beside one another while the host is away.
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
"""At every second record at most. Each look brings the records of all: with eight members, one before each of our own records was half
of what an idle peer sends and hears.
"""

KEPT_RECORDS: Final = 256
"""Our own records that may still stand: they live two minutes, and are made every half minute, every second while none is stored."""


def is_of_newer_process(session: int, seen_session: int, *, is_ours: bool) -> bool:
    """Whether a record of that session, signed with our own key, was made by a process that was started after ours; `is_ours`: we made
    that very record. Of two processes that were started in the same second neither is the older: each makes way for the other, since
    two must not go on.
    """
    return seen_session > session or (seen_session == session and not is_ours)


class DirectoryClaim:
    """Makes our directory records, one after another, and looks before some of them who else speaks in our name."""

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

    async def make(self, looks: DirectoryPoller, expires_unix_s: float) -> bytes:
        """The next record. What stands in the directory just before is the latest of all who have our name: only then does a look tell
        of each of two processes, since both write again and again over what the other wrote.

        Raises:
            SupersededError: another process with this identity was started after us.
        """
        if trio.current_time() >= self._look_at_s:
            began_s, found = trio.current_time(), await looks.look()
            self._look_at_s = look_after_s(found, LOOK_EVERY_S) + began_s if found else 0.0
            self.check(found)
        network = looks.network
        value = self._roster.record(
            self._signer, self._next_sequence(), expires_unix_s, network.addresses(), network.bulk_addresses()
        )
        self._made.append(sha256(value).digest())
        return value

    def check(self, entries: Sequence[DirectoryEntry]) -> None:
        """Look at our own record among these. Raises as `make`."""
        for entry in entries:
            seen = self._session_of(entry) if entry.subkey == self._signer.peer_id else None
            is_ours = sha256(entry.value).digest() in self._made
            if seen is not None and is_of_newer_process(self._session, seen, is_ours=is_ours):
                raise superseded(self._session, seen)

    def _session_of(self, entry: DirectoryEntry) -> int | None:
        """The session of a record that was signed with our key; None for any other bytes."""
        try:
            envelope = open_record(entry.value, verifier=self._verifier, run_id=self._run_id)
        except PotluckError:
            return None
        return session_of(envelope.sequence) if envelope.sender == self._signer.peer_id else None
