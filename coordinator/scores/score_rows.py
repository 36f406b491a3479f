"""Scores in the ledger: the envelopes that peers signed, as they came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId

if TYPE_CHECKING:
    from coordinator.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """One score: of a part of a task, about a commit. `envelope` is what the peer signed."""

    task: str
    part: int
    index: int
    commit: CommitId
    total_tokens: int
    peer: PeerId
    envelope: bytes


def put_score(ledger: Ledger, row: ScoreRow) -> None:
    """Store a score, in the place of an earlier one of the same part and commit. Blocks.

    Raises:
        StorageError: the ledger cannot be written; nothing was.
    """
    values = (row.task, row.part, row.index, row.commit, row.total_tokens, row.peer, row.envelope)
    with ledger.transaction() as db:
        db.execute("DELETE FROM scores WHERE task = ? AND part = ? AND commit_id = ?", (row.task, row.part, row.commit))
        db.execute("INSERT INTO scores VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def score_rows(ledger: Ledger) -> Sequence[ScoreRow]:
    """All scores, by rounds. Blocks.

    Raises:
        StorageError: the ledger cannot be read.
    """
    query = "SELECT * FROM scores ORDER BY round_index, task, part, commit_id"
    return [
        ScoreRow(
            str(task),
            int(str(part)),
            int(str(index)),
            CommitId(_bytes(commit)),
            int(str(tokens)),
            PeerId(str(peer)),
            _bytes(envelope),
        )
        for task, part, index, commit, tokens, peer, envelope in ledger.rows(query)
    ]


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise StorageError(f"a {type(value).__name__} among the scores", "bytes", "restore the ledger from a copy")
    return value
