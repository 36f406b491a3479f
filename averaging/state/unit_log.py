"""The durable log of a unit's rounds: contribution roots, promises, acks, certificates, and the update bytes.

The order on disk is R19's: update bytes and record -> ack -> certificate -> apply. `UnitLog` writes; its caller keeps the order.
Records and certificates are plain bytes here.

Entry: tag 1 | base or fork 32 | body, framed and checksummed by the storage. Update bytes lie in results/<base>/<result hash>.

The log is rewritten (`tidy`) when most of it is obsolete. It keeps the certificates of the lineage, all contributions, the highest
promise on every base, and the last acks on bases that may still be voted on. It also keeps certificates of abandoned lineages, as
many as log_sizes.py allows, because the host may not know them. If acks on a base are dropped, an entry records that permanently,
even if the lineage is abandoned: a peer that returns to such a base does not know its own votes, and must not vote on it.

Rules: R8, R14, R16, R19, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import LOG_FRAME_BYTES, BegunFile, Storage
from averaging.state.log_sizes import LoggedCertificate, LogSizes
from protocol.errors import RemoteProtocolError, StorageError
from protocol.frozen import replace
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.messages.messages import AckedRecord
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_certificate, decode_record

log = structlog.get_logger()

LOG_NAME: Final = "rounds.log"
_RESULTS: Final = "results/"
_CONTRIBUTION, _PROMISE, _ACK, _LONE_ACK, _CERTIFICATE, _SWITCH = b"C", b"P", b"A", b"L", b"T", b"S"
_FORGOTTEN: Final = b"F"
"""A promise on a base whose acks were dropped."""

_DISPLACED: Final = b"D"
"""A certificate of an abandoned lineage, whose first entry was removed by a rewrite of the log."""

_HEAD_BYTES: Final = 33
MAX_ENTRY_BYTES: Final = 8 << 20
"""Bytes of certificates in one entry, well below the length limit of a record."""

WRITE_BYTES: Final = 1 << 21
"""Bytes of a result in one write: few enough to leave the processor to other tasks in between."""

_LENGTH: Final = struct.Struct("<I")
_WORK: Final = struct.Struct("<QQ")
"""Tokens, and the position in the data after them."""

_BALLOT: Final = struct.Struct("<IH")


@dataclass(frozen=True, slots=True)
class LoggedContribution:
    """One session's contribution on a base; `next_step` is the local step after its last one in this peer's data."""

    root: Root
    tokens: int
    next_step: int


@dataclass(frozen=True)
class LoggedBase:
    """The entries about one base before the process ended; `has_forgotten`: acks on it were dropped since. `acked_before` is the ack
    of another record before `acked`.
    """

    contributions: tuple[LoggedContribution, ...] = ()
    promised: Ballot | None = None
    acked: AckedRecord | None = None
    acked_lone: AckedRecord | None = None
    acked_before: AckedRecord | None = None
    has_forgotten: bool = False


@dataclass(frozen=True, slots=True)
class LoggedRounds:
    """The log, read back.

    Attributes:
        certificates: (parent commit, certificate bytes) of the present lineage, oldest first.
        bases: contributions, promises and acks on each base, committed or not, in the order of the last entry.
        displaced: (parent commit, certificate bytes) of abandoned lineages, as many as are kept: the latest abandoned first,
            parents before their children.
    """

    certificates: Sequence[tuple[CommitId, bytes]]
    bases: Mapping[CommitId, LoggedBase] = field(default_factory=dict)
    displaced: Sequence[tuple[CommitId, bytes]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogLimits:
    """A log is rewritten once it is longer than `growth` times its live bytes plus `slack_bytes`.

    Attributes:
        kept_bases: number of bases off the lineage, the last voted on, whose acks are kept.
    """

    kept_bases: int = 64
    growth: int = 2
    slack_bytes: int = 1 << 20


USUAL_LIMITS: Final = LogLimits()


def _ballot_bytes(ballot: Ballot) -> bytes:
    peer = ballot.peer.encode()
    return _BALLOT.pack(ballot.attempt, len(peer)) + peer


def _read_ballot(body: bytes) -> tuple[Ballot, bytes]:
    attempt, length = _BALLOT.unpack_from(body)
    end = _BALLOT.size + length
    return Ballot(attempt, PeerId(body[_BALLOT.size : end].decode())), body[end:]


class UnitLog:
    """The durable side of one unit's rounds; every method returns once its bytes are on disk."""

    def __init__(self, storage: Storage, limits: LogLimits = USUAL_LIMITS) -> None:
        self._storage = storage
        self._limits = limits
        self._owed: list[bytes] = []
        self._writing = trio.Lock()
        """Locked from reading the log until it is replaced: an entry in between would be lost."""

        self._sizes = LogSizes()
        self._live_bytes = 0
        self._listed: tuple[CommitId, tuple[str, ...]] | None = None
        """The result names of the base that was listed last, a cache: the end of a round lists them many times, and each listing
        would use another thread. Only this object writes and deletes there.
        """

        self._num_changes = 0
        """Number of changes to the result files, so that a listing overtaken by a change is not cached."""

    @property
    def bound_bytes(self) -> int:
        """Most bytes that the log takes on disk with its present contents; during a rewrite, the new log comes on top."""
        return self._limits.growth * self._live_bytes + self._limits.slack_bytes

    async def _append(self, entry: bytes) -> None:
        async with self._writing:
            await self._storage.append(LOG_NAME, entry)
            self._live_bytes += len(entry) + LOG_FRAME_BYTES
            _count(entry, self._sizes)

    async def log_contribution(self, base: CommitId, contribution: LoggedContribution) -> None:
        """Call it before the contribution's header leaves (R8): chunks without a header are ignored."""
        work = _WORK.pack(contribution.tokens, contribution.next_step)
        await self._append(_CONTRIBUTION + base + contribution.root + work)

    async def log_promise(self, base: CommitId, ballot: Ballot) -> None:
        """Call it before the promise is sent (R16)."""
        await self._append(_PROMISE + base + _ballot_bytes(ballot))

    async def log_ack(self, base: CommitId, ballot: Ballot, record: bytes, *, lone: bool = False) -> None:
        """Call it before the ack is sent, and after all bytes that the record names are on disk (R14).

        The ack of a lone record is kept separately: it must not replace an ack that a quorum may have relied on.
        """
        tag = _LONE_ACK if lone else _ACK
        await self._append(tag + base + _ballot_bytes(ballot) + record)

    async def log_certificate(self, base: CommitId, certificate: bytes) -> None:
        """Call it before the commit is applied (R19)."""
        await self.settle()
        await self._append(_CERTIFICATE + base + certificate)

    async def log_switch(self, fork: CommitId, certificates: Sequence[bytes]) -> None:
        """Follow another lineage from `fork` on; the whole head moves in one record (R24)."""
        await self.settle()
        await self._append(_switch_entry(fork, certificates))

    async def log_lineage(self, head: CommitId, certificates: Sequence[bytes]) -> None:
        """Log the certificates from our head to a downloaded state, in few entries, because each one waits for the disk."""
        await self.settle()
        begin = 0
        while begin < len(certificates):
            stop, num_bytes = begin, 0
            while stop < len(certificates) and (
                stop == begin or num_bytes + len(certificates[stop]) <= MAX_ENTRY_BYTES
            ):
                num_bytes += len(certificates[stop])
                stop += 1
            fork = decode_record(decode_certificate(certificates[begin]).record).parent if begin else head
            await self._append(_switch_entry(fork, certificates[begin:stop]))
            begin = stop

    async def log_moved(self, fork: CommitId, certificates: Sequence[bytes]) -> bool:
        """As `log_switch`, for a switch that a record of all units already names. True if it is on disk.

        If the disk refuses it, it is written before the next entry of the lineage, which would otherwise leave a gap.
        """
        self._owed.append(_switch_entry(fork, certificates))
        try:
            await self.settle()
        except StorageError as error:
            log.warning("switch_not_logged", fork=fork.hex(), reason=error.one_line())
            return False
        return True

    async def settle(self) -> None:
        """Write the switches that the disk has refused.

        Raises:
            StorageError: the disk refuses again.
        """
        while self._owed:
            await self._append(self._owed[0])
            del self._owed[0]

    def begin_result(self, base: CommitId, result_hash: Root) -> BegunFile:
        """A file for a result that is being received; `write_result` or its own `drop` ends it."""
        return self._storage.begin(_result_name(base, result_hash))

    async def write_result(
        self, base: CommitId, result_hash: Root, data: bytes | memoryview, begun: BegunFile | None = None
    ) -> None:
        """Write the bytes of one slice's result; `begun` has the first ones already.

        The bytes are written in parts, because one long write would delay bytes that are to be sent.

        Raises:
            StorageError: disk full or not writable. The caller must drop `begun`. A file of our own is removed, unless only its
                name could not be synced.
        """
        try:
            await self._write_result(base, result_hash, data, begun)
        except BaseException:  # the file may be there or not
            self._results_changed()
            raise
        self._num_changes += 1
        if self._listed is not None and self._listed[0] == base:
            name = _result_name(base, result_hash)
            self._listed = base, (*(other for other in self._listed[1] if other != name), name)

    async def _write_result(
        self, base: CommitId, result_hash: Root, data: bytes | memoryview, begun: BegunFile | None
    ) -> None:
        if begun is not None:
            await _finish(begun, data)
            return
        own = self.begin_result(base, result_hash)
        try:
            with trio.CancelScope(shield=True):  # all bytes are here: fetching them again would take longer
                await _finish(own, data)
        finally:
            own.drop()

    async def read_result(self, base: CommitId, result_hash: Root) -> bytes | None:
        """The bytes of one slice's result, or None if they are not on disk."""
        name = _result_name(base, result_hash)
        data = await self._storage.read(name)
        if data is None and self._listed is not None and name in self._listed[1]:
            self._results_changed()  # somebody else deleted it
        return data

    async def holds_results(self, base: CommitId, hashes: Sequence[Root]) -> bool:
        """Whether all of these results are on disk."""
        names = set(await self.list_results(base))
        return all(_result_name(base, result_hash) in names for result_hash in hashes)

    async def list_results(self, base: CommitId) -> Sequence[str]:
        """Names of the results on a base."""
        if self._listed is not None and self._listed[0] == base:
            return list(self._listed[1])
        num_changes = self._num_changes
        names = tuple(await self._storage.list_names(f"{_RESULTS}{base.hex()}/"))
        if num_changes == self._num_changes:
            self._listed = base, names
        return list(names)

    def _results_changed(self) -> None:
        self._listed, self._num_changes = None, self._num_changes + 1

    async def drop_results(self, base: CommitId, keep: Sequence[Root]) -> None:
        """Delete the results on a base except these: leftovers of attempts, or updates too old to keep."""
        kept = {_result_name(base, result_hash) for result_hash in keep}
        for name in await self._storage.list_names(f"{_RESULTS}{base.hex()}/"):
            if name not in kept:
                await self._delete_result(name)

    async def _delete_result(self, name: str) -> None:
        try:
            await self._storage.delete(name)
        finally:
            self._results_changed()

    async def result_bases(self) -> Sequence[CommitId]:
        """The bases that have results on disk."""
        names = await self._storage.list_names(_RESULTS)
        return [CommitId(bytes.fromhex(base)) for base in dict.fromkeys(name.split("/")[1] for name in names)]

    async def keep_results(self, bases: Collection[CommitId]) -> None:
        """Delete the results on all bases except these."""
        kept = {base.hex() for base in bases}
        for name in await self._storage.list_names(_RESULTS):
            if name.removeprefix(_RESULTS).partition("/")[0] not in kept:
                await self._delete_result(name)

    async def load(self) -> LoggedRounds:
        """Read the log back.

        Raises:
            StorageError: an entry that no version of this log writes; the disk is damaged.
        """
        async with self._writing:
            logged, sizes = _read(await self._storage.read_records(LOG_NAME))
            self._live_bytes += sizes.total_bytes - self._sizes.total_bytes
            self._sizes = sizes
            return logged

    # --- rewriting the log ----------------------------------------------------------------------------------------------------

    async def tidy(self, newest: Collection[CommitId]) -> None:
        """Rewrite the log if it has grown too long. If the disk refuses, the next call tries again.

        Args:
            newest: bases whose acks are kept: those of the lineage to which this peer may return, and the open one.
        """
        live_bytes = self._sizes.live_bytes(self._sizes.whole_bases(newest, self._limits.kept_bases))
        if self._sizes.total_bytes <= self._limits.growth * live_bytes + self._limits.slack_bytes:
            self._live_bytes = live_bytes
            return
        try:
            await self.compact(newest)
        except StorageError as error:
            log.warning("log_not_compacted", num_bytes=self._sizes.total_bytes, reason=error.one_line())

    async def compact(self, newest: Collection[CommitId]) -> None:
        """Rewrite the log; arguments as for `tidy`. `load` then returns the same, except for dropped acks.

        Raises:
            StorageError: the disk refuses, or cannot be read; the log is unchanged.
        """
        await self.settle()
        async with self._writing:
            logged, sizes = _read(await self._storage.read_records(LOG_NAME))
            entries = _entries(logged, sizes.whole_bases(newest, self._limits.kept_bases))
            await self._storage.replace_log(LOG_NAME, entries)
            self._sizes = LogSizes()
            for entry in entries:
                _count(entry, self._sizes)
            self._live_bytes = self._sizes.total_bytes


