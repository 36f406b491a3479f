"""The coordinator's append-only record of the run: one SQLite file.

WAL with `synchronous=FULL`: when a method returns, its writes survive a power cut. `potluck invite` writes to the same file from
another process while the host runs; SQLite's own lock orders the two. Inside the daemon all calls go through one writer
(`LedgerWriter` in coordinator/ledger/ledger_writer.py). Damage is detected at each opening (coordinator/ledger/ledger_damage.py).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.ledger import ledger_damage
from coordinator.ledger.ledger_schema import MIGRATIONS, SCHEMA_VERSION
from coordinator.policy.admission import AdmissionDecision, InviteFacts, Verdict
from protocol.errors import MachineError, StorageError
from protocol.ids import CommitId, PeerId, Root, UnitName

LEDGER_FILE: Final = "ledger.sqlite3"
"""File name in the host's folder."""

START_RECORD: Final = "start record"
"""Key of the sealed start record."""

COUNTED_COMMITS: Final = "counted commits"
"""Key of the restriction to counted commits: their ids concatenated, empty if all commits count."""

REFUSED_COMMITS: Final = "refused commits"
"""Key of the lone commits that are not followed: their ids concatenated."""

WITHDRAWN_INVITE: Final = "withdrawn invite "
"""The beginning of the key of a withdrawn invite; the hash of its secret follows in hexadecimal. It admits nobody."""

_BUSY_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A verified commit as received."""

    commit: CommitId
    unit: UnitName
    parent: CommitId
    index: int
    certificate: bytes
    seen_unix_s: int


@dataclass(frozen=True, slots=True)
class LossPoint:
    """One point of a loss curve in nats per byte; `kind` is "heldout", "prose" or "train".

    `voices`: how many evaluators measured it, whose median `nats` is; 0 where that was not counted, as in older files.
    """

    kind: str
    index: int
    tokens: int
    nats: float
    peer: PeerId
    voices: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint whose folder is complete and durable. `path` is relative to the checkpoint folder."""

    commit: CommitId
    unit: UnitName
    index: int
    total_tokens: int
    state_root: Root
    path: str
    written_unix_s: int


@dataclass(frozen=True, slots=True)
class InviteRow:
    """An invite as it stands in the ledger, which has no copy of its secret."""

    secret_hash: bytes
    created_unix_s: int
    facts: InviteFacts


@dataclass(frozen=True, slots=True)
class Applicant:
    """An applicant for a credential, with its key and invite."""

    peer: PeerId
    public_key: bytes
    secret_hash: bytes


Decide = Callable[[InviteFacts | None, bool, bool], AdmissionDecision]
"""(invite or None, is admitted, is banned) -> decision: the pure core with the other facts bound."""

Issue = Callable[[int], bytes]
"""Serial number -> DER of a new credential."""


def _translate(error: sqlite3.Error, path: Path) -> StorageError:
    if ledger_damage.is_damage(error):
        return ledger_damage.damaged(path, str(error))
    remedy = "free some space, check that the folder is writable, or choose one on a disk that maps files, as ext4 does"
    remedy += "; nothing that was acknowledged is lost"
    return StorageError(f"the ledger {path} could not be used ({error})", "a readable and writable SQLite file", remedy)


