"""Commits that peers reported and nobody has sent, commits in the ledger without those before them, and commits that are refused."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from coordinator.ledger.ledger import CommitRow
from coordinator.progress.chain_log import MAX_ON_BASE, Accepted, ChainLog, Refused
from coordinator.progress.run_view import MissingCommits, missed
from protocol.errors import RemoteProtocolError
from protocol.host.calls import NO_COMMIT
from protocol.host.reports import PeerReport
from protocol.ids import CommitId, PeerId

_log = structlog.get_logger()


class MissingLog:
    """The missing commits of one run. They are remembered even after the peer that reported them is gone."""

    def __init__(self) -> None:
        self._missing: dict[PeerId, MissingCommits] = {}
        self._unlinked: list[MissingCommits] = []

    def shown(self, now_s: float) -> tuple[MissingCommits, ...]:
        """Those that are worth showing."""
        return (*self._unlinked, *missed(self._missing, now_s))

    def note(self, peer: PeerId, report: PeerReport, chain: ChainLog, accepted: Accepted, now_s: float) -> None:
        """Remember a head that is unproven after this report. Forget heads that are known now."""
        if report.head == NO_COMMIT or chain.knows(report.head):
            self._missing.pop(peer, None)
        else:
            old = self._missing.get(peer)
            since = old.since_s if old else now_s
            heard = now_s if accepted.new or old is None else old.heard_s
            self._missing[peer] = MissingCommits(
                peer, report.head, report.index, accepted.want_from_index, since, heard
            )
        if accepted.new:
            self._missing = {p: m for p, m in self._missing.items() if not chain.knows(m.head)}
            self._unlinked = [m for m in self._unlinked if not chain.knows(m.head)]

    def note_unlinked(self, unlinked: Sequence[CommitId], rows: Sequence[CommitRow], now_s: float) -> None:
        """Note commits in the ledger whose ancestors are missing, one entry for each end of such a piece."""
        wanted = set(unlinked) - {row.parent for row in rows}
        self._unlinked = [
            MissingCommits(PeerId(""), r.commit, r.index, 0, now_s, now_s) for r in rows if r.commit in wanted
        ]
        if unlinked:
            _log.warning("ledger_has_gaps", unlinked=len(unlinked), reason="commits without those before them")


class RefusedLog:
    """Commits beyond the limit on their base. Each limit that is reached is logged once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def check(self, peer: PeerId, refused: Sequence[Refused]) -> None:
        """Accept a peer that only forwards such commits, without them.

        Raises:
            RemoteProtocolError: this peer made one of them.
        """
        for each in refused:
            if each.found not in self._logged:
                self._logged.add(each.found)
                _log.warning("commit_refused", reason=f"{each.found} are recorded already, and no more are taken")
            if peer in each.members:
                raise RemoteProtocolError(
                    f"one more beside {each.found}",
                    f"at most {MAX_ON_BASE}",
                    "start this peer again; should that not help, give it a fresh --state-dir",
                )
