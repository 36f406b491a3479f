"""The host's milestones on this peer's disk (R26): loaded at a start, taken from the host and from other peers, and saved.

A file of entries, each after its length, u32 big-endian. None is trusted for being there: each is checked when it is loaded.

Rules: R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Offload
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from peer.membership.saved_membership import write_durably
from protocol.host.host_statements import MAX_MILESTONES
from protocol.identity.revocation import fingerprint
from protocol.ids import UnitName
from protocol.rounds.lineage.milestones import MAX_MILESTONE_BYTES

log = structlog.get_logger()

FILE_NAME: Final = "milestones"
_LENGTH_BYTES: Final = 4
MAX_ENTRIES: Final = 1 << 15
"""Most entries of a file: of many units, MAX_HELD of each."""


def read_milestones(folder: Path) -> list[bytes]:
    """The entries of the file in a run's folder, unchecked; none without a file. Of a damaged file those before the damage. Blocks.

    Raises:
        OSError: it cannot be read.
    """
    path = folder / FILE_NAME
    data, begin, found = path.read_bytes() if path.exists() else b"", 0, list[bytes]()
    while begin + _LENGTH_BYTES <= len(data) and len(found) < MAX_ENTRIES:
        length = int.from_bytes(data[begin : begin + _LENGTH_BYTES], "big")
        begin += _LENGTH_BYTES + length
        if length > MAX_MILESTONE_BYTES or begin > len(data):
            break
        found.append(data[begin - length : begin])
    return found


def write_milestones(folder: Path, entries: Sequence[bytes]) -> None:
    """Write the file, whole or not at all. Blocks.

    Raises:
        OSError: the folder cannot be written.
    """
    data = b"".join(len(entry).to_bytes(_LENGTH_BYTES, "big") + entry for entry in entries)
    write_durably(folder / FILE_NAME, data)


def add_milestones(folder: Path, entries: Sequence[bytes]) -> None:
    """Add what the host gave at admission to the file, unchecked: the run's start may not be known yet. Blocks. A disk that refuses
    is logged: the host's next answers bring them again.
    """
    try:
        known = read_milestones(folder)
        if new := [entry for entry in entries if entry not in known]:
            write_milestones(folder, [*known, *new][-MAX_ENTRIES:])
    except OSError as error:
        log.warning("milestones_not_kept", path=str(folder / FILE_NAME), reason=str(error))


class KeptMilestones:
    """The milestones that are held, and their file. Call `restore` before anything else."""

    def __init__(self, folder: Path, held: HeldMilestones, offload: Offload) -> None:
        self.held = held
        self._folder = folder
        self._offload = offload
        self._saved: tuple[bytes, ...] = ()
        self._turn = trio.Lock()
        """Held while the file is written."""

    async def restore(self) -> None:
        """Load the file. A file that cannot be read does little harm: the host sends its newest milestones again."""
        try:
            entries = await self._offload.run(partial(read_milestones, self._folder))
        except OSError as error:
            log.warning("milestones_not_read", path=str(self._folder / FILE_NAME), reason=str(error))
            return
        self._saved = tuple(entries)
        self.held.take(entries, "this disk")

    async def take(self, offered: Sequence[bytes], source: str) -> None:
        """Keep these, and save what has changed since the last time, also through lineages that have moved on."""
        self.held.take(offered, source)
        async with self._turn:
            sealed = self.held.sealed
            if sealed == self._saved:
                return
            try:
                await self._offload.run(partial(write_milestones, self._folder, sealed))
                self._saved = sealed
            except OSError as error:
                log.warning("milestones_not_kept", path=str(self._folder / FILE_NAME), reason=str(error))

    @property
    def known(self) -> bytes:
        """Fingerprints of the newest of each unit."""
        return b"".join(sorted(map(fingerprint, self.held.newest())))

    def to_bring(self, spine: UnitName, host_index: int) -> tuple[bytes, ...]:
        """Milestones of the spine from after the host's head: it signed them, and was restored from an old copy of its ledger."""
        newer = [each.sealed for each in self.held.of(spine).held if each.link.index > host_index]
        return tuple(newer[-MAX_MILESTONES:])
