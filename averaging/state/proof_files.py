"""Proofs of false sums on disk, so that a process that starts again still shows them.

A file is proofs/<SHA-256 of its bytes>. A file with other bytes than its name says is no proof and is passed over.
"""

from __future__ import annotations

from typing import Final

from averaging.network.seams.interfaces import Storage
from protocol.rounds.audit.sum_proof import hash_of_proof

FOLDER: Final = "proofs/"

MOST_KEPT: Final = 16
"""Proofs of one unit on disk. Each convicts another reducer, which the host then bans, so there are never many."""


class ProofFiles:
    """The proofs of one unit; every method returns once its bytes are on disk."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def write(self, data: bytes) -> bool:
        """Keep a proof. Returns whether there was room for it.

        Raises:
            StorageError: the disk refused.
        """
        name = FOLDER + hash_of_proof(data).hex()
        names = await self._storage.list_names(FOLDER)
        if name in names or len(names) >= MOST_KEPT:
            return name in names
        await self._storage.write_atomic(name, [data])
        return True

    async def load(self) -> list[bytes]:
        """The bytes of all proofs that are whole."""
        found: list[bytes] = []
        for name in sorted(await self._storage.list_names(FOLDER)):
            data = await self._storage.read(name)
            if data is not None and name == FOLDER + hash_of_proof(data).hex():
                found.append(data)
        return found
