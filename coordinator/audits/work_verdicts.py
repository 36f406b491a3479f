"""Takes auditors' signed verdicts about work that they did again, and keeps them in the ledger. The door judges by them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.ledger.verdict_rows import put_verdict
from protocol.errors import RefusedError, TemporaryError
from protocol.host.work_verdict import VERDICT_DOMAIN, WorkVerdict, decode_verdict
from protocol.identity.envelope import open_envelope
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, RunId, short
from protocol.rounds.messages.record import CommitRecord

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.tracker import RunTracker
    from protocol.identity.identity import Verifier


def verdict_problem(
    auditor: PeerId, verdict: WorkVerdict, record: CommitRecord, standings: Mapping[PeerId, PeerStanding]
) -> RefusedError | None:
    """Why a verdict cannot be true of a record, or is not this peer's to give; None where it may be kept. Pure.

    Args:
        standings: of the peers that are no keepers.
    """
    if not standings.get(auditor, PeerStanding.KEEPER).may_vote:  # a crowd of newcomers could promote one another
        return RefusedError(f"a verdict of {peer_name(auditor)}, no keeper", "one of a keeper")
    if auditor == verdict.contributor:
        return RefusedError("a verdict about the own work", "one about another's")
    if record.contributor(auditor) is None:
        return RefusedError("a verdict on a round without own work", "one on a round in which the auditor was counted")
    entry = record.contributor(verdict.contributor)
    if entry is None or entry.root != verdict.root or record.unit != verdict.unit:
        found = f"a verdict about work of {peer_name(verdict.contributor)} that {short(verdict.commit)} does not count"
        return RefusedError(found, "a contribution that the commit counts")
    return None


@dataclass(frozen=True)
class WorkVerdicts:
    """The verdicts of one run. `standings` tells those of peers that are no keepers, as they are now; `changed` is called after each
    verdict that is kept.
    """

    tracker: RunTracker
    run_id: RunId
    ledger: LedgerWriter
    verifier: Verifier
    clock: Clock
    standings: Callable[[], Mapping[PeerId, PeerStanding]]
    changed: Callable[[], Awaitable[None]]

    async def take(self, sealed: bytes) -> None:
        """Take a verdict that an admitted peer signed. A known one changes nothing.

        Raises:
            RefusedError, RemoteProtocolError: it is forged, or says what cannot be, or is not this peer's to give.
            TemporaryError: the commit is not known here yet.
            StorageError: the ledger refused; the peer will bring it again.
        """
        envelope = open_envelope(
            sealed, verifier=self.verifier, domain=VERDICT_DOMAIN, run_id=self.run_id, now_unix_ms=None
        )
        verdict, chain = decode_verdict(envelope.payload), self.tracker.chain
        link = chain.link(verdict.commit) if chain is not None else None
        if link is None or link.record is None:
            found = f"a verdict on commit {short(verdict.commit)}, which is not known here"
            raise TemporaryError(found, "a commit of the run", "later")
        problem = verdict_problem(envelope.sender, verdict, link.record, self.standings())
        if problem is not None:
            raise problem
        now_unix_s = int(self.clock.unix_s())
        await self.ledger.run(lambda ledger: put_verdict(ledger, envelope.sender, verdict, now_unix_s=now_unix_s))
        await self.changed()
