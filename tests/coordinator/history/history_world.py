"""A ledger and a log of commits of one made run, with the history that is kept of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.history import milestone_core, run_history
from coordinator.history.run_history import HistoryPlace, RunHistory
from coordinator.ledger.ledger import CommitRow, Ledger, LossPoint, open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.progress import chain_log
from coordinator.progress.chain_log import ChainLog
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage import lineage
from protocol.rounds.lineage.milestones import SignedMilestone, open_milestone
from protocol.rounds.lineage.record_rules import SignatureCheck
from tests.coordinator.chain_world import HOST, RUN_ID, UNIT, VERIFIER, Chain
from tests.virtual import InlineOffload

EVERY, DEPTH = 4, 8


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A milestone in 4 commits, 2 settle it; 8 commits behind the head are remembered, and 4 are archived together."""
    for name, value in (("MILESTONE_EVERY", EVERY), ("SETTLED", 2), ("MAX_DEPTH", DEPTH)):
        monkeypatch.setattr(milestone_core, name, value)
    monkeypatch.setattr(run_history, "BLOCK_ROUNDS", EVERY)
    for module in (lineage, chain_log):
        monkeypatch.setattr(module, "MAX_DEPTH", DEPTH)
        monkeypatch.setattr(module, "MANY_AT_ONCE", 2)


@dataclass
class HistoryWorld:
    """`look` is what the host does once a second."""

    folder: Path
    ledger: Ledger
    writer: LedgerWriter
    history: RunHistory
    log: ChainLog

    def take(self, chain: Chain, certificates: Sequence[bytes] | None = None) -> None:
        """Commits come, one at a time, with a training loss of each."""
        for raw in chain.certificates if certificates is None else certificates:
            accepted = self.log.verify([raw])
            rows = [CommitRow(v.link.commit, UNIT, v.parent, v.link.index, v.certificate, 9) for v in accepted.new]
            points = [LossPoint("train", row.index, 100 * row.index, 1.0 * row.index, PeerId("")) for row in rows]
            self.ledger.add_progress(rows, points)
            self.log.add(accepted.new)

    async def look(self, times: int = 1) -> None:
        for _ in range(times):
            await self.history.look(self.log)

    def opened(self, sealed: bytes) -> SignedMilestone:
        check = SignatureCheck(VERIFIER, RUN_ID)
        genesis = self.log.genesis.commit
        return open_milestone(sealed, check=check, host_public_key=HOST.public_key, genesis=genesis)

    def indices(self, sealed: Sequence[bytes]) -> list[int]:
        return [self.opened(each).link.index for each in sealed]


@contextmanager
def open_history(folder: Path, chain: Chain, spine: UnitName = UNIT) -> Iterator[HistoryWorld]:
    """The history in a folder; open it again for a restart. Call `restore` of the history."""
    with open_ledger(folder / "ledger.sqlite3") as ledger:
        writer = LedgerWriter(ledger, InlineOffload())
        place = HistoryPlace(RUN_ID, HOST, VERIFIER, spine, folder / "archive")
        history = RunHistory(place, writer, InlineOffload())
        yield HistoryWorld(folder, ledger, writer, history, ChainLog(chain.genesis, RUN_ID, VERIFIER))
