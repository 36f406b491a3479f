"""The long past of a run at its host: signs milestones as they come due, hands them out, and moves old certificates to the archive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from coordinator.history.certificate_archive import file_name, write_archive
from coordinator.history.history_rows import (
    PastBlock,
    begins_at,
    certificate_of,
    milestones,
    parents_between,
    past_of,
    put_milestone,
    rows_before,
    settle,
)
from coordinator.history.milestone_core import due_milestones, is_one_due
from coordinator.history.past_rounds import BLOCK_ROUNDS
from coordinator.ledger.ledger import CommitRow
from protocol.errors import LocalProtocolError, PotluckError, StorageError
from protocol.identity.revocation import FINGERPRINT_BYTES, fingerprint
from protocol.ids import CommitId, Root, RunId, UnitName
from protocol.rounds.lineage import lineage
from protocol.rounds.lineage.milestones import MILESTONE_EVERY, seal_milestone
from protocol.rounds.messages.record import LightRecord
from protocol.rounds.messages.start import Milestone
from protocol.rounds.messages.wire import decode_certificate, decode_record, encode_record

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Offload
    from coordinator.history.followed_log import FollowedLog
    from coordinator.ledger.ledger import Ledger
    from coordinator.ledger.ledger_writer import LedgerWriter
    from protocol.identity.identity import Signer, Verifier
    from protocol.rounds.lineage.chain_link import ChainLink

_log = structlog.get_logger()

NUM_NEWEST: Final = lineage.MAX_DEPTH // MILESTONE_EVERY + 2
"""Milestones of a unit that are at hand: a copy of its lineage begins at one that lies MAX_DEPTH behind its head."""

_ARCHIVE_COST_S: Final = 0.5
"""Virtual time to compress and write a file of certificates."""


_RecordOf = Callable[["ChainLink"], Awaitable[bytes]]
"""The bytes of the record of a link."""


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """The run, the host's signer, the unit whose commits the ledger has, and the folder of the archive."""

    run_id: RunId
    signer: Signer
    verifier: Verifier
    spine: UnitName
    archive: Path