# --- entries ------------------------------------------------------------------------------------------------------------------


def _read(entries: Iterable[bytes]) -> tuple[LoggedRounds, LogSizes]:
    raws: dict[LoggedCertificate, bytes] = {}
    bases: dict[CommitId, LoggedBase] = {}
    sizes = LogSizes()
    for entry in entries:
        tag, base, body = entry[:1], CommitId(entry[1:_HEAD_BYTES]), entry[_HEAD_BYTES:]
        try:
            if tag not in (_CERTIFICATE, _SWITCH, _DISPLACED):
                bases[base] = _merge(bases.pop(base, LoggedBase()), tag, body)
            raws.update(_count(entry, sizes))
        except (struct.error, UnicodeDecodeError, RemoteProtocolError) as error:
            raise _damage(tag, body) from error
    certificates, displaced = (
        [(entry.base, raws[entry]) for entry in kept] for kept in (sizes.certificates, sizes.displaced)
    )
    return LoggedRounds(certificates, bases, displaced), sizes


def _count(entry: bytes, sizes: LogSizes) -> Sequence[tuple[LoggedCertificate, bytes]]:
    """Add an entry to `sizes`, and return the certificates in it."""
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
    if tag == _CONTRIBUTION:
        sizes.add_contribution(num_bytes)
    elif tag in (_PROMISE, _FORGOTTEN):
        sizes.add_promise(base, num_bytes)
    else:
        _, record = _read_ballot(body)
        promise_bytes = num_bytes - len(record)
        if tag == _LONE_ACK:
            sizes.add_lone_ack(base, num_bytes, promise_bytes)
        else:
            sizes.add_ack(base, num_bytes, promise_bytes, sha256(record).digest())
    return ()


