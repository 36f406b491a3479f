"""What a peer must not forget about a unit's rounds: contribution roots, promises, acks, certificates, and the update bytes.

The order on disk is rule 19's: update bytes and record -> ack -> certificate -> apply. `UnitLog` writes; whoever calls it keeps
the order. Records and certificates are carried as bytes here.

Entry: tag 1 | base or fork 32 | body, framed and checksummed by the storage. Update bytes lie in results/<base>/<result hash>.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from averaging.network.seams import Storage
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.messages import AckedRecord, Ballot
from protocol.wire import decode_certificate, decode_record

log = structlog.get_logger()

LOG_NAME: Final = "rounds.log"
_CONTRIBUTION, _PROMISE, _ACK, _LONE_ACK, _CERTIFICATE, _SWITCH = b"C", b"P", b"A", b"L", b"T", b"S"
_LENGTH: Final = struct.Struct("<I")
_WORK: Final = struct.Struct("<QQ")
"""Tokens, and the data position after them."""

_BALLOT: Final = struct.Struct("<IH")


@dataclass(frozen=True, slots=True)
class LoggedContribution:
    """One session's contribution on a base; `next_step` is the local step that comes after its last one in this peer's data."""

    root: Root
    tokens: int
    next_step: int


@dataclass(frozen=True, slots=True)
class LoggedBase:
    """What was written about one base before the process ended."""

    contributions: tuple[LoggedContribution, ...] = ()
    promised: Ballot | None = None
    acked: AckedRecord | None = None
    acked_lone: AckedRecord | None = None


@dataclass(frozen=True, slots=True)
class LoggedRounds:
    """The log, read back.

    Attributes:
        certificates: (parent commit, certificate bytes) of the lineage that was followed last, oldest first.
        bases: what was contributed, promised and acked on each base, committed or not.
    """

    certificates: Sequence[tuple[CommitId, bytes]]
    bases: Mapping[CommitId, LoggedBase] = field(default_factory=dict)


def _ballot_bytes(ballot: Ballot) -> bytes:
    peer = ballot.peer.encode()
    return _BALLOT.pack(ballot.attempt, len(peer)) + peer


def _read_ballot(body: bytes) -> tuple[Ballot, bytes]:
    attempt, length = _BALLOT.unpack_from(body)
    end = _BALLOT.size + length
    return Ballot(attempt, PeerId(body[_BALLOT.size : end].decode())), body[end:]


class UnitLog:
    """The durable side of one unit's rounds; every method returns when its bytes are on disk."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._owed: list[bytes] = []

    async def log_contribution(self, base: CommitId, contribution: LoggedContribution) -> None:
        """Before the contribution's first byte leaves (rule 8)."""
        work = _WORK.pack(contribution.tokens, contribution.next_step)
        await self._storage.append(LOG_NAME, _CONTRIBUTION + base + contribution.root + work)

    async def log_promise(self, base: CommitId, ballot: Ballot) -> None:
        """Before the promise is told (rule 16)."""
        await self._storage.append(LOG_NAME, _PROMISE + base + _ballot_bytes(ballot))

    async def log_ack(self, base: CommitId, ballot: Ballot, record: bytes, *, lone: bool = False) -> None:
        """Before the ack is told, and after all bytes that the record names are on disk (rule 14). An ack of a lone record is kept
        beside the other: it must not make us forget what a quorum may have decided.
        """
        tag = _LONE_ACK if lone else _ACK
        await self._storage.append(LOG_NAME, tag + base + _ballot_bytes(ballot) + record)

    async def log_certificate(self, base: CommitId, certificate: bytes) -> None:
        """Before the commit is applied (rule 19)."""
        await self.settle()
        await self._storage.append(LOG_NAME, _CERTIFICATE + base + certificate)

    async def log_switch(self, fork: CommitId, certificates: Sequence[bytes]) -> None:
        """From `fork` on this lineage is followed instead: the whole head moves in one record (rule 24)."""
        await self.settle()
        await self._storage.append(LOG_NAME, _switch_entry(fork, certificates))

    async def log_moved(self, fork: CommitId, certificates: Sequence[bytes]) -> bool:
        """As `log_switch`, of a switch that a record of all units tells of already: what the disk refuses now is written before any
        further entry of the lineage, which would leave a gap without it. Whether it is on disk.
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
            StorageError: it refuses again.
        """
        while self._owed:
            await self._storage.append(LOG_NAME, self._owed[0])
            del self._owed[0]

    async def write_result(self, base: CommitId, result_hash: Root, data: bytes) -> None:
        """The bytes of one slice's result."""
        await self._storage.write_atomic(_result_name(base, result_hash), [data])

    async def read_result(self, base: CommitId, result_hash: Root) -> bytes | None:
        """The bytes of one slice's result, or None when they are not here."""
        return await self._storage.read(_result_name(base, result_hash))

    async def holds_results(self, base: CommitId, hashes: Sequence[Root]) -> bool:
        """Whether all of these results are on disk."""
        names = set(await self._storage.list_names(f"results/{base.hex()}/"))
        return all(_result_name(base, result_hash) in names for result_hash in hashes)

    async def list_results(self, base: CommitId) -> Sequence[str]:
        """Names of the results on a base."""
        return await self._storage.list_names(f"results/{base.hex()}/")

    async def drop_results(self, base: CommitId, keep: Sequence[Root]) -> None:
        """Delete the results on a base, all but these: leftovers of attempts, or updates too old to keep."""
        kept = {_result_name(base, result_hash) for result_hash in keep}
        for name in await self._storage.list_names(f"results/{base.hex()}/"):
            if name not in kept:
                await self._storage.delete(name)

    async def load(self) -> LoggedRounds:
        """Read the log back.

        Raises:
            StorageError: an entry that no version of this log writes: the disk is damaged.
        """
        certificates: list[tuple[CommitId, bytes]] = []
        bases: dict[CommitId, LoggedBase] = {}
        for entry in await self._storage.read_records(LOG_NAME):
            tag, base, body = entry[:1], CommitId(entry[1:33]), entry[33:]
            try:
                if tag == _CERTIFICATE:
                    certificates.append((base, body))
                elif tag == _SWITCH:
                    certificates = _switched(certificates, base, body)
                else:
                    bases[base] = _merge(bases.get(base, LoggedBase()), tag, body)
            except (struct.error, UnicodeDecodeError, RemoteProtocolError) as error:
                raise _damage(tag, body) from error
        return LoggedRounds(certificates, bases)


