"""How a damaged ledger is found before anything of it is used.

SQLite checks the shape of its file, and not what the rows say. So the ledger holds a second list: one checksum for each row, kept by
triggers of every connection, of the tables' own definitions, too. At each opening both lists are made to agree; a row that was
changed, lost or added by anything but this code has no partner.

A whole transaction can vanish without a trace in the file: SQLite takes damaged frames at the end of its -wal for never written. So
each transaction has a number, and the last one that was acknowledged is also on disk beside the ledger, never before it is in it.
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
"""What the count's file is called: the ledger's name with this behind it."""

COUNT_ROW: Final = "acknowledged writes"
"""The name under which a ledger counts its transactions."""

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
"""What the machine is to blame for, or the caller."""


def damaged(path: Path, how: str) -> StorageError:
    """The one error for a ledger that is not what was written."""
    return StorageError(
        f"the ledger {path} is damaged ({how})",
        "the file as it was written",
        "restore a copy of the host's folder",
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite stumbled over the file's content, rather than over the machine."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _NOT_THE_FILE


# --- a checksum for each row ------------------------------------------------------------------------------------------------------


def _row_checksum(*values: object) -> bytes:
    # ascii(): tells text from bytes, and numbers exactly, in every Python alike
    return sha256(ascii(values).encode("ascii")).digest()


def _columns(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """The columns of every table that has checksums."""
    tables = [name for (name,) in db.execute(f"SELECT name FROM main.{_DEFINITIONS} WHERE type = 'table'")]
    ours = (name for name in tables if name != "checksums" and not name.startswith("sqlite_"))
    return {name: tuple(row[1] for row in db.execute(f'PRAGMA main.table_info("{name}")')) for name in sorted(ours)}


def _checksums(db: sqlite3.Connection) -> list[bytes]:
    """As the rows are now."""
    queries = {name: f"SELECT {', '.join(columns)} FROM main.{name}" for name, columns in _columns(db).items()}
    queries[_DEFINITIONS] = f"SELECT type, name, tbl_name, sql FROM main.{_DEFINITIONS}"
    return [_row_checksum(name, *row) for name, query in queries.items() for row in db.execute(query)]


def write_checksums(db: sqlite3.Connection) -> None:
    """Make the second list anew from the rows as they are: the tables are new, or have just been changed."""
    db.execute("DELETE FROM checksums")
    db.executemany("INSERT INTO checksums VALUES (?)", [(checksum,) for checksum in _checksums(db)])


def keep_checksums(db: sqlite3.Connection) -> None:
    """From here on every row that this connection writes has its checksum."""
    db.create_function(_CHECKSUM, -1, _row_checksum, deterministic=True)
    db.execute("PRAGMA recursive_triggers = ON")  # else a row that is replaced leaves its checksum behind
    for table, columns in _columns(db).items():
        old, new = (", ".join(f"{when}.{column}" for column in columns) for when in ("OLD", "NEW"))
        add = f"INSERT INTO checksums VALUES ({_CHECKSUM}('{table}', {new}));"
        drop = f"DELETE FROM checksums WHERE checksum = {_CHECKSUM}('{table}', {old});"
        for event, does in (("INSERT", add), ("DELETE", drop), ("UPDATE", drop + add)):
            db.execute(f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} BEGIN {does} END")


# --- the count of acknowledged writes ---------------------------------------------------------------------------------------------


def count_write(db: sqlite3.Connection) -> int:
    """Number the transaction that is open, as its last statement."""
    number = _count(db) + 1
    db.execute("INSERT OR REPLACE INTO kv (name, value) VALUES (?, ?)", (COUNT_ROW, b"%d" % number))
    return number


def _count(db: sqlite3.Connection) -> int:
    row = db.execute("SELECT value FROM kv WHERE name = ?", (COUNT_ROW,)).fetchone()
    return int(row[0]) if row is not None else 0


def note_acknowledged(path: Path, number: int) -> None:
    """Put the number of a transaction that is durable beside the ledger. A disk that refuses here costs only this witness."""
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
    """0 where there is no such witness, or where it cannot be read."""
    try:
        number, checksum = path.with_name(path.name + COUNT_SUFFIX).read_bytes().split()
        return int(number) if int(checksum, 16) == zlib.crc32(number) else 0
    except (OSError, ValueError):
        return 0


# --- at each opening --------------------------------------------------------------------------------------------------------------


def check_shape(db: sqlite3.Connection, path: Path) -> None:
    """Whether the file is a sound SQLite file.

    Raises:
        StorageError: it is not; the first of what is wrong is named.
    """
    ((verdict,),) = db.execute("PRAGMA integrity_check(1)").fetchall()
    if verdict != "ok":
        raise damaged(path, " ".join(str(verdict).split()))


def check_rows(db: sqlite3.Connection, path: Path) -> None:
    """Whether the rows are those that were written, and all that was acknowledged is among them.

    Raises:
        StorageError: something was changed, lost or added.
    """
    acknowledged = _acknowledged(path)  # before the rows: another process may go on writing both
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
