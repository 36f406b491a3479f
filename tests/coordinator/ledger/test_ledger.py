"""The ledger: what it remembers, what it refuses, and what a crash leaves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.ledger import (
    Applicant,
    CheckpointRow,
    CommitRow,
    Ledger,
    LossPoint,
    open_ledger,
)
from coordinator.ledger.ledger_schema import MIGRATIONS, SCHEMA_VERSION
from coordinator.ledger.run_memory import Credits, EventRow, HeardRow, RunMemory, remember, remembered
from coordinator.policy.admission import AdmissionDecision, InviteFacts, Verdict
from protocol.errors import MachineError, RefusedError, StorageError
from protocol.identity.chosen_name import ChosenName
from protocol.ids import CommitId, PeerId, Root, UnitName

UNIT = UnitName("fragment-0")
WHO = Applicant(PeerId("peer"), b"k" * 32, b"s" * 32)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
        yield ledger


def with_invite(invite: InviteFacts | None, admitted: bool, banned: bool) -> AdmissionDecision:
    if banned:
        return AdmissionDecision(Verdict.REFUSE, "banned", RefusedError("banned"))
    if admitted:
        return AdmissionDecision(Verdict.ADMIT_AGAIN, "known")
    if invite is None or invite.uses >= invite.max_uses:
        return AdmissionDecision(Verdict.REFUSE, "no invite", RefusedError("no invite"))
    return AdmissionDecision(Verdict.ADMIT_WITH_INVITE, "invited")


def invite(ledger: Ledger) -> None:
    ledger.add_invite(WHO.secret_hash, max_uses=1, created_unix_s=0, expires_unix_s=100)


def test_admission_burns_the_invite_and_keeps_the_credential(ledger: Ledger) -> None:
    invite(ledger)
    decision, credential = ledger.admit(WHO, with_invite, lambda serial: b"serial %d" % serial, now_unix_s=5)
    assert (decision.verdict, credential) == (Verdict.ADMIT_WITH_INVITE, b"serial 1")
    assert ledger.invite(WHO.secret_hash) == InviteFacts(1, 1, 100)
    assert ledger.is_admitted(WHO.peer)


def test_second_peer_with_a_used_invite_is_refused_and_nothing_is_written(ledger: Ledger) -> None:
    invite(ledger)
    ledger.admit(WHO, with_invite, lambda _: b"x", now_unix_s=5)
    other = Applicant(PeerId("other"), b"o" * 32, WHO.secret_hash)
    decision, credential = ledger.admit(other, with_invite, lambda _: b"x", now_unix_s=6)
    assert (decision.verdict, credential) == (Verdict.REFUSE, b"")
    assert not ledger.is_admitted(other.peer)


def test_same_peer_is_admitted_again_with_a_new_serial(ledger: Ledger) -> None:
    invite(ledger)
    serials = [ledger.admit(WHO, with_invite, lambda n: b"%d" % n, now_unix_s=5)[1] for _ in range(2)]
    assert serials == [b"1", b"2"]


def test_a_failing_issuer_leaves_the_invite_unburned(ledger: Ledger) -> None:
    invite(ledger)

    def refuse(_serial: int) -> bytes:
        raise RefusedError("the request is malformed")

    with pytest.raises(RefusedError):
        ledger.admit(WHO, with_invite, refuse, now_unix_s=5)
    assert ledger.invite(WHO.secret_hash) == InviteFacts(0, 1, 100)
    assert not ledger.is_admitted(WHO.peer)


def test_banned_peer_is_no_longer_admitted(ledger: Ledger) -> None:
    invite(ledger)
    ledger.admit(WHO, with_invite, lambda _: b"x", now_unix_s=5)
    assert ledger.ban(WHO.peer, "equivocation", sign) == b"entry 1"
    assert (ledger.is_admitted(WHO.peer), ledger.is_banned(WHO.peer)) == (False, True)
    assert ledger.ban(PeerId("nobody"), "never seen", sign) is None
    assert not ledger.is_banned(PeerId("nobody"))


def sign(number: int) -> bytes:
    return b"entry %d" % number


def test_bans_are_numbered_kept_with_their_entries_and_never_signed_twice(tmp_path: Path) -> None:
    path, peers = tmp_path / "ledger.sqlite3", [PeerId("one"), PeerId("two")]
    with open_ledger(path) as ledger:
        ledger.add_invite(b"s" * 32, max_uses=2, created_unix_s=0, expires_unix_s=100)
        for peer in peers:
            ledger.admit(Applicant(peer, b"k" * 32, b"s" * 32), with_invite, lambda _: b"x", now_unix_s=5)
        assert ledger.peers() == peers
        assert [ledger.ban(peer, "why", sign) for peer in reversed(peers)] == [b"entry 1", b"entry 2"]
        assert ledger.ban(peers[1], "again", sign) == b"entry 1"
    with open_ledger(path) as ledger:
        assert ledger.revocations() == [b"entry 1", b"entry 2"]


def test_a_ban_that_cannot_be_signed_is_no_ban(ledger: Ledger) -> None:
    invite(ledger)
    ledger.admit(WHO, with_invite, lambda _: b"x", now_unix_s=5)

    def refuse(_number: int) -> bytes:
        raise RefusedError("a reason that cannot be kept")

    with pytest.raises(RefusedError):
        ledger.ban(WHO.peer, "why", refuse)
    assert ledger.is_admitted(WHO.peer)
    assert ledger.revocations() == []


def test_a_ledger_from_before_bans_were_signed_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path) as ledger:
        ledger.put("port", b"1")
    with sqlite3.connect(path) as db:
        later = ("revocations", "checksums", "events", "heard", "credits", "chosen_names", "scores")
        for table in (*later, "milestones", "history", "juniors", "work", "verdicts"):
            db.execute(f"DROP TABLE {table}")
        db.execute("ALTER TABLE loss_points DROP COLUMN voices")
        db.execute("PRAGMA user_version = 1")
    db.close()
    with open_ledger(path) as ledger:
        assert (ledger.get("port"), ledger.revocations()) == (b"1", [])


def test_start_record_is_written_once(ledger: Ledger) -> None:
    assert ledger.put_once("start record", b"first") == b"first"
    assert ledger.put_once("start record", b"second") == b"first"
    ledger.put("port", b"1")
    ledger.put("port", b"2")
    assert (ledger.get("port"), ledger.get("absent")) == (b"2", None)


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    row = CommitRow(CommitId(b"c" * 32), UNIT, CommitId(b"p" * 32), 1, b"certificate", 7)
    point = LossPoint("heldout", 1, 600, 2.5, PeerId("peer"), 3)
    checkpoint = CheckpointRow(row.commit, UNIT, 1, 600, Root(b"r" * 32), "00000001-c", 8)
    with open_ledger(path) as ledger:
        ledger.add_progress([row, row], [point, point])
        ledger.add_progress([], [])
        ledger.add_checkpoint(checkpoint)
        event, heard = EventRow(7, 70, "peer", "brisk-lentil came", "peer"), HeardRow(PeerId("peer"), 69, "here")
        remember(ledger, [event], [heard], {heard.peer: ChosenName("anna", "oak")})
    with open_ledger(path) as ledger:
        assert list(ledger.commits(UNIT)) == [row]
        assert remembered(ledger) == RunMemory([event], [heard], {heard.peer: ChosenName("anna", "oak")}, Credits())
        assert list(ledger.loss_points()) == [point]
        assert list(ledger.checkpoints()) == [checkpoint]
        ledger.drop_checkpoint(checkpoint.commit)
        assert list(ledger.checkpoints()) == []
    assert path.stat().st_mode & 0o077 == 0


def test_second_process_adds_an_invite_while_the_first_is_open(ledger: Ledger) -> None:
    with open_ledger(ledger.path) as other:
        invite(other)
    assert ledger.invite(WHO.secret_hash) is not None


def test_durability_settings_hold(ledger: Ledger) -> None:
    with sqlite3.connect(ledger.path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_ledger_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(MachineError, match="version 99"), open_ledger(path):
        pass


def test_ledger_of_the_first_release_is_brought_up_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    connection = sqlite3.connect(path)
    connection.executescript(MIGRATIONS[0])
    connection.execute("INSERT INTO kv VALUES ('port', x'31')")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    for _ in range(2):
        with open_ledger(path) as ledger:
            assert ledger.get("port") == b"1"
            ledger.put("other", b"x")


def test_two_that_make_the_same_ledger_at_once_both_get_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with open_ledger(path):
        pass
    connection = sqlite3.connect(path, isolation_level=None)
    late = Ledger(connection, path)
    versions = iter([0, SCHEMA_VERSION])
    late._version = lambda: next(versions)  # type: ignore[method-assign]
    late.migrate()
    connection.close()
    with open_ledger(path) as ledger:
        ledger.put("port", b"1")


def test_file_that_is_no_ledger_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    with pytest.raises(StorageError, match=r"is damaged \(file is not a database\).*restore a copy"), open_ledger(path):
        pass


def test_full_disk_acknowledges_nothing_and_loses_nothing(ledger: Ledger) -> None:
    ledger.put("before", b"kept")
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StorageError, match="full"):
        ledger.put("big", bytes(1 << 20))
    ledger._db.execute("PRAGMA max_page_count = 100000")
    assert (ledger.get("before"), ledger.get("big")) == (b"kept", None)
    ledger.put("after", b"works")


def test_a_ban_that_an_old_copy_has_lost_is_written_once_also_for_a_peer_it_does_not_know(ledger: Ledger) -> None:
    invite(ledger)
    ledger.admit(WHO, with_invite, lambda _: b"x", now_unix_s=5)
    ledger.ban(WHO.peer, "first", sign)
    for peer in (WHO.peer, PeerId("unknown")):
        for _ in range(2):
            ledger.ban_again(peer, b"k" * 32, "why", b"entry of " + peer.encode(), now_unix_s=6)
        assert ledger.is_banned(peer)
    assert ledger.revocations() == [b"entry 1", b"entry of peer", b"entry of unknown"]
    assert ledger.ban(WHO.peer, "again", sign) == b"entry 1"
