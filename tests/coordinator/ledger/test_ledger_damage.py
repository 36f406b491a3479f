"""A damaged ledger is refused in one line before anything of it is used; one that is not is never refused."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from coordinator.ledger.ledger import LEDGER_FILE, CheckpointRow, CommitRow, Ledger, LossPoint, open_ledger
from coordinator.ledger.ledger_damage import COUNT_SUFFIX
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId, Root, UnitName
from tests.benchmarks.mutated_ledger import measure_ledger

UNIT = UnitName("fragment-0")
COMMIT = CommitId(b"c" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed ledger with a row of each kind, replaced, changed and deleted ones among them."""
    path = tmp_path / LEDGER_FILE
    with open_ledger(path) as ledger:
        _fill(ledger)
    return path


def _fill(ledger: Ledger) -> None:
    ledger.put("port", b"1")
    ledger.put("port", b"2")
    ledger.put_once("start record", "größer".encode())
    ledger.put_once("start record", b"another")
    ledger.add_invite(b"s" * 32, max_uses=2, created_unix_s=1, expires_unix_s=9)
    points = [LossPoint("train", 1, 600, nats, PeerId("")) for nats in (3, 2.5)]
    ledger.add_progress([CommitRow(COMMIT, UNIT, CommitId(b"p" * 32), 1, b"", 7)] * 2, points)
    for name in ("old", "new"):
        ledger.add_checkpoint(CheckpointRow(COMMIT, UNIT, 1, 600, Root(b"r" * 32), name, 8))
    ledger.drop_checkpoint(COMMIT)
    ledger.add_checkpoint(CheckpointRow(COMMIT, UNIT, 1, 600, Root(b"r" * 32), "checkpoint ä", 8))


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(statement)
    connection.commit()
    connection.close()


def _open(path: Path) -> None:
    with open_ledger(path):
        pass


async def test_every_mutation_is_refused_or_changes_no_row(tmp_path: Path, autojump_clock: object) -> None:
    outcomes = await measure_ledger(60, random.Random(5), tmp_path)
    assert [one for one in outcomes if not one.is_caught] == []
    assert [one for one in outcomes if one.lines is not None and not one.is_named] == []
    assert {one.verdict for one in outcomes} == {"refused", "same"}


def test_whatever_is_written_is_taken_again_and_again(path: Path) -> None:
    for number in range(3):
        with open_ledger(path) as ledger, open_ledger(path) as other:
            other.put("port", b"%d" % number)
            ledger.put("port", b"9")
            assert ledger.loss_points()[0].nats == 3.0
            assert ledger.checkpoints()[0].path == "checkpoint ä"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE kv SET value = x'33' WHERE name = 'port'",
        "UPDATE loss_points SET nats = 3.0000000000000004",
        "DELETE FROM commits",
        "INSERT INTO kv VALUES ('more', x'00')",
        "DELETE FROM checksums WHERE checksum = (SELECT min(checksum) FROM checksums)",
        "DELETE FROM checksums",
        "UPDATE sqlite_master SET sql = replace(sql, 'DEFAULT 0', 'DEFAULT 1') WHERE name = 'peers'",
    ],
)
def test_rows_and_definitions_that_something_else_wrote_are_damage(path: Path, statement: str) -> None:
    _execute(path, statement)
    with pytest.raises(StorageError, match=r"ledger\.sqlite3 is damaged .*rows are not as they were written"):
        _open(path)


def test_a_definition_that_is_no_text_is_damage(path: Path) -> None:
    data = path.read_bytes()
    for name, text in (
        (b"indexcommits_by_parent", b"indexcommits_b\xde_parent"),
        (b"seen_unix_s INTEGER", b"seen_unix_s INTE\xc7ER"),
    ):
        assert name in data
        path.write_bytes(data.replace(name, text))
        with pytest.raises(StorageError, match=r"ledger\.sqlite3 is damaged"):
            _open(path)


def test_a_version_that_no_release_writes_is_damage(path: Path) -> None:
    for version in (-5, 0, 1):
        _execute(path, f"PRAGMA user_version = {version}")
        with pytest.raises(StorageError, match="is damaged"):
            _open(path)


@pytest.mark.parametrize("lost", ["-wal cut", "-wal gone", "older file"])
def test_writes_that_were_acknowledged_and_are_gone_are_missed(path: Path, tmp_path: Path, lost: str) -> None:
    older = path.read_bytes()
    copy = tmp_path / "copy"
    copy.mkdir()
    with open_ledger(path) as ledger:
        ledger.put("one", b"1")
        ledger.put("two", b"2")
        for name in (LEDGER_FILE, LEDGER_FILE + "-wal", LEDGER_FILE + COUNT_SUFFIX):
            shutil.copy(tmp_path / name, copy / name)
    wal = copy / (LEDGER_FILE + "-wal")
    if lost == "-wal cut":
        wal.write_bytes(wal.read_bytes()[:-5])
    else:
        wal.unlink()
    if lost == "older file":
        (copy / LEDGER_FILE).write_bytes(older)
    with pytest.raises(StorageError, match=r"[12] of 1[0-9] acknowledged writes are missing"):
        _open(copy / LEDGER_FILE)


@pytest.mark.parametrize("text", [None, b"", b"900 00000000\n", b"\xff"])
def test_without_a_readable_count_the_rows_alone_are_the_truth(path: Path, text: bytes | None) -> None:
    count_file = path.with_name(path.name + COUNT_SUFFIX)
    count_file.unlink()
    if text is not None:
        count_file.write_bytes(text)
    with open_ledger(path) as ledger:
        ledger.put("port", b"3")
    assert count_file.read_bytes() > b"1"
    _open(path)


def test_a_kill_between_a_write_and_its_count_is_no_damage(path: Path) -> None:
    count_file = path.with_name(path.name + COUNT_SUFFIX)
    before = count_file.read_bytes()
    with open_ledger(path) as ledger:
        ledger.put("port", b"3")
    count_file.write_bytes(before)
    with open_ledger(path) as ledger:
        assert ledger.get("port") == b"3"


def test_a_refused_newcomer_costs_no_write(path: Path) -> None:
    count_file = path.with_name(path.name + COUNT_SUFFIX)
    before = count_file.read_bytes()
    with open_ledger(path) as ledger:
        assert not ledger.ban(PeerId("nobody"), "never seen", lambda number: b"")
    assert count_file.read_bytes() == before
