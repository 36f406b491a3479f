"""The ledger's rows of peers that came by the open door, and of the work that was counted day by day."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.ledger.ledger import Applicant, Ledger
from coordinator.policy.admission import AdmissionDecision, Verdict
from coordinator.policy.door import DAY_S, UNKNOWN_PREFIX, DoorFacts, JuniorFacts
from coordinator.policy.standing_core import WorkDay
from protocol.identity.credential import Credential
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId

WORK_COUNTED_TO: Final = "work counted to"
"""Key of the newest round whose work the days include, 8 bytes."""

Decide = Callable[[DoorFacts], AdmissionDecision]
Issue = Callable[[int, PeerStanding, JuniorFacts | None], tuple[bytes, int]]
"""Serial number, standing, and the earlier row -> DER of a new credential, and when it ends (unix s)."""


@dataclass(frozen=True, slots=True)
class DayOfWork:
    """Work of one peer to be added to one day."""

    peer: PeerId
    day: WorkDay


def junior_of(ledger: Ledger, peer: PeerId) -> JuniorFacts | None:
    """The row of a peer that came by the door; None for keepers and unknown peers. Blocks."""
    rows = ledger.rows("SELECT standing, ends_unix_s, tokens_then FROM juniors WHERE peer = ?", peer)
    if not rows:
        return None
    standing, ends_unix_s, tokens_then = (int(str(value)) for value in rows[0])
    tokens_now = sum(day.credited_tokens for day in work_days(ledger, peer))
    return JuniorFacts(PeerStanding(standing), ends_unix_s, tokens_then, tokens_now)


def juniors(ledger: Ledger) -> Mapping[PeerId, PeerStanding]:
    """The standings of all peers that came by the door. Blocks."""
    rows = ledger.rows("SELECT peer, standing FROM juniors ORDER BY peer")
    return {PeerId(str(peer)): PeerStanding(int(str(standing))) for peer, standing in rows}


def work_days(ledger: Ledger, peer: PeerId) -> Sequence[WorkDay]:
    """The days on which work of the peer was counted, the oldest first. Blocks."""
    rows = ledger.rows("SELECT day, credited_tokens, brought_tokens FROM work WHERE peer = ? ORDER BY day", peer)
    return [WorkDay(*(int(str(value)) for value in row)) for row in rows]


def all_work(ledger: Ledger) -> Mapping[PeerId, Sequence[WorkDay]]:
    """The days of work of everybody. Blocks."""
    found: dict[PeerId, list[WorkDay]] = {}
    for peer, *values in ledger.rows("SELECT peer, day, credited_tokens, brought_tokens FROM work ORDER BY peer, day"):
        found.setdefault(PeerId(str(peer)), []).append(WorkDay(*(int(str(value)) for value in values)))
    return found


def door_facts(ledger: Ledger, peer: PeerId, prefix: str, now_unix_s: int) -> DoorFacts:
    """The facts for the door's decision about one peer from this prefix. Blocks."""
    taken = "FROM juniors WHERE peer != ? AND ends_unix_s > ?"
    known = ledger.rows("SELECT is_banned FROM peers WHERE peer = ?", peer)
    junior = junior_of(ledger, peer)
    return DoorFacts(
        junior=junior,
        is_keeper=bool(known) and junior is None,
        is_banned=bool(known) and bool(known[0][0]),
        num_taken=_count(
            ledger, f"SELECT COUNT(*) {taken} AND standing = ?", peer, now_unix_s, int(PeerStanding.STRANGER)
        ),
        num_of_prefix=_count(ledger, f"SELECT COUNT(*) {taken} AND prefix = ?", peer, now_unix_s, prefix),
        num_today=_count(
            ledger,
            "SELECT COUNT(*) FROM juniors WHERE peer != ? AND prefix = ? AND came_unix_s > ?",
            peer,
            prefix,
            now_unix_s - DAY_S,
        ),
    )


