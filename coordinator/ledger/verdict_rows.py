"""The ledger's rows of auditors' verdicts about work that they did again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.recorded_bans import banned_peers
from coordinator.policy.audited_work_core import AuditedWork, KnownVerdict, audited_work, usual_fit
from protocol.errors import StorageError
from protocol.host.work_verdict import PERMILLE, PPM, WorkVerdict
from protocol.ids import CommitId, PeerId

MOST_VERDICTS: Final = 20_000
"""Rows that are kept. One more costs the auditor with the most rows its oldest, so nobody pushes out what others found."""

_DROP_ONE: Final = """
DELETE FROM verdicts WHERE (SELECT COUNT(*) FROM verdicts) > ? AND rowid = (SELECT MIN(rowid) FROM verdicts WHERE auditor =
    (SELECT auditor FROM verdicts GROUP BY auditor ORDER BY COUNT(*) DESC, MIN(rowid) LIMIT 1))
"""


def put_verdict(ledger: Ledger, auditor: PeerId, verdict: WorkVerdict, *, now_unix_s: int) -> None:
    """Keep a verdict. The first one of an auditor about a contribution counts. Blocks.

    Raises:
        StorageError: the ledger cannot be written; nothing was.
    """
    numbers = (verdict.gap_ppm, verdict.length_permille, now_unix_s, int(verdict.is_untold))
    with ledger.transaction() as db:
        row = (auditor, verdict.contributor, verdict.commit, *numbers)
        db.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        db.execute(_DROP_ONE, (MOST_VERDICTS,))


def verdict_rows(ledger: Ledger) -> Sequence[KnownVerdict]:
    """All verdicts, the oldest first. Blocks.

    Raises:
        StorageError: the ledger cannot be read.
    """
    columns = "auditor, contributor, commit_id, gap_ppm, length_permille, unix_s, is_untold"
    return [
        KnownVerdict(
            PeerId(str(auditor)),
            PeerId(str(contributor)),
            CommitId(_bytes(commit)),
            int(str(gap_ppm)) / PPM,
            int(str(length)) / PERMILLE,
            float(str(unix_s)),
            is_untold=bool(is_untold),
        )
        for auditor, contributor, commit, gap_ppm, length, unix_s, is_untold in ledger.rows(
            f"SELECT {columns} FROM verdicts ORDER BY rowid"
        )
    ]


def audited_in(ledger: Ledger, peers: Iterable[PeerId], strangers: Iterable[PeerId]) -> dict[PeerId, AuditedWork]:
    """The records of these peers with auditors. Verdicts of auditors that were banned count no more. Blocks.

    Args:
        strangers: those whose work says nothing about the run's usual fit; nor does that of banned peers.
    """
    banned = banned_peers(ledger)
    known, apart = [each for each in verdict_rows(ledger) if each.auditor not in banned], banned.union(strangers)
    usual = usual_fit(known, {each.contributor for each in known} - apart)
    about = dict[PeerId, list[KnownVerdict]]()
    for each in known:
        about.setdefault(each.contributor, []).append(each)
    return {peer: audited_work(about.get(peer, []), usual) for peer in peers}


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise StorageError(f"a {type(value).__name__} among the verdicts", "bytes", "restore the ledger from a copy")
    return value