def _switch_entry(fork: CommitId, certificates: Sequence[bytes]) -> bytes:
    return _SWITCH + fork + b"".join(_LENGTH.pack(len(raw)) + raw for raw in certificates)


def _switched(certificates: list[tuple[CommitId, bytes]], fork: CommitId, body: bytes) -> list[tuple[CommitId, bytes]]:
    kept = next((i for i, (parent, _) in enumerate(certificates) if parent == fork), len(certificates))
    switched = certificates[:kept]
    while body:
        (length,) = _LENGTH.unpack_from(body)
        raw, body = body[_LENGTH.size : _LENGTH.size + length], body[_LENGTH.size + length :]
        switched.append((decode_record(decode_certificate(raw).record).parent, raw))
    return switched


def _merge(known: LoggedBase, tag: bytes, body: bytes) -> LoggedBase:
    if tag == _CONTRIBUTION and len(body) == 32 + _WORK.size:
        tokens, next_step = _WORK.unpack(body[32:])
        contribution = LoggedContribution(Root(body[:32]), tokens, next_step)
        return replace(known, contributions=(*known.contributions, contribution))
    if tag in (_PROMISE, _ACK, _LONE_ACK):
        ballot, rest = _read_ballot(body)
        promised = ballot if known.promised is None else max(known.promised, ballot)
        known = replace(known, promised=promised)
        if tag == _ACK:
            return replace(known, acked=AckedRecord(ballot, rest))
        return replace(known, acked_lone=AckedRecord(ballot, rest)) if tag == _LONE_ACK else known
    raise _damage(tag, body)


def _damage(tag: bytes, body: bytes) -> StorageError:
    return StorageError(
        f"an entry {tag!r} of {len(body)} bytes in {LOG_NAME}", "entries written by potluck", "restore or rejoin"
    )


def _result_name(base: CommitId, result_hash: Root) -> str:
    return f"results/{base.hex()}/{result_hash.hex()}"