class RunHistory:
    """Call `restore` once, then `look` about once a second."""

    def __init__(self, place: HistoryPlace, ledger: LedgerWriter, offload: Offload) -> None:
        self.place = place
        self.ledger = ledger
        self._offload = offload
        self._newest: dict[UnitName, list[tuple[int, bytes]]] = {}
        """Round and envelope of the newest milestones of each unit, oldest first."""

        self._begins: CommitId | None = None
        self._begins_index = 0
        self._looked_at: CommitId | None = None
        self._trouble = ""

    async def restore(self) -> None:
        """Read what earlier processes of the host signed and archived.

        Raises:
            StorageError: the ledger cannot be read.
        """
        for unit, index, sealed in await self.ledger.run(milestones):
            self._note(unit, index, sealed)
        self._begins = await self.ledger.run(partial(begins_at, unit=self.place.spine))
        if self._begins is not None:
            raw = await self.ledger.run(partial(certificate_of, commit=self._begins))
            if raw is None:
                raise StorageError("a ledger without the commit at which it begins", "its row", "restore a copy of it")
            self._begins_index = decode_record(decode_certificate(raw).record).index

    def _note(self, unit: UnitName, index: int, sealed: bytes) -> None:
        known = self._newest.setdefault(unit, [])
        if (index, sealed) not in known:
            self._newest[unit] = sorted((*known, (index, sealed)))[-NUM_NEWEST:]

    def _newest_index(self, unit: UnitName) -> int:
        return self._newest[unit][-1][0] if unit in self._newest else 0

    # --- for peers ------------------------------------------------------------------------------------------------------------

    def newest(self) -> tuple[bytes, ...]:
        """The newest milestone of each unit, for a newcomer."""
        return tuple(self.of(unit)[-1] for unit in sorted(self._newest))

    def of(self, unit: UnitName) -> tuple[bytes, ...]:
        """The newest milestones of a unit, oldest first."""
        return tuple(sealed for _, sealed in self._newest.get(unit, ()))

    def lacking(self, known: bytes, units: Collection[UnitName]) -> tuple[bytes, ...]:
        """The newest milestones of these units, without those of which a peer names the fingerprint."""
        names = {known[begin : begin + FINGERPRINT_BYTES] for begin in range(0, len(known), FINGERPRINT_BYTES)}
        found = (self.of(unit)[-1] for unit in sorted(set(units)) if unit in self._newest)
        return tuple(sealed for sealed in found if fingerprint(sealed) not in names)

    async def take_back(self, unit: UnitName, index: int, sealed: bytes) -> None:
        """Keep a milestone that we signed and this ledger, an old copy, lacks. Its signature was checked.

        Raises:
            StorageError: the ledger refused.
        """
        standing = await self.ledger.run(partial(put_milestone, unit=unit, index=index, sealed=sealed))
        self._note(unit, index, standing)

    # --- as the run goes on ---------------------------------------------------------------------------------------------------

    async def look(self, chain: FollowedLog | None) -> None:
        """Sign what has come due, and archive what lies deep enough. Anything that the disk refuses is tried again at a later look."""
        if chain is None or self._looked_at == chain.head.commit:
            return
        try:
            newest = self._newest_index(self.place.spine)
            if is_one_due(newest, chain.head.index):
                await self._sign(chain.genesis.commit, _links_after(chain, newest), chain.attested_root, self._record)
            is_more = await self._archive(chain)
        except PotluckError as error:
            if error.one_line() != self._trouble:
                self._trouble = error.one_line()
                _log.warning("history_not_kept", reason=self._trouble)
            return
        if not is_more:
            self._looked_at = chain.head.commit

    async def look_at(
        self, genesis: CommitId, links: Sequence[ChainLink], root_of: Callable[[CommitId], Root | None]
    ) -> None:
        """Sign what has come due of a unit whose lineage the host keeps a copy of, `links` oldest first.

        Raises:
            StorageError: the ledger refused.
        """
        unit, head = links[-1].unit, links[-1]
        if unit != self.place.spine and is_one_due(self._newest_index(unit), head.index):
            await self._sign(genesis, links, root_of, _record_bytes)

    async def _record(self, link: ChainLink) -> bytes:
        raw = await self.ledger.run(partial(certificate_of, commit=link.commit))
        if raw is None:
            raise StorageError(
                f"a ledger without commit {link.index}", "all that were followed", "restore a copy of it"
            )
        return decode_certificate(raw).record

    async def _archive(self, chain: FollowedLog) -> bool:
        """Move a block of old commits out of the ledger, if there is one. Returns whether there may be another one."""
        stop = (self._begins_index // BLOCK_ROUNDS + 1) * BLOCK_ROUNDS
        if chain.head.index - stop < lineage.MAX_DEPTH:
            return False
        begins, rows, others = await self.ledger.run(lambda ledger: self._old_rows(ledger, chain, stop))
        place, losses = self.place, await self.ledger.run(lambda ledger: ledger.loss_points())
        name = file_name(place.spine, rows[0].index, stop - 1)
        certificates = [row.certificate for row in sorted((*rows, *others), key=lambda row: row.index)]
        write = partial(write_archive, place.archive, name, certificates)
        digest = await self._offload.run(write, cost_s=_ARCHIVE_COST_S)
        past = await self._offload.run(partial(past_of, rows, losses))
        block = PastBlock(place.spine, past, name, digest)
        await self.ledger.run(partial(settle, block=block, begins=begins, stop_index=stop))
        self._begins, self._begins_index = begins, stop
        _log.info("commits_archived", file=name, rounds=len(rows), others=len(others))
        return chain.head.index - stop - BLOCK_ROUNDS >= lineage.MAX_DEPTH

    def _old_rows(
        self, ledger: Ledger, chain: FollowedLog, stop: int
    ) -> tuple[CommitId, list[CommitRow], list[CommitRow]]:
        """The followed commit of round `stop`, the followed ones before it, and all others of those rounds."""
        here, index = next((c, i) for c, i in chain.behind(chain.head.commit) if i <= max(stop, chain.oldest))
        parents = parents_between(ledger, self.place.spine, stop, index)
        for _ in range(index - stop):
            here = parents.get(here, here)
        rows = rows_before(ledger, self.place.spine, stop)
        by_id, followed, parent = {row.commit: row for row in rows}, list[CommitRow](), parents.get(here)
        while parent in by_id and parent is not None:
            followed.append(by_id[parent])
            parent = by_id[parent].parent
        first = max(1, self._begins_index)
        if [row.index for row in followed] != list(range(stop - 1, first - 1, -1)):
            found = f"a ledger with a gap between rounds {first} and {stop}"
            raise StorageError(found, "all commits of the followed lineage", "peers may still bring them")
        kept = {row.commit for row in followed}
        return here, followed[::-1], [row for row in rows if row.commit not in kept]

    async def _sign(
        self,
        genesis: CommitId,
        links: Sequence[ChainLink],
        root_of: Callable[[CommitId], Root | None],
        record_of: _RecordOf,
    ) -> None:
        for link in due_milestones(self._newest_index(links[-1].unit), links):
            milestone = Milestone(genesis, await record_of(link), root_of(link.commit) or Root(b""))
            sealed = await self._offload.run(partial(seal_milestone, self.place.signer, self.place.run_id, milestone))
            await self.take_back(link.unit, link.index, sealed)
            _log.info("milestone_signed", unit=link.unit, index=link.index)


def _links_after(chain: FollowedLog, index: int) -> list[ChainLink]:
    """The links of the followed lineage after this round that are remembered, oldest first."""
    links: list[ChainLink] = []
    for commit, place in chain.behind(chain.head.commit):
        link = chain.link(commit) if place > index else None
        if link is None:
            break
        links.append(link)
    return links[::-1]


async def _record_bytes(link: ChainLink) -> bytes:
    content = link.content
    if isinstance(content, LightRecord):
        return content.raw
    if content is None:
        raise LocalProtocolError("a milestone at the genesis", "a commit")
    return encode_record(content)