def _as_entry(base: CommitId, raw: bytes) -> LoggedCertificate:
    return LoggedCertificate(base, _HEAD_BYTES + len(raw) + LOG_FRAME_BYTES, sha256(raw).digest())


def _entries(logged: LoggedRounds, whole: Collection[CommitId]) -> list[bytes]:
    """The entries of a log with these contents, with acks on the `whole` bases only."""
    entries = [_CERTIFICATE + base + raw for base, raw in logged.certificates]
    entries += [_DISPLACED + base + raw for base, raw in logged.displaced]
    for base, known in logged.bases.items():
        entries += _entries_on(base, known, is_whole=base in whole)
    return entries


def _entries_on(base: CommitId, known: LoggedBase, *, is_whole: bool) -> list[bytes]:
    entries = [
        _CONTRIBUTION + base + offered.root + _WORK.pack(offered.tokens, offered.next_step)
        for offered in known.contributions
    ]
    votes = ((_ACK, known.acked_before), (_ACK, known.acked), (_LONE_ACK, known.acked_lone))
    acks = [(tag, entry) for tag, entry in votes if entry is not None]
    if known.promised is not None:
        has_forgotten = known.has_forgotten or (bool(acks) and not is_whole)
        entries.append((_FORGOTTEN if has_forgotten else _PROMISE) + base + _ballot_bytes(known.promised))
    if is_whole:
        entries += [tag + base + _ballot_bytes(entry.ballot) + entry.record for tag, entry in acks]
    return entries


