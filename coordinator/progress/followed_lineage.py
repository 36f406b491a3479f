"""Decides again which lineages count, by where live peers stand, and keeps the decisions in the ledger.

The rules are in live_lineages.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from coordinator.ledger.ledger import COUNTED_COMMITS, REFUSED_COMMITS
from coordinator.progress.live_lineages import (
    LiveLineages,
    PeerHeads,
    Seen,
    looked_at,
    of_bytes,
    restored,
    to_bytes,
)
from protocol.errors import PotluckError
from protocol.host.calls import NO_COMMIT
from protocol.ids import CommitId, PeerId, short

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.chain_log import ChainLog

_log = structlog.get_logger()


class FollowedLineage:
    """The positions of live peers, and what follows from them for the host's log of commits."""

    def __init__(self, ledger: LedgerWriter, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._stood_on = LiveLineages()
        self._began_s: float | None = None

    def restore(self, chain: ChainLog, counted: bytes, refused: bytes, seen: Seen) -> None:
        """Take the decisions that an earlier process of the host kept. `counted`, `refused`: as in the ledger."""
        chain.count(frozenset(), of_bytes(refused) - {chain.tree.root})
        commits = chain.with_later(of_bytes(counted))
        self._stood_on = restored(chain.tree, commits, self._clock.monotonic_s(), seen)
        chain.count(self._stood_on.counted)

    def heads(self, reported: Mapping[PeerId, CommitId], patience_s: float) -> PeerHeads:
        """The reported heads of live peers. A host that has just started has not heard all of them: they have `patience_s`."""
        now_s = self._clock.monotonic_s()
        self._began_s = now_s if self._began_s is None else self._began_s
        known = {peer: head for peer, head in reported.items() if head != NO_COMMIT}
        return PeerHeads(known, now_s - self._began_s >= patience_s)

    async def keep_refused(self, chain: ChainLog, refused: frozenset[CommitId]) -> None:
        """Store which lone commits are not followed, before that counts.

        Raises:
            StorageError: the ledger refused.
        """
        if refused == chain.refused:
            return
        await self._ledger.run(lambda ledger: ledger.put(REFUSED_COMMITS, to_bytes(refused)))
        for commit in refused - chain.refused:
            reason = (
                "it has no quorum, and most voters of its base that are heard stand elsewhere, or are still to be heard"
            )
            _log.warning("lone_not_followed", commit=short(commit), reason=reason)

    async def look(self, chain: ChainLog, reported: Mapping[PeerId, CommitId], patience_s: float) -> bool:
        """Decide again, about once a second. Returns whether the head moved. If the ledger refuses, nothing changes before it takes
        the decision at a later call.
        """
        heads, before, has_moved = self.heads(reported, patience_s), self._stood_on, False
        refused = chain.grown((), heads).refused
        try:
            await self.keep_refused(chain, refused)
            has_moved = refused != chain.refused and chain.count(before.counted, refused)
            known = frozenset(heads.of_peer.values())
            looked = looked_at(before, chain.tree, known, self._clock.monotonic_s())
            if looked.counted != before.counted:
                await self._ledger.run(lambda ledger: ledger.put(COUNTED_COMMITS, to_bytes(looked.counted)))
        except PotluckError as error:
            _log.warning("lineage_not_changed", reason=error.one_line())
            return has_moved
        self._stood_on = looked
        if looked.counted != before.counted and chain.count(looked.counted):
            has_moved = True
        if has_moved:
            _log.warning("lineage_changed", index=chain.head.index, reason="where live peers stand has changed")
        return has_moved
