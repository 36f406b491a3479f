"""The ledger's memory for people: the run's newest events, when each peer was last heard, how it calls itself, and
credits of older rounds.

Nothing is decided by it. A ledger of an older release has none of it: credits are counted again from its commits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from coordinator.ledger.ledger import Ledger
from coordinator.policy.standing_core import PeerTrust
from protocol.errors import StorageError
from protocol.host.calls import NO_COMMIT
from protocol.identity.chosen_name import ChosenName, received_name
from protocol.ids import HASH_BYTES, CommitId, PeerId
from protocol.rounds.lineage.chain_link import link_of
from protocol.rounds.lineage.round_row import Counted, counted_by_peer, round_row, sum_of_counted
from protocol.rounds.messages.wire import decode_certificate

MAX_EVENTS: Final = 500
"""Number of newest events that are kept: some hours of a run."""

COUNTED_TO: Final = "credits counted to"
"""Key of the commit that the credits include, with all before it: its index in 8 bytes, then its id."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, as RunEvent (coordinator/progress/run_events.py)."""

    number: int
    unix_s: int
    kind: str
    text: str
    peer: str


@dataclass(frozen=True, slots=True)
class HeardRow:
    """When a peer was last heard, and its state in the words of the events: "here", "paused", "silent" or "left"."""

    peer: PeerId
    unix_s: int
    state: str


@dataclass(frozen=True, slots=True)
class Credits:
    """Each peer's credit in the rounds up to `index`, the round of `commit`. Before any: index 0 and no commit."""

    index: int = 0
    commit: CommitId = NO_COMMIT
    by_peer: Mapping[PeerId, Counted] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class RunPast:
    """The past of a run for its screens: credits of older rounds, and when each peer was last heard, also by earlier processes of
    the host (monotonic seconds, may be negative). `chosen`: how the peers called themselves last. `trust`: of peers that came by the
    open door, as it is now.
    """

    credits: Credits = field(default_factory=Credits)
    heard_s: Mapping[PeerId, float] = field(default_factory=lambda: MappingProxyType({}))
    chosen: Mapping[PeerId, ChosenName] = field(default_factory=lambda: MappingProxyType({}))
    trust: Mapping[PeerId, PeerTrust] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class RunMemory:
    """All that is remembered; events oldest first."""

    events: Sequence[EventRow] = ()
    heard: Sequence[HeardRow] = ()
    chosen: Mapping[PeerId, ChosenName] = field(default_factory=lambda: MappingProxyType({}))
    credits: Credits = field(default_factory=Credits)


def remembered(ledger: Ledger) -> RunMemory:
    """Read it all.

    Raises:
        StorageError: the ledger cannot be read.
    """
    events = [
        EventRow(int(str(number)), int(str(unix_s)), str(kind), str(text), str(peer))
        for number, unix_s, kind, text, peer in ledger.rows("SELECT * FROM events ORDER BY number")
    ]
    heard = [
        HeardRow(PeerId(str(peer)), int(str(unix_s)), str(state))
        for peer, unix_s, state in ledger.rows("SELECT * FROM heard ORDER BY peer")
    ]
    by_peer = {
        PeerId(str(peer)): Counted(int(str(tokens)), int(str(rounds)))
        for peer, tokens, rounds in ledger.rows("SELECT * FROM credits ORDER BY peer")
    }
    chosen = {
        PeerId(str(peer)): ChosenName(received_name(str(nickname)), received_name(str(team)))
        for peer, nickname, team in ledger.rows("SELECT * FROM chosen_names ORDER BY peer")
    }
    place = ledger.get(COUNTED_TO) or bytes(8)
    return RunMemory(events, heard, chosen, Credits(int.from_bytes(place[:8], "big"), CommitId(place[8:]), by_peer))


def remember(
    ledger: Ledger,
    events: Sequence[EventRow],
    heard: Sequence[HeardRow],
    chosen: Mapping[PeerId, ChosenName] = MappingProxyType({}),
) -> None:
    """Write new events and what changed about peers. Only the newest MAX_EVENTS events stay.

    Raises:
        StorageError: the ledger cannot be written; nothing was.
    """
    with ledger.transaction() as db:
        db.executemany(
            "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?)",
            [(e.number, e.unix_s, e.kind, e.text, e.peer) for e in events],
        )
        if events:
            db.execute("DELETE FROM events WHERE number <= ?", (events[-1].number - MAX_EVENTS,))
        db.executemany(
            "INSERT OR REPLACE INTO heard VALUES (?, ?, ?)", [(row.peer, row.unix_s, row.state) for row in heard]
        )
        db.executemany(
            "INSERT OR REPLACE INTO chosen_names VALUES (?, ?, ?)",
            [(peer, name.nickname, name.team) for peer, name in chosen.items()],
        )


def count_commits(ledger: Ledger, before: Credits, commits: Sequence[CommitId]) -> Credits:
    """Add the credits of these commits, which follow `before.commit` without a gap, oldest first, and write the sum.

    Raises:
        StorageError: the ledger lacks one of them, or cannot be written; nothing was.
        RemoteProtocolError: one of them cannot be read.
    """
    rows = []
    for commit in commits:
        found = ledger.rows("SELECT certificate FROM commits WHERE commit_id = ?", commit)
        if not found or not isinstance(found[0][0], bytes):
            raise StorageError("a commit that the ledger lacks", "one of its rows", "restore the ledger from a copy")
        rows.append(round_row(link_of(decode_certificate(found[0][0]).record)))
    fresh = counted_by_peer(rows)
    after = Credits(rows[-1].index, commits[-1], sum_of_counted(before.by_peer, fresh)) if rows else before
    _write_credits(ledger, after, fresh.keys())
    return after


def forget_credits(ledger: Ledger) -> Credits:
    """Begin the count again: the run follows another lineage than the counted one.

    Raises:
        StorageError: the ledger cannot be written; nothing was.
    """
    with ledger.transaction() as db:
        db.execute("DELETE FROM credits")
        db.execute("DELETE FROM kv WHERE name = ?", (COUNTED_TO,))
    return Credits()


def _write_credits(ledger: Ledger, after: Credits, changed: Collection[PeerId]) -> None:
    if len(after.commit) != HASH_BYTES:
        return
    with ledger.transaction() as db:
        db.executemany(
            "INSERT OR REPLACE INTO credits VALUES (?, ?, ?)",
            [(peer, after.by_peer[peer].tokens, after.by_peer[peer].rounds) for peer in changed],
        )
        place = after.index.to_bytes(8, "big") + after.commit
        db.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (COUNTED_TO, place))
