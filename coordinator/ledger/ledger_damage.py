"""Detection of a damaged ledger before any of it is used.

SQLite checks the shape of its file, but not the rows' content. So the ledger has a second list, with one checksum for each row and
for each table definition, maintained by triggers in every connection. At each opening the two lists are compared. A row that was
changed, lost or added outside this code has no matching checksum.

A whole transaction can vanish without a trace in the file: SQLite treats damaged frames at the end of its -wal as never written. So
each transaction has a number, and a file beside the ledger has the last acknowledged one. It is written after the transaction is
durable.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Final

from averaging.storage.file_storage import sync_folder
from protocol.errors import StorageError

COUNT_SUFFIX: Final = ".count"
"""Suffix of the count file's name, after the ledger's name."""

COUNT_ROW: Final = "acknowledged writes"
"""Key of the ledger's own count of transactions."""

_CHECKSUM: Final = "row_checksum"
_DEFINITIONS: Final = "sqlite_schema"
_NOT_THE_FILE: Final = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISUSE,
    )
)
"""SQLite errors caused by the machine or the caller, not by the file's content."""


def damaged(path: Path, how: str) -> StorageError:
    """The error for a ledger whose content is not what was written."""
    return StorageError(
        f"the ledger {path} is damaged ({how})",
        "the file as it was written",
        "restore a copy of the host's folder",
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an SQLite error is caused by the file's content, rather than by the machine."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _NOT_THE_FILE


# --- a checksum for each row ------------------------------------------------------------------------------------------------------


def _row_checksum(*values: object) -> bytes:
    # ascii() distinguishes text from bytes and writes numbers exactly, in every Python version.
    return sha256(ascii(values).encode("ascii")).digest()


def _columns(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """The columns of every table that has checksums."""
    tables = [name for (name,) in db.execute(f"SELECT name FROM main.{_DEFINITIONS} WHERE type = 'table'")]
    ours = (name for name in tables if name != "checksums" and not name.startswith("sqlite_"))
    return {name: tuple(row[1] for row in db.execute(f'PRAGMA main.table_info("{name}")')) for name in sorted(ours)}


def _checksums(db: sqlite3.Connection) -> list[bytes]:
    """Checksums of the rows as they are now."""
    queries = {name: f"SELECT {', '.join(columns)} FROM main.{name}" for name, columns in _columns(db).items()}
    queries[_DEFINITIONS] = f"SELECT type, name, tbl_name, sql FROM main.{_DEFINITIONS}"
    return [_row_checksum(name, *row) for name, query in queries.items() for row in db.execute(query)]


def write_checksums(db: sqlite3.Connection) -> None:
    """Rebuild the checksums from the rows: the tables are new, or were just migrated."""
    db.execute("DELETE FROM checksums")
    db.executemany("INSERT INTO checksums VALUES (?)", [(checksum,) for checksum in _checksums(db)])


def keep_checksums(db: sqlite3.Connection) -> None:
    """Maintain checksums for every row that this connection writes from now on."""
    db.create_function(_CHECKSUM, -1, _row_checksum, deterministic=True)
    db.execute("PRAGMA recursive_triggers = ON")  # otherwise a replaced row leaves its checksum behind
    for table, columns in _columns(db).items():
        old, new = (", ".join(f"{when}.{column}" for column in columns) for when in ("OLD", "NEW"))
        add = f"INSERT INTO checksums VALUES ({_CHECKSUM}('{table}', {new}));"
        drop = f"DELETE FROM checksums WHERE checksum = {_CHECKSUM}('{table}', {old});"
        for event, does in (("INSERT", add), ("DELETE", drop), ("UPDATE", drop + add)):
            db.execute(f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN {does} END")


# --- the count of acknowledged writes ---------------------------------------------------------------------------------------------


def count_write(db: sqlite3.Connection) -> int:
    """Number the open transaction. Must be its last statement."""
    number = _count(db) + 1
    db.execute("INSERT OR REPLACE INTO kv (name, value) VALUES (?, ?)", (COUNT_ROW, b"%d" % number))
    return number


def _count(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM kv WHERE name = ?", (COUNT_ROW,)).fetchone()
    return int(row[0]) if row is not None else 0


def note_acknowledged(path: Path, number: int) -> None:
    """Write the number of a durable transaction to the count file. A failure is ignored: only this extra check is lost."""
    count_file = path.with_name(path.name + COUNT_SUFFIX)
    temporary = count_file.with_name(f"{count_file.name}.{os.getpid()}.unfinished")
    text = b"%d %08x\n" % (number, zlib.crc32(b"%d" % number))
    with contextlib.suppress(OSError):
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, count_file)
        sync_folder(path.parent)


def _acknowledged(path: Path) -> int:
    """The number in the count file; 0 if the file is missing or unreadable."""
    try:
        number, checksum = path.with_name(path.name + COUNT_SUFFIX).read_bytes().split()
        return int(number) if int(checksum, 16) == zlib.crc32(number) else 0
    except (OSError, ValueError):
        return 0


# --- at each opening --------------------------------------------------------------------------------------------------------------


def check_shape(db: sqlite3.Connection, path: Path) -> None:
    """Check that the file is a sound SQLite file.

    Raises:
        StorageError: it is not; names the first defect.
    """
    ((verdict,),) = db.execute("PRAGMA integrity_check(1)").fetchall()
    if verdict != "ok":
        raise damaged(path, " ".join(str(verdict).split()))


def check_rows(db: sqlite3.Connection, path: Path) -> None:
    """Check that the rows are those that were written, and that no acknowledged write is missing.

    Raises:
        StorageError: a row was changed, lost or added.
    """
    acknowledged = _acknowledged(path)  # read before the rows, since another process may write both meanwhile
    db.execute("BEGIN")
    try:
        written = {row[0] for row in db.execute("SELECT checksum FROM main.checksums")}
        present = _checksums(db)
        strange = len(written.symmetric_difference(present))
        if strange or len(present) != len(written):
            raise damaged(path, f"{strange or 1} of {len(present)} rows are not as they were written")
        count = _count(db)
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    if count < acknowledged:
        raise StorageError(
            f"the ledger {path} is damaged, or an old copy: "
            f"{acknowledged - count} of {acknowledged} acknowledged writes are missing",
            "the file as it was written",
            f"restore a copy of the host's folder; to go on from an old copy of the ledger alone, delete {path.name}{COUNT_SUFFIX}",
        )