class Ledger:
    """Blocking access to the ledger file. Made by `open_ledger`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path

    @contextlib.contextmanager
    def transaction(self, *, is_counted: bool = True) -> Iterator[sqlite3.Connection]:
        """One durable transaction: all of its writes or none. `is_counted`: as acknowledged (ledger_damage.py).

        Raises:
            StorageError: it cannot be written; nothing was.
        """
        number = None
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                before = self._db.total_changes
                yield self._db
                if is_counted and self._db.total_changes > before:
                    number = ledger_damage.count_write(self._db)
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            # A failed COMMIT (disk full) leaves the transaction open.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise _translate(error, self.path) from error
        if number is not None:
            ledger_damage.note_acknowledged(self.path, number)

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """The rows that a query finds."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _translate(error, self.path) from error

    def migrate(self) -> None:
        """Bring the file to SCHEMA_VERSION, in one transaction.

        Raises:
            MachineError: the file was written by a newer release.
            StorageError: it is damaged.
        """
        if self._version() == SCHEMA_VERSION:
            return
        with self.transaction(is_counted=False) as db:
            for migration in MIGRATIONS[self._version() :]:  # read again: another process may have been first
                for statement in filter(str.strip, migration.split(";")):
                    db.execute(statement)
            ledger_damage.write_checksums(db)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _version(self) -> int:
        version = _int(self.rows("PRAGMA user_version")[0][0])
        if version > SCHEMA_VERSION:
            raise MachineError(
                f"the ledger {self.path} has version {version}",
                f"at most {SCHEMA_VERSION}",
                "run the newer release of potluck that wrote it",
            )
        if version < 0:
            raise ledger_damage.damaged(self.path, f"version {version}")
        return version

    def put(self, name: str, value: bytes) -> None:
        """Store a named value; a later value replaces it."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (name, value))

    def put_once(self, name: str, value: bytes) -> bytes:
        """Store a value that never changes (the start record). Returns the stored value, which may be an earlier one."""
        with self.transaction() as db:
            db.execute("INSERT OR IGNORE INTO kv VALUES (?, ?)", (name, value))
        standing = self.get(name)
        return value if standing is None else standing

    def get(self, name: str) -> bytes | None:
        """A value stored by `put`, or None."""
        rows = self.rows("SELECT value FROM kv WHERE name = ?", name)
        return _bytes(rows[0][0]) if rows else None

    def add_invite(self, secret_hash: bytes, *, max_uses: int, created_unix_s: int, expires_unix_s: int) -> None:
        """Store an invite by the hash of its secret."""
        with self.transaction() as db:
            values = (secret_hash, max_uses, created_unix_s, expires_unix_s)
            db.execute("INSERT INTO invites VALUES (?, 0, ?, ?, ?)", values)

    def invite(self, secret_hash: bytes) -> InviteFacts | None:
        """The facts of an invite; None if unknown."""
        rows = self.rows("SELECT uses, max_uses, expires_unix_s FROM invites WHERE secret_hash = ?", secret_hash)
        if not rows:
            return None
        uses, max_uses, expires_unix_s = map(_int, rows[0])
        return InviteFacts(uses, max_uses, expires_unix_s, self.get(WITHDRAWN_INVITE + secret_hash.hex()) is not None)

    def invites(self) -> Sequence[InviteRow]:
        """All invites that were ever made, the newest last."""
        query = "SELECT secret_hash, created_unix_s, uses, max_uses, expires_unix_s FROM invites ORDER BY created_unix_s, rowid"
        withdrawn = {name for (name,) in self.rows("SELECT name FROM kv WHERE name LIKE ?", f"{WITHDRAWN_INVITE}%")}
        return [
            InviteRow(
                _bytes(hashed),
                _int(created),
                InviteFacts(
                    _int(uses), _int(most), _int(ends), f"{WITHDRAWN_INVITE}{_bytes(hashed).hex()}" in withdrawn
                ),
            )
            for hashed, created, uses, most, ends in self.rows(query)
        ]

    def admit(
        self, applicant: Applicant, decide: Decide, issue: Issue, *, now_unix_s: int
    ) -> tuple[AdmissionDecision, bytes]:
        """Decide on one applicant and act on it in one transaction: use the invite, add the peer, issue the credential.

        Returns:
            The decision and the credential (DER). The credential is empty after a refusal, and then nothing was written.
        """
        with self.transaction() as db:
            admitted, banned = self._standing(applicant.peer)
            junior = self.rows("SELECT peer FROM juniors WHERE peer = ?", applicant.peer)  # an invite makes it a keeper
            decision = decide(self.invite(applicant.secret_hash), admitted and not junior, banned)
            if decision.verdict is Verdict.REFUSE:
                return decision, b""
            if decision.verdict is Verdict.ADMIT_WITH_INVITE:
                db.execute("UPDATE invites SET uses = uses + 1 WHERE secret_hash = ?", (applicant.secret_hash,))
                peer_row = (applicant.peer, applicant.public_key, now_unix_s)
                db.execute("INSERT OR IGNORE INTO peers (peer, public_key, admitted_unix_s) VALUES (?, ?, ?)", peer_row)
                db.execute("DELETE FROM juniors WHERE peer = ?", (applicant.peer,))
            insert = "INSERT INTO credentials (peer, issued_unix_s, certificate) VALUES (?, ?, x'')"
            serial = db.execute(insert, (applicant.peer, now_unix_s)).lastrowid or 0
            certificate = issue(serial)
            db.execute("UPDATE credentials SET certificate = ? WHERE serial = ?", (certificate, serial))
            return decision, certificate

    def readmit(self, applicant: Applicant, certificate: bytes, *, now_unix_s: int) -> bool:
        """Add an unknown peer that holds a valid credential of this run. Returns False if it is banned."""
        with self.transaction() as db:
            admitted, banned = self._standing(applicant.peer)
            if not admitted:
                peer_row = (applicant.peer, applicant.public_key, now_unix_s)
                db.execute("INSERT INTO peers (peer, public_key, admitted_unix_s) VALUES (?, ?, ?)", peer_row)
                insert = "INSERT INTO credentials (peer, issued_unix_s, certificate) VALUES (?, ?, ?)"
                db.execute(insert, (applicant.peer, now_unix_s, certificate))
            return not banned

    def _standing(self, peer: PeerId) -> tuple[bool, bool]:
        rows = self.rows("SELECT is_banned FROM peers WHERE peer = ?", peer)
        return bool(rows), bool(rows and rows[0][0])

    def is_admitted(self, peer: PeerId) -> bool:
        """Whether the peer was admitted and is not banned."""
        admitted, banned = self._standing(peer)
        return admitted and not banned

    def is_banned(self, peer: PeerId) -> bool:
        """Whether the peer was admitted and then banned."""
        return self._standing(peer)[1]

    def peers(self) -> Sequence[PeerId]:
        """All peers that were ever admitted."""
        return [PeerId(str(peer)) for (peer,) in self.rows("SELECT peer FROM peers ORDER BY peer")]

    def ban(self, peer: PeerId, reason: str, sign: Callable[[int], bytes]) -> bytes | None:
        """Ban a peer and store the host's signed entry, `sign(number)`, in one transaction.

        Returns:
            The stored entry, which is the first one if the peer was banned already; None if it was never admitted.
        """
        with self.transaction() as db:
            if not self._standing(peer)[0]:
                return None
            standing = self.rows("SELECT entry FROM revocations WHERE peer = ? ORDER BY number", peer)
            if standing:
                return _bytes(standing[0][0])
            number = 1 + _int(self.rows("SELECT COALESCE(MAX(number), 0) FROM revocations")[0][0])
            entry = sign(number)
            _write_ban(db, peer, reason, entry)
            return entry

    def ban_again(self, peer: PeerId, public_key: bytes, reason: str, entry: bytes, *, now_unix_s: int) -> None:
        """Restore a ban that this ledger, an old copy, has lost. The peer may be unknown, too."""
        with self.transaction() as db:
            if not self.rows("SELECT number FROM revocations WHERE entry = ?", entry):
                peer_row = (peer, public_key, now_unix_s)
                db.execute("INSERT OR IGNORE INTO peers (peer, public_key, admitted_unix_s) VALUES (?, ?, ?)", peer_row)
                _write_ban(db, peer, reason, entry)

    def revocations(self) -> Sequence[bytes]:
        """The signed entries of all bans, oldest first."""
        return [_bytes(entry) for (entry,) in self.rows("SELECT entry FROM revocations ORDER BY number")]

    def add_progress(
        self, commits: Sequence[CommitRow], points: Sequence[LossPoint], replaced: Sequence[LossPoint] = ()
    ) -> None:
        """Store a report's verified commits and loss points, all or nothing. Known commits stay unchanged, and the first value at a
        place of a curve stands unless it is among the `replaced` ones, which are deleted first.
        """
        with self.transaction() as db:
            db.executemany(
                "DELETE FROM loss_points WHERE kind = ? AND round_index = ? AND tokens = ? AND peer = ?",
                [(p.kind, p.index, p.tokens, p.peer) for p in replaced],
            )
            db.executemany(
                "INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?)",
                [(r.commit, r.unit, r.parent, r.index, r.certificate, r.seen_unix_s) for r in commits],
            )
            db.executemany(
                "INSERT OR IGNORE INTO loss_points VALUES (?, ?, ?, ?, ?, ?)",
                [(p.kind, p.index, p.tokens, p.nats, p.peer, p.voices) for p in points],
            )

    def commits(self, unit: UnitName, parent: CommitId | None = None) -> Sequence[CommitRow]:
        """All commits of a unit, parents before children, or only those on one base."""
        where, values = ("", ()) if parent is None else (" AND parent = ?", (parent,))
        query = f"SELECT * FROM commits WHERE unit = ?{where} ORDER BY round_index, seen_unix_s, commit_id"
        return [_commit_row(row) for row in self.rows(query, unit, *values)]

    def newest_commit(self, unit: UnitName) -> CommitRow | None:
        """The unit's commit with the highest index; among equals the one seen last. None before the first."""
        query = "SELECT * FROM commits WHERE unit = ? ORDER BY round_index DESC, seen_unix_s DESC, commit_id LIMIT 1"
        return next((_commit_row(row) for row in self.rows(query, unit)), None)

    def loss_points(self) -> Sequence[LossPoint]:
        """All points, by tokens."""
        return [
            LossPoint(str(kind), _int(index), _int(tokens), float(str(nats)), PeerId(str(peer)), _int(voices))
            for kind, index, tokens, nats, peer, voices in self.rows(
                "SELECT * FROM loss_points ORDER BY kind, tokens, peer"
            )
        ]

    def add_checkpoint(self, row: CheckpointRow) -> None:
        """Store a checkpoint: the last step of writing one."""
        values = (row.commit, row.unit, row.index, row.total_tokens, row.state_root, row.path, row.written_unix_s)
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def drop_checkpoint(self, commit: CommitId) -> None:
        """Delete a checkpoint's row: the first step of pruning it."""
        with self.transaction() as db:
            db.execute("DELETE FROM checkpoints WHERE commit_id = ?", (commit,))

    def checkpoints(self) -> Sequence[CheckpointRow]:
        """All checkpoints, oldest first."""
        query = "SELECT * FROM checkpoints ORDER BY round_index, written_unix_s"
        return [
            CheckpointRow(
                CommitId(_bytes(c)), UnitName(str(u)), _int(i), _int(t), Root(_bytes(root)), str(path), _int(written)
            )
            for c, u, i, t, root, path, written in self.rows(query)
        ]