def admit_junior(
    ledger: Ledger, applicant: Applicant, prefix: str, decide: Decide, issue: Issue, *, now_unix_s: int
) -> tuple[AdmissionDecision, bytes]:
    """Decide on one stranger and act on it in one transaction: take the place, add the peer, issue the credential. Blocks.

    Returns:
        The decision and the credential (DER), which is empty after a refusal. Then nothing was written.
    """
    peer = applicant.peer
    with ledger.transaction() as db:
        facts = door_facts(ledger, peer, prefix, now_unix_s)
        decision = decide(facts)
        if decision.verdict is Verdict.REFUSE:
            return decision, b""
        row = (peer, applicant.public_key, now_unix_s)
        db.execute("INSERT OR IGNORE INTO peers (peer, public_key, admitted_unix_s) VALUES (?, ?, ?)", row)
        standing = PeerStanding.STRANGER if facts.junior is None else facts.junior.standing
        standing = PeerStanding.KEEPER if facts.is_keeper else standing
        return decision, _issued(db, peer, prefix, standing, facts.junior, issue, now_unix_s)


def renew_junior(
    ledger: Ledger, peer: PeerId, standing: PeerStanding, junior: JuniorFacts, issue: Issue, *, now_unix_s: int
) -> bytes:
    """Issue a new credential with this standing to a peer that came by the door. Blocks."""
    with ledger.transaction() as db:
        return _issued(db, peer, None, standing, junior, issue, now_unix_s)


def restore_junior(ledger: Ledger, credential: Credential, *, now_unix_s: int) -> None:
    """Write the row of a peer whose standing this ledger, an old copy, has lost, by its checked credential. Blocks."""
    if credential.standing is PeerStanding.KEEPER:
        return
    ends_unix_s = int(credential.not_after_unix_s)
    row = (credential.peer_id, int(credential.standing), UNKNOWN_PREFIX, now_unix_s, ends_unix_s)
    with ledger.transaction() as db:
        db.execute("INSERT OR IGNORE INTO juniors VALUES (?, ?, ?, ?, ?, 0)", row)


def _issued(
    db: sqlite3.Connection,
    peer: PeerId,
    prefix: str | None,
    standing: PeerStanding,
    junior: JuniorFacts | None,
    issue: Issue,
    now_unix_s: int,
) -> bytes:
    """Write the credential, and the row of a peer that is no keeper. `prefix`: None keeps the known one."""
    insert = "INSERT INTO credentials (peer, issued_unix_s, certificate) VALUES (?, ?, x'')"
    serial = db.execute(insert, (peer, now_unix_s)).lastrowid or 0
    certificate, ends_unix_s = issue(serial, standing, junior)
    db.execute("UPDATE credentials SET certificate = ? WHERE serial = ?", (certificate, serial))
    if standing is PeerStanding.KEEPER:
        return certificate
    tokens = 0 if junior is None else junior.tokens_now
    if prefix is not None:
        came = "INSERT INTO juniors VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (peer) DO UPDATE SET prefix = excluded.prefix"
        db.execute(came, (peer, int(standing), prefix, now_unix_s, ends_unix_s, tokens))
    change = "UPDATE juniors SET standing = ?, ends_unix_s = ?, tokens_then = ? WHERE peer = ?"
    db.execute(change, (int(standing), ends_unix_s, tokens, peer))
    return certificate


def add_work(ledger: Ledger, work: Sequence[DayOfWork], counted_to: int) -> None:
    """Add this work, and remember the newest round that it includes, in one transaction. Blocks."""
    add = (
        "INSERT INTO work VALUES (?, ?, ?, ?) ON CONFLICT (peer, day) DO UPDATE SET "
        "credited_tokens = credited_tokens + excluded.credited_tokens, "
        "brought_tokens = brought_tokens + excluded.brought_tokens"
    )
    rows = [(each.peer, each.day.day, each.day.credited_tokens, each.day.brought_tokens) for each in work]
    with ledger.transaction() as db:
        db.executemany(add, rows)
        db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (WORK_COUNTED_TO, counted_to.to_bytes(8, "big")))


def _count(ledger: Ledger, query: str, *values: object) -> int:
    return int(str(ledger.rows(query, *values)[0][0]))
