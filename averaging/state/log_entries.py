"""The entries of a unit's log: what each means, how a log is read back, and what a rewrite keeps. No I/O.

Entry: tag 1 | base or fork 32 | body. The entry of a milestone (R26) names the commit at which the lineage begins from then on: a
rewrite drops the certificates before it, and the votes and contributions on their bases.

Rules: R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from averaging.network.seams.interfaces import LOG_FRAME_BYTES
from averaging.state.log_sizes import LoggedCertificate, LogSizes
from protocol.errors import RemoteProtocolError, StorageError
from protocol.frozen import replace
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.messages.messages import AckedRecord
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record, glance_at_record

LOG_NAME: Final = "rounds.log"
_CONTRIBUTION, _PROMISE, _ACK, _LONE_ACK, _CERTIFICATE, _SWITCH = b"C", b"P", b"A", b"L", b"T", b"S"
_FORGOTTEN: Final = b"F"
"""A promise on a base whose acks were dropped."""

_DISPLACED: Final = b"D"
"""A certificate of an abandoned lineage, whose first entry was removed by a rewrite of the log."""

_LEAVES: Final = b"G"
"""The signed goodbyes on a base on which the ack after this entry may rely."""

_MILESTONE: Final = b"M"
"""The milestone at which the lineage begins, and a position in the data."""

_HEAD_BYTES: Final = 33

_LENGTH: Final = struct.Struct("<I")
_WORK: Final = struct.Struct("<QQ")
"""Tokens, and the position in the data after them."""

_STEPS: Final = struct.Struct("<I")
"""Local steps behind that, where there are some to tell."""

_BALLOT: Final = struct.Struct("<IH")
_POSITION: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class LoggedContribution:
    """One session's contribution on a base.

    Attributes:
        next_step: the local step after its last one in this peer's data.
        num_steps: local steps that it is made of, side by side up to there; 0 where it is not made of such.
    """

    root: Root
    tokens: int
    next_step: int
    num_steps: int = 0


@dataclass(frozen=True)
class LoggedBase:
    """The entries about one base before the process ended; `has_forgotten`: acks on it were dropped since. `acked_before` is the ack
    of another record before `acked`. `leaves` are the signed goodbyes on which they may rely.
    """

    contributions: tuple[LoggedContribution, ...] = ()
    promised: Ballot | None = None
    acked: AckedRecord | None = None
    acked_lone: AckedRecord | None = None
    acked_before: AckedRecord | None = None
    has_forgotten: bool = False
    leaves: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class LoggedMilestone:
    """The beginning of the lineage: a commit, and the milestone in the host's envelope that names it. `next_step` is the local step
    after the last one that the commits before it counted, or may have.
    """

    commit: CommitId
    sealed: bytes
    next_step: int


@dataclass(frozen=True, slots=True)
class LoggedRounds:
    """The log, read back.

    Attributes:
        certificates: (parent commit, certificate bytes) of the present lineage, oldest first.
        bases: contributions, promises and acks on each base, committed or not, in the order of the last entry.
        displaced: (parent commit, certificate bytes) of abandoned lineages, as many as are kept: the latest abandoned first,
            parents before their children.
        begins: where the present lineage begins; None: at the genesis.
    """

    certificates: Sequence[tuple[CommitId, bytes]]
    bases: Mapping[CommitId, LoggedBase] = field(default_factory=dict)
    displaced: Sequence[tuple[CommitId, bytes]] = field(default_factory=list)
    begins: LoggedMilestone | None = None


def _ballot_bytes(ballot: Ballot) -> bytes:
    peer = ballot.peer.encode()
    return _BALLOT.pack(ballot.attempt, len(peer)) + peer


def _read_ballot(body: bytes) -> tuple[Ballot, bytes]:
    attempt, length = _BALLOT.unpack_from(body)
    end = _BALLOT.size + length
    return Ballot(attempt, PeerId(body[_BALLOT.size : end].decode())), body[end:]


def read_entries(entries: Iterable[bytes]) -> tuple[LoggedRounds, LogSizes]:
    """A log from its entries, and its sizes.

    Raises:
        StorageError: an entry that no version of this log writes.
    """
    raws: dict[LoggedCertificate, bytes] = {}
    bases: dict[CommitId, LoggedBase] = {}
    sizes, begins = LogSizes(), None
    for entry in entries:
        tag, base, body = entry[:1], CommitId(entry[1:_HEAD_BYTES]), entry[_HEAD_BYTES:]
        try:
            raws.update(count_entry(entry, sizes))
            if tag == _MILESTONE:
                begins = LoggedMilestone(base, body[_POSITION.size :], *_POSITION.unpack_from(body))
                bases = {base: known for base, known in bases.items() if base not in sizes.dropped}
                raws = {each: raws[each] for each in (*sizes.certificates, *sizes.displaced)}
            elif tag not in (_CERTIFICATE, _SWITCH, _DISPLACED):
                bases[base] = _merge(bases.pop(base, LoggedBase()), tag, body)
        except (struct.error, UnicodeDecodeError, RemoteProtocolError) as error:
            raise _damage(tag, body) from error
    certificates, displaced = (
        [(entry.base, raws[entry]) for entry in kept] for kept in (sizes.certificates, sizes.displaced)
    )
    return LoggedRounds(certificates, bases, displaced, begins), sizes


def count_entry(entry: bytes, sizes: LogSizes) -> Sequence[tuple[LoggedCertificate, bytes]]:
    """Add an entry to `sizes`, and return the certificates in it. Raises RemoteProtocolError, struct.error or UnicodeDecodeError for
    one that cannot be read.
    """
    tag, base, body = entry[:1], CommitId(entry[1:_HEAD_BYTES]), entry[_HEAD_BYTES:]
    num_bytes = _HEAD_BYTES + len(body) + LOG_FRAME_BYTES
    if tag in (_CERTIFICATE, _DISPLACED):
        certificate = _as_entry(base, body)
        (sizes.add_certificate if tag == _CERTIFICATE else sizes.add_displaced)(certificate)
        return [(certificate, body)]
    if tag == _SWITCH:
        path = [(_as_entry(parent, raw), raw) for parent, raw in _path(body)]
        sizes.add_switch(base, [certificate for certificate, _ in path], num_bytes)
        return path
    if tag == _MILESTONE:
        sizes.begin_at(base, num_bytes)
    elif tag == _CONTRIBUTION:
        sizes.add_contribution(base, num_bytes)
    elif tag in (_PROMISE, _FORGOTTEN):
        sizes.add_promise(base, num_bytes)
    elif tag == _LEAVES:
        sizes.add_leaves(base, num_bytes)
    else:
        _, record = _read_ballot(body)
        promise_bytes = num_bytes - len(record)
        if tag == _LONE_ACK:
            sizes.add_lone_ack(base, num_bytes, promise_bytes)
        else:
            sizes.add_ack(base, num_bytes, promise_bytes, sha256(record).digest())
    return ()


def newest_index(entries: Sequence[bytes]) -> int:
    """The index of the newest commit in a log; 0 without any. Reads its entry alone.

    Raises:
        StorageError: an entry that no version of this log writes.
    """
    for entry in reversed(entries):
        tag, body = entry[:1], entry[_HEAD_BYTES:]
        try:
            if tag == _SWITCH and (path := _parts(body)):
                return glance_at_record(decode_certificate(path[-1]).record).index
            if tag == _CERTIFICATE:
                return glance_at_record(decode_certificate(body).record).index
        except (struct.error, RemoteProtocolError) as error:
            raise _damage(tag, body) from error
    return 0


def _as_entry(base: CommitId, raw: bytes) -> LoggedCertificate:
    return LoggedCertificate(base, _HEAD_BYTES + len(raw) + LOG_FRAME_BYTES, sha256(raw).digest())


def kept_entries(logged: LoggedRounds, whole: Collection[CommitId]) -> Iterator[bytes]:
    """The entries of a log with these contents, with acks on the `whole` bases only. Each is made when it is needed."""
    if logged.begins is not None:
        yield milestone_entry(logged.begins)
    for base, raw in logged.certificates:
        yield certificate_entry(base, raw)
    for base, raw in logged.displaced:
        yield _DISPLACED + base + raw
    for base, known in logged.bases.items():
        yield from _entries_on(base, known, is_whole=base in whole)


def connected(logged: LoggedRounds) -> LoggedRounds:
    """The log without certificates of abandoned lineages that left ours before the milestone at which it begins."""
    if logged.begins is None:
        return logged
    known = {logged.begins.commit, *(base for base, _ in logged.certificates)}
    if logged.certificates:
        parent, raw = logged.certificates[-1]
        known.add(_commit_of(parent, raw))
    displaced = []
    for base, raw in logged.displaced:
        if base in known:
            known.add(_commit_of(base, raw))
            displaced.append((base, raw))
    return LoggedRounds(logged.certificates, logged.bases, displaced, logged.begins)


def _commit_of(parent: CommitId, raw: bytes) -> CommitId:
    return commit_id(parent, decode_certificate(raw).record)


def contribution_entry(base: CommitId, offered: LoggedContribution) -> bytes:
    """The entry of a contribution on a base."""
    steps = _STEPS.pack(offered.num_steps) if offered.num_steps else b""
    return _CONTRIBUTION + base + offered.root + _WORK.pack(offered.tokens, offered.next_step) + steps


def promise_entry(base: CommitId, ballot: Ballot) -> bytes:
    """The entry of a promise."""
    return _PROMISE + base + _ballot_bytes(ballot)


def ack_entry(base: CommitId, ballot: Ballot, record: bytes, *, lone: bool = False) -> bytes:
    """The entry of an ack. That of a lone record is kept separately: it must not replace an ack that a quorum may have relied on."""
    return (_LONE_ACK if lone else _ACK) + base + _ballot_bytes(ballot) + record


def certificate_entry(base: CommitId, certificate: bytes) -> bytes:
    """The entry of the next certificate of the lineage."""
    return _CERTIFICATE + base + certificate


def milestone_entry(begins: LoggedMilestone) -> bytes:
    """The entry of the milestone at which the lineage begins from now on."""
    return _MILESTONE + begins.commit + _POSITION.pack(begins.next_step) + begins.sealed


def _entries_on(base: CommitId, known: LoggedBase, *, is_whole: bool) -> list[bytes]:
    entries = [contribution_entry(base, offered) for offered in known.contributions]
    votes = ((False, known.acked_before), (False, known.acked), (True, known.acked_lone))
    acks = [(is_lone, entry) for is_lone, entry in votes if entry is not None]
    if known.promised is not None:
        has_forgotten = known.has_forgotten or (bool(acks) and not is_whole)
        entries.append((_FORGOTTEN if has_forgotten else _PROMISE) + base + _ballot_bytes(known.promised))
    if is_whole and known.leaves:
        entries.append(leaves_entry(base, known.leaves))
    if is_whole:
        entries += [ack_entry(base, entry.ballot, entry.record, lone=is_lone) for is_lone, entry in acks]
    return entries


def leaves_entry(base: CommitId, leaves: Sequence[bytes]) -> bytes:
    """The entry of signed goodbyes on a base. It replaces the one before it."""
    return _LEAVES + base + _joined(leaves)


def switch_entry(fork: CommitId, certificates: Sequence[bytes]) -> bytes:
    """The entry of a switch to another lineage, from `fork` on."""
    return _SWITCH + fork + _joined(certificates)


def _path(body: bytes) -> list[tuple[CommitId, bytes]]:
    """The certificates in a switch, by base, oldest first."""
    return [(decode_record(decode_certificate(raw).record).parent, raw) for raw in _parts(body)]


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(raw)) + raw for raw in parts)


def _parts(body: bytes) -> list[bytes]:
    """The parts that `_joined` joined. Raises struct.error for bytes that it does not make."""
    parts: list[bytes] = []
    while body:
        (length,) = _LENGTH.unpack_from(body)
        raw, body = body[_LENGTH.size : _LENGTH.size + length], body[_LENGTH.size + length :]
        if len(raw) < length:
            raise struct.error(f"a part of {len(raw)} bytes, not of {length}")
        parts.append(raw)
    return parts


def _merge(known: LoggedBase, tag: bytes, body: bytes) -> LoggedBase:
    if tag == _CONTRIBUTION:
        return replace(known, contributions=(*known.contributions, _contribution(body)))
    if tag == _LEAVES:
        return replace(known, leaves=tuple(_parts(body)))
    if tag in (_PROMISE, _FORGOTTEN, _ACK, _LONE_ACK):
        ballot, rest = _read_ballot(body)
        promised = ballot if known.promised is None else max(known.promised, ballot)
        known = replace(known, promised=promised, has_forgotten=known.has_forgotten or tag == _FORGOTTEN)
        if tag == _ACK:
            is_higher = known.acked is None or ballot >= known.acked.ballot
            if not is_higher:
                return known
            is_other = known.acked is not None and known.acked.record != rest
            before = known.acked if is_other else known.acked_before
            return replace(known, acked=AckedRecord(ballot, rest), acked_before=before)
        return replace(known, acked_lone=AckedRecord(ballot, rest)) if tag == _LONE_ACK else known
    raise _damage(tag, body)


def _contribution(body: bytes) -> LoggedContribution:
    """Raises struct.error for bytes that `contribution_entry` does not make."""
    tokens, next_step = _WORK.unpack(body[32 : 32 + _WORK.size])
    rest = body[32 + _WORK.size :]
    return LoggedContribution(Root(body[:32]), tokens, next_step, _STEPS.unpack(rest)[0] if rest else 0)


def _damage(tag: bytes, body: bytes) -> StorageError:
    return StorageError(
        f"an entry {tag!r} of {len(body)} bytes in {LOG_NAME}", "entries written by potluck", "restore or rejoin"
    )
