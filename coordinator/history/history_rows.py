"""The history of a run in the ledger: signed milestones, packed rounds of the far past, and the commit at which the rest begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.history.past_rounds import PastRound, pack, thinned, unpack
from coordinator.ledger.ledger import CommitRow, Ledger, LossPoint
from protocol.errors import StorageError
from protocol.ids import HASH_BYTES, CommitId, UnitName
from protocol.rounds.messages.wire import decode_certificate, decode_record

_BEGINS: Final = "commits begin "
"""Beginning of the key of the oldest commit of a unit that is still among the ledger's commits; the unit's name follows."""


@dataclass(frozen=True, slots=True)
class PastBlock:
    """Rounds without a gap, oldest first, and the file with their certificates. Its name is relative to the archive's folder."""

    unit: UnitName
    rounds: tuple[PastRound, ...]
    file: str
    sha256: bytes


def milestones(ledger: Ledger) -> Sequence[tuple[UnitName, int, bytes]]:
    """Unit, round and envelope of all milestones, oldest first."""
    rows = ledger.rows("SELECT unit, round_index, sealed FROM milestones ORDER BY unit, round_index")
    return [(UnitName(str(unit)), int(str(index)), _bytes(sealed)) for unit, index, sealed in rows]


def put_milestone(ledger: Ledger, unit: UnitName, index: int, sealed: bytes) -> bytes:
    """Store a milestone, once for ever. Returns the stored one, which may be an earlier one of the same round."""
    with ledger.transaction() as db:
        db.execute("INSERT OR IGNORE INTO milestones VALUES (?, ?, ?)", (unit, index, sealed))
    rows = ledger.rows("SELECT sealed FROM milestones WHERE unit = ? AND round_index = ?", unit, index)
    return _bytes(rows[0][0])


def certificate_of(ledger: Ledger, commit: CommitId) -> bytes | None:
    """The certificate of a commit that is among the ledger's commits."""
    rows = ledger.rows("SELECT certificate FROM commits WHERE commit_id = ?", commit)
    return _bytes(rows[0][0]) if rows else None


def begins_at(ledger: Ledger, unit: UnitName) -> CommitId | None:
    """The commit at which the ledger's commits of a unit begin; None: at the start of the run."""
    value = ledger.get(_BEGINS + unit)
    return CommitId(value) if value is not None and len(value) == HASH_BYTES else None


def put_begins(ledger: Ledger, row: CommitRow) -> None:
    """The commits of a unit begin at this one from now on, which does not follow those before."""
    ledger.add_progress([row], [])
    ledger.put(_BEGINS + row.unit, row.commit)


def rows_before(ledger: Ledger, unit: UnitName, index: int) -> list[CommitRow]:
    """The commits of earlier rounds than this one, parents before children."""
    query = "SELECT * FROM commits WHERE unit = ? AND round_index < ? ORDER BY round_index, seen_unix_s, commit_id"
    return [
        CommitRow(
            CommitId(_bytes(commit)),
            UnitName(str(name)),
            CommitId(_bytes(parent)),
            int(str(place)),
            _bytes(raw),
            int(str(seen)),
        )
        for commit, name, parent, place, raw, seen in ledger.rows(query, unit, index)
    ]


def parents_between(ledger: Ledger, unit: UnitName, first: int, last: int) -> dict[CommitId, CommitId]:
    """The parent of each commit of these rounds."""
    query = "SELECT commit_id, parent FROM commits WHERE unit = ? AND round_index BETWEEN ? AND ?"
    found = ledger.rows(query, unit, first, last)
    return {CommitId(_bytes(commit)): CommitId(_bytes(parent)) for commit, parent in found}


def past_of(rows: Sequence[CommitRow], losses: Sequence[LossPoint]) -> tuple[PastRound, ...]:
    """The small rows of these commits. Of several losses of a round the first stands, as on the page."""
    measured: dict[tuple[str, int], float] = {}
    for point in losses:
        measured.setdefault((point.kind, point.index), point.nats)
    rounds = []
    for row in rows:
        record = decode_record(decode_certificate(row.certificate).record)
        nats = (measured.get(("heldout", row.index)), measured.get(("train", row.index)))
        members = len(record.contributors)
        rounds.append(PastRound(row.index, row.commit, record.total_tokens, row.seen_unix_s, members, *nats))
    return tuple(rounds)


def settle(ledger: Ledger, block: PastBlock, begins: CommitId, stop_index: int) -> None:
    """Move a block out of the ledger's commits, in one transaction: its rounds are packed, commits before `stop_index` are deleted,
    and `begins` is the oldest one from then on. Losses of the far past are thinned out.

    Raises:
        StorageError: the ledger cannot be written; nothing was.
    """
    points = ledger.loss_points()
    kept = set(thinned(points, stop_index))
    doomed = [(p.kind, p.index, p.tokens, p.peer) for p in points if p not in kept]
    first, last = block.rounds[0].index, block.rounds[-1].index
    with ledger.transaction() as db:
        values = (block.unit, first, last, pack(block.rounds), block.file, block.sha256)
        db.execute("INSERT OR REPLACE INTO history VALUES (?, ?, ?, ?, ?, ?)", values)
        db.execute("DELETE FROM commits WHERE unit = ? AND round_index < ?", (block.unit, stop_index))
        db.executemany("DELETE FROM loss_points WHERE kind = ? AND round_index = ? AND tokens = ? AND peer = ?", doomed)
        db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (_BEGINS + block.unit, begins))


def past_blocks(ledger: Ledger, unit: UnitName) -> Iterator[PastBlock]:
    """The blocks of a unit, oldest first.

    Raises:
        StorageError: the ledger cannot be read, or a block is damaged.
    """
    query = "SELECT first_index, rounds, file, sha256 FROM history WHERE unit = ? ORDER BY first_index"
    for first, packed, file, sha256 in ledger.rows(query, unit):
        rounds = unpack(_bytes(packed), int(str(first)))
        yield PastBlock(unit, tuple(rounds), str(file), _bytes(sha256))


def archived_units(ledger: Ledger) -> tuple[UnitName, ...]:
    """The units of which the ledger has blocks, by name."""
    return tuple(UnitName(str(unit)) for (unit,) in ledger.rows("SELECT DISTINCT unit FROM history ORDER BY unit"))


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise StorageError(f"a {type(value).__name__} in the ledger", "bytes", "restore the ledger from a copy")
    return value
