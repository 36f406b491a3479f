from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio

from coordinator.audits.work_verdicts import WorkVerdicts, verdict_problem
from coordinator.ledger.ledger import open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.ledger.verdict_rows import verdict_rows
from coordinator.progress.tracker import RunTracker
from protocol.errors import RefusedError, RemoteProtocolError, TemporaryError
from protocol.host.work_verdict import VERDICT_DOMAIN, WorkVerdict, encode_verdict, verdict_of
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Signer
from protocol.identity.standing import PeerStanding
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.record import CommitRecord
from tests.protocol.rounds.made_commits import signed_record
from tests.protocol.rounds.round_table import RUN_ID, Table
from tests.simulation.signing import HashVerifier
from tests.virtual import InlineOffload, VirtualClock

TABLE = Table(4)
AUDITOR, OTHER, WORKER, ABSENT = sorted(TABLE.seats)
RECORD: CommitRecord = signed_record(TABLE.genesis, [TABLE.seats[peer] for peer in (AUDITOR, OTHER, WORKER)])
COMMIT = CommitId(b"c" * 32)


def _verdict(**changes: object) -> WorkVerdict:
    entry = RECORD.contributor(WORKER)
    assert entry is not None
    verdict = verdict_of(RECORD.unit, COMMIT, WORKER, entry.root, gap=0.125, length_ratio=1.0)
    return replace(verdict, **changes)  # type: ignore[arg-type]


def _said_by(auditor: PeerId, verdict: WorkVerdict, standing: PeerStanding = PeerStanding.KEEPER) -> str:
    problem = verdict_problem(auditor, verdict, RECORD, {auditor: standing})
    return "" if problem is None else problem.one_line()


def test_a_keeper_that_was_counted_may_judge_whoever_was_counted_beside_it() -> None:
    assert _said_by(AUDITOR, _verdict()) == ""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (lambda: _said_by(AUDITOR, _verdict(), PeerStanding.STRANGER), "no keeper"),
        (lambda: _said_by(AUDITOR, _verdict(), PeerStanding.MEMBER), "no keeper"),
        (lambda: _said_by(WORKER, _verdict()), "about the own work"),
        (lambda: _said_by(ABSENT, _verdict()), "without own work"),
        (lambda: _said_by(AUDITOR, _verdict(contributor=ABSENT)), "does not count"),
        (lambda: _said_by(AUDITOR, _verdict(root=Root(b"x" * 32))), "does not count"),
        (lambda: _said_by(AUDITOR, _verdict(unit=UnitName("other"))), "does not count"),
    ],
)
def test_a_verdict_that_cannot_be_true_or_is_not_the_peers_to_give_is_refused(
    said: Callable[[], str], words: str
) -> None:
    assert words in said()


def _sealed(signer: Signer, verdict: WorkVerdict, run_id: bytes = RUN_ID) -> bytes:
    return seal(signer, VERDICT_DOMAIN, run_id, 1, NEVER_MS, encode_verdict(verdict))


async def test_the_first_verdict_of_an_auditor_about_a_contribution_is_kept(
    tmp_path: Path, autojump_clock: object
) -> None:
    signer = TABLE.seats[AUDITOR].signer
    chain = SimpleNamespace(link=lambda commit: SimpleNamespace(record=RECORD) if commit == COMMIT else None)
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        tracker = cast("RunTracker", SimpleNamespace(chain=chain))
        writer = LedgerWriter(ledger, InlineOffload())
        verdicts = WorkVerdicts(tracker, RUN_ID, writer, HashVerifier(), VirtualClock(), dict, trio.lowlevel.checkpoint)
        await verdicts.take(_sealed(signer, _verdict()))
        await verdicts.take(_sealed(signer, _verdict(gap_ppm=-500_000)))
        (kept,) = verdict_rows(ledger)
        assert (kept.auditor, kept.contributor, kept.commit) == (AUDITOR, WORKER, COMMIT)
        assert (kept.gap, kept.length_ratio) == (0.125, 1.0)
        with pytest.raises(TemporaryError, match="not known here"):
            await verdicts.take(_sealed(signer, _verdict(commit=CommitId(b"x" * 32))))
        with pytest.raises(RefusedError, match="about the own work"):
            await verdicts.take(_sealed(TABLE.seats[WORKER].signer, _verdict()))
        for forged in (_sealed(signer, _verdict(), b"y" * 32), b"\xff" * 100):
            with pytest.raises(RemoteProtocolError):
                await verdicts.take(forged)
        assert len(verdict_rows(ledger)) == 1