def _write_ban(db: sqlite3.Connection, peer: PeerId, reason: str, entry: bytes) -> None:
    db.execute("INSERT INTO revocations (peer, entry) VALUES (?, ?)", (peer, entry))
    db.execute("UPDATE peers SET is_banned = 1, ban_reason = ? WHERE peer = ?", (reason, peer))


def _commit_row(row: Sequence[object]) -> CommitRow:
    c, u, p, i, raw, seen = row
    return CommitRow(CommitId(_bytes(c)), UnitName(str(u)), CommitId(_bytes(p)), _int(i), _bytes(raw), _int(seen))


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise StorageError(f"a {type(value).__name__} in the ledger", "bytes", "restore the ledger from a copy")
    return value


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise StorageError(
            f"a {type(value).__name__} in the ledger", "a whole number", "restore the ledger from a copy"
        )
    return value


@contextlib.contextmanager
def open_ledger(path: Path) -> Iterator[Ledger]:
    """Open or create the ledger (mode 0600) and bring it to this release's version.

    Raises:
        StorageError: the file cannot be opened, is no ledger, or the disk is full.
        MachineError: the file was written by a newer release.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        # The caller ensures that one thread at a time uses the connection.
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    except OSError as error:
        raise StorageError(f"the ledger {path} could not be opened ({error.strerror})", "a writable file") from error
    except sqlite3.Error as error:
        raise _translate(error, path) from error
    try:
        try:
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                connection.execute(f"PRAGMA {pragma}")
            ledger_damage.check_shape(connection, path)
            ledger = Ledger(connection, path)
            ledger.migrate()
            ledger_damage.check_rows(connection, path)
            ledger_damage.keep_checksums(connection)
        except sqlite3.Error as error:
            raise _translate(error, path) from error
        except UnicodeDecodeError as error:  # sqlite3's own messages quote the file's bytes
            raise ledger_damage.damaged(path, "names in it are no text") from error
        yield ledger
    finally:
        connection.close()