def _switch_entry(fork: CommitId, certificates: Sequence[bytes]) -> bytes:
    return _SWITCH + fork + b"".join(_LENGTH.pack(len(raw)) + raw for raw in certificates)


def _path(body: bytes) -> list[tuple[CommitId, bytes]]:
    """The certificates in a switch, by base, oldest first."""
    path: list[tuple[CommitId, bytes]] = []
    while body:
        (length,) = _LENGTH.unpack_from(body)
        raw, body = body[_LENGTH.size : _LENGTH.size + length], body[_LENGTH.size + length :]
        path.append((decode_record(decode_certificate(raw).record).parent, raw))
    return path


def _merge(known: LoggedBase, tag: bytes, body: bytes) -> LoggedBase:
    if tag == _CONTRIBUTION and len(body) == 32 + _WORK.size:
        tokens, next_step = _WORK.unpack(body[32:])
        contribution = LoggedContribution(Root(body[:32]), tokens, next_step)
        return replace(known, contributions=(*known.contributions, contribution))
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


def _damage(tag: bytes, body: bytes) -> StorageError:
    return StorageError(
        f"an entry {tag!r} of {len(body)} bytes in {LOG_NAME}", "entries written by potluck", "restore or rejoin"
    )


async def _finish(begun: BegunFile, data: bytes | memoryview) -> None:
    for begin in range(begun.num_bytes, len(data), WRITE_BYTES):
        await begun.add(memoryview(data)[begin : begin + WRITE_BYTES])
    await begun.finish()


def _result_name(base: CommitId, result_hash: Root) -> str:
    return f"{_RESULTS}{base.hex()}/{result_hash.hex()}"
