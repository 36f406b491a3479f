"""The durable log of a unit's rounds: contribution roots, promises, acks, certificates, and the update bytes.

The order on disk is R19's: update bytes and record -> ack -> certificate -> apply. `UnitLog` writes; its caller keeps the order.
Records and certificates are plain bytes here.

The entries are those of log_entries.py, framed and checksummed by the storage. Update bytes lie in results/<base>/<result hash>.

The log is rewritten (`tidy`) when most of it is obsolete. It keeps certificates and contributions since the milestone at which the
lineage begins, or since the genesis, the highest promise on every base, and the last acks on bases that may still be voted on. It
also keeps certificates of abandoned lineages, as many as log_sizes.py allows, because the host may not know them. If acks on a base
are dropped, an entry records that permanently, even if the lineage is abandoned: a peer that returns to such a base does not know
its own votes, and must not vote on it. Nobody returns to a base before the milestone.

Rules: R8, R14, R16, R19, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import LOG_FRAME_BYTES, BegunFile, Storage
from averaging.state.log_entries import (
    LOG_NAME,
    LoggedContribution,
    LoggedMilestone,
    LoggedRounds,
    ack_entry,
    certificate_entry,
    connected,
    contribution_entry,
    count_entry,
    kept_entries,
    leaves_entry,
    milestone_entry,
    promise_entry,
    read_entries,
    switch_entry,
)
from averaging.state.log_sizes import LogSizes
from averaging.system.freed_memory import give_back_freed
from protocol.errors import StorageError
from protocol.ids import CommitId, Root
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_certificate, decode_record

log = structlog.get_logger()

_RESULTS: Final = "results/"
MAX_ENTRY_BYTES: Final = 8 << 20
"""Bytes of certificates in one entry, well below the length limit of a record."""

LONG_BYTES: Final = 1 << 22
"""After a rewrite of a log of so many bytes, freed memory is given back to the system."""

WRITE_BYTES: Final = 1 << 21
"""Bytes of a result in one write: few enough to leave the processor to other tasks in between."""


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

        self._leaves: tuple[CommitId, tuple[bytes, ...]] | None = None
        """The goodbyes that were written last."""

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
            count_entry(entry, self._sizes)

    async def log_contribution(self, base: CommitId, contribution: LoggedContribution) -> None:
        """Call it before the contribution's header leaves (R8): chunks without a header are ignored."""
        await self._append(contribution_entry(base, contribution))

    async def log_promise(self, base: CommitId, ballot: Ballot) -> None:
        """Call it before the promise is sent (R16)."""
        await self._append(promise_entry(base, ballot))

    async def log_ack(
        self, base: CommitId, ballot: Ballot, record: bytes, *, lone: bool = False, leaves: Sequence[bytes] = ()
    ) -> None:
        """Call it before the ack is sent, and after all bytes that the record names are on disk (R14).

        Args:
            leaves: the signed goodbyes on this base on which the record may rely, with those of earlier calls. They are on disk
                before the ack.
        """
        if leaves and self._leaves != (base, tuple(leaves)):
            await self._append(leaves_entry(base, leaves))
            self._leaves = base, tuple(leaves)
        await self._append(ack_entry(base, ballot, record, lone=lone))

    async def log_certificate(self, base: CommitId, certificate: bytes) -> None:
        """Call it before the commit is applied (R19)."""
        await self.settle()
        await self._append(certificate_entry(base, certificate))

    async def log_switch(self, fork: CommitId, certificates: Sequence[bytes]) -> None:
        """Follow another lineage from `fork` on; the whole head moves in one record (R24)."""
        await self.settle()
        await self._append(switch_entry(fork, certificates))

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
            await self._append(switch_entry(fork, certificates[begin:stop]))
            begin = stop

    async def log_milestone(self, begins: LoggedMilestone) -> None:
        """The lineage begins at this milestone from now on. Call `compact` afterwards."""
        await self.settle()
        await self._append(milestone_entry(begins))

    async def log_moved(self, fork: CommitId, certificates: Sequence[bytes]) -> bool:
        """As `log_switch`, for a switch that a record of all units already names. True if it is on disk.

        If the disk refuses it, it is written before the next entry of the lineage, which would otherwise leave a gap.
        """
        self._owed.append(switch_entry(fork, certificates))
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
            if begun is not None:
                await _finish(begun, data)
            else:
                await _write_own(self.begin_result(base, result_hash), data)
        except BaseException:  # the file may be there or not
            self._results_changed()
            raise
        self._num_changes += 1
        if self._listed is not None and self._listed[0] == base:
            name = _result_name(base, result_hash)
            self._listed = base, (*(other for other in self._listed[1] if other != name), name)

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
            logged, sizes = read_entries(await self._storage.read_records(LOG_NAME))
            self._live_bytes += sizes.total_bytes - self._sizes.total_bytes
            self._sizes = sizes
            return logged

    # --- rewriting the log ----------------------------------------------------------------------------------------------------

    async def tidy(self, newest: Collection[CommitId], *, is_due: bool = False) -> None:
        """Rewrite the log if it has grown too long, or if that `is_due`. If the disk refuses, the next call tries again.

        Args:
            newest: bases whose acks are kept: those of the lineage to which this peer may return, and the open one.
        """
        live_bytes = self._sizes.live_bytes(self._sizes.whole_bases(newest, self._limits.kept_bases))
        if not is_due and self._sizes.total_bytes <= self._limits.growth * live_bytes + self._limits.slack_bytes:
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
            self._sizes = await _rewritten(self._storage, newest, self._limits)
            self._leaves = None
            self._live_bytes = self._sizes.total_bytes
        if self._live_bytes >= LONG_BYTES:
            give_back_freed()


async def _rewritten(storage: Storage, newest: Collection[CommitId], limits: LogLimits) -> LogSizes:
    """Rewrite the log, and return its sizes. Its entries are made one by one while they are written, so a log of many rounds is in
    memory once.
    """
    logged, sizes = read_entries(_drained(deque(await storage.read_records(LOG_NAME))))
    whole, new_sizes = sizes.whole_bases(newest, limits.kept_bases), LogSizes()
    await storage.replace_log(LOG_NAME, _counted(kept_entries(connected(logged), whole), new_sizes))
    return new_sizes


def _drained(records: deque[bytes]) -> Iterator[bytes]:
    """The records in order; each is free once it was taken."""
    while records:
        yield records.popleft()


def _counted(entries: Iterable[bytes], sizes: LogSizes) -> Iterator[bytes]:
    """The entries, each added to `sizes`."""
    for entry in entries:
        count_entry(entry, sizes)
        yield entry


async def _write_own(own: BegunFile, data: bytes | memoryview) -> None:
    try:
        with trio.CancelScope(shield=True):  # all bytes are here: fetching them again would take longer
            await _finish(own, data)
    finally:
        own.drop()


async def _finish(begun: BegunFile, data: bytes | memoryview) -> None:
    for begin in range(begun.num_bytes, len(data), WRITE_BYTES):
        await begun.add(memoryview(data)[begin : begin + WRITE_BYTES])
    await begun.finish()


def _result_name(base: CommitId, result_hash: Root) -> str:
    return f"{_RESULTS}{base.hex()}/{result_hash.hex()}"
