"""The data sets of a run on the host: the one that it was opened with, and, of a run of experts, those that were packed since.

The signed entries are in the ledger (`REASSIGNMENTS`), the newest `KEPT_ENTRIES` of them with their files; of older ones the shards
are deleted. A data set's manifest lies beside its shards, by the name of its hash.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.data.shards import DatasetManifest, parse_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.run.reassigning_core import SampleBook
from coordinator.run.run_files import DATA_FOLDER, RunFiles
from coordinator.run.run_texts_core import (
    BroughtBack,
    Event,
    KeepOwners,
    KeepTexts,
    OwnersKept,
    OwnersOffered,
    PackedText,
    TextKept,
    TextOffered,
    TextsKnown,
    step,
)
from protocol.errors import PotluckError, RemoteProtocolError, StorageError
from protocol.host.reassignment import KEPT_ENTRIES, Reassignment, in_force, open_reassignment
from protocol.host.reports import PeerReport
from protocol.identity.identity import Ed25519Verifier
from protocol.identity.revocation import join_entries, split_entries
from protocol.ids import CommitId
from protocol.run.manifest import RunManifest
from protocol.tables import several

if TYPE_CHECKING:
    from coordinator.ledger.ledger_writer import LedgerWriter

_log = structlog.get_logger()

REASSIGNMENTS: Final = "reassignments"
"""In the ledger: the signed entries, oldest first."""

SAMPLE_OWNERS: Final = "sample owners"
"""In the ledger: whose each document of the sample is by the losses so far, a byte each."""

_SHARD_NAME: Final = re.compile("[0-9a-f]{64}")


def read_texts(folder: Path, manifest: RunManifest, ledger: Ledger) -> tuple[PackedText, ...]:
    """The re-assignments that are kept of the run in a folder, oldest first. Blocks.

    Raises:
        StorageError: an entry is not the host's, or the data set that it names is lost or damaged.
    """
    sealed = split_entries(ledger.get(REASSIGNMENTS) or b"")
    return tuple(_read(folder, manifest, each) for each in sealed)


def _opened(manifest: RunManifest, sealed: bytes) -> Reassignment:
    key = bytes.fromhex(manifest.host_public_key)
    return open_reassignment(sealed, verifier=Ed25519Verifier(), run_id=manifest.run_id, host_public_key=key)


def _read(folder: Path, manifest: RunManifest, sealed: bytes) -> PackedText:
    try:
        entry = _opened(manifest, sealed)
        data = (folder / DATA_FOLDER / entry.manifest_sha256).read_bytes()
        return PackedText(sealed, entry, parse_dataset(data, entry.dataset_id))
    except (PotluckError, OSError) as error:
        raise StorageError(
            f"the re-assigned data in {folder} is damaged ({error})", "what was written", "restore a copy"
        ) from error


def read_owners(run: RunFiles, ledger: Ledger) -> tuple[int, ...]:
    """Whose each document of the sample is, as it was remembered; nothing before the first time. Blocks."""
    found = tuple(ledger.get(SAMPLE_OWNERS) or b"")
    return found if len(found) == run.dataset.sample_windows else ()


def keep_text(run: RunFiles, ledger: Ledger, texts: Sequence[PackedText]) -> tuple[PackedText, ...]:
    """Remember the newest of these re-assignments, with whose documents are whose by the last one, and delete what only older ones
    name. Blocks; durable when it returns.
    """
    kept = tuple(texts[-KEPT_ENTRIES:])
    if kept and (owners := kept[-1].dataset.sample_owners):
        ledger.put(SAMPLE_OWNERS, bytes(owners))
    ledger.put(REASSIGNMENTS, join_entries(text.sealed for text in kept))
    datasets = (run.dataset, *(text.dataset for text in kept))
    wanted = {file.sha256 for dataset in datasets for file in dataset.files}
    wanted |= {text.entry.manifest_sha256 for text in kept}
    _delete_others(run.folder / DATA_FOLDER, wanted)
    return kept


def _kept_by(run: RunFiles, texts: Sequence[PackedText], ledger: Ledger) -> tuple[PackedText, ...]:
    return keep_text(run, ledger, texts)


def _delete_others(folder: Path, wanted: Collection[str]) -> None:
    """The entry is durable by now: what cannot be deleted is said, and tried again with the next one."""
    try:
        unwanted = [path for path in folder.iterdir() if _SHARD_NAME.fullmatch(path.name) and path.name not in wanted]
    except OSError as error:
        _log.warning("old_text_not_deleted", path=str(folder), reason=error.strerror)
        return
    for path in unwanted:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("old_text_not_deleted", path=str(path), reason=error.strerror)


class RunTexts:
    """What the host's services ask of the run's data sets; what peers measure of the sample comes into `book`. What is taken is
    decided in run_texts_core.py.
    """

    def __init__(self, run: RunFiles, taken: Sequence[PackedText] = (), owners_D: tuple[int, ...] = ()) -> None:
        section = run.manifest.config.experts
        self._first = run.dataset
        self._run = run
        self._adding = trio.Lock()
        self._known = TextsKnown(tuple(taken), owners_D)
        every_rounds = section.reassign_every_rounds if section is not None else 0
        num_experts = section.num_experts if section is not None else 0
        self.book = SampleBook(num_experts, run.dataset.sample_windows, every_rounds)

    @property
    def taken(self) -> tuple[PackedText, ...]:
        """The re-assignments that are kept, oldest first."""
        return self._known.taken

    @property
    def owners(self) -> tuple[int, ...]:
        """Whose the documents of the sample are."""
        return self._known.owners_D

    @property
    def num_added(self) -> int:
        """How many were added since this process began."""
        return self._known.num_added

    @property
    def newest(self) -> PackedText | None:
        """The re-assignment that was signed last."""
        return self._known.newest

    @property
    def lost(self) -> tuple[bytes, Reassignment] | None:
        """The newest entry that a peer brought back, signed, and what it says: an old copy of the ledger has not got it. None once its
        text is here, or a newer one.
        """
        return self._known.lost

    @property
    def newest_entry(self) -> Reassignment | None:
        """Of what was signed last, whether its text is here or not."""
        return self._known.newest_entry

    def lacks(self, signed_unix_s: int) -> bool:
        """Whether a peer has heard of an entry that is newer than those that are known here."""
        return self._known.lacks(signed_unix_s)

    def take_back(self, sealed: bytes) -> None:
        """An entry that a peer has kept.

        Raises:
            RemoteProtocolError, VersionError: this host has not signed it.
        """
        self._decide(BroughtBack(sealed, _opened(self._run.manifest, sealed)))

    def _decide(self, event: Event) -> KeepTexts | KeepOwners | None:
        self._known, order, reason = step(self._known, event)
        _log.debug("texts_decided", heard=type(event).__name__, reason=reason)
        return order

    async def add(self, ledger: LedgerWriter, text: PackedText, packed_after: int | None = None) -> bool:
        """Remember one whose files are here, with whose documents are whose by it, and delete what only older ones name; False where a
        newer one was signed meanwhile.

        Args:
            packed_after: `num_added` before its files were brought here. Where another one was added since, they may have been deleted
                with what that one does not name: False, too.

        Raises:
            StorageError: as the ledger's methods; nothing has changed.
        """
        async with self._adding:
            order = self._decide(TextOffered(text, packed_after))
            if not isinstance(order, KeepTexts):
                return False
            self._decide(TextKept(text, await ledger.run(partial(_kept_by, self._run, order.texts))))
        return True

    async def remember(self, ledger: LedgerWriter, owners_D: tuple[int, ...], packed_after: int) -> bool:
        """Whose documents are whose where no text is packed for it; False where one was added since, which says it anew.

        Raises:
            StorageError: as the ledger's methods; nothing has changed.
        """
        async with self._adding:
            order = self._decide(OwnersOffered(owners_D, packed_after))
            if not isinstance(order, KeepOwners):
                return False
            await ledger.run(lambda ledger: ledger.put(SAMPLE_OWNERS, bytes(order.owners_D)))
            self._decide(OwnersKept(order.owners_D))
        return True

    @property
    def sentence(self) -> str:
        """Since when documents lie with experts as they do; empty as at the run's start."""
        newest = self.newest
        if newest is None:
            return ""
        return f"sent to experts anew, {several(newest.entry.number, 'time')}; from round {newest.entry.from_round} on as they are now"

    def newer_than(self, signed_unix_s: int) -> bytes:
        """The newest signed entry for a peer that has told of this one; empty where that is the newest."""
        newest = self.newest
        return newest.sealed if newest is not None and newest.entry.signed_unix_s > signed_unix_s else b""

    def at(self, index: int) -> tuple[int, DatasetManifest]:
        """What is read at a round of the trunk, and from which round on."""
        return in_force([(text.entry.from_round, text.dataset) for text in self.taken], index, self._first)

    def heldout_at(self, index: int) -> tuple[int, tuple[float, ...]]:
        """From which round on the text of a round is read, and the share of each expert in what is kept of it for evaluation."""
        from_round, dataset = self.at(index)
        return from_round, dataset.heldout_shares

    def take(self, report: PeerReport, rounds: dict[CommitId, int]) -> None:
        """The losses that a peer brings; `rounds` are those of the commits that the host knows."""
        for sample in report.sample_losses:
            if sample.commit in rounds:
                self.book = self.book.with_losses(sample, rounds[sample.commit])

    def check(self, report: PeerReport) -> None:
        """Refuse losses of a sample that this run has not.

        Raises:
            RemoteProtocolError: of another expert, or of another number of windows.
        """
        for sample in report.sample_losses:
            found = f"losses of expert {sample.expert} on {len(sample.nats)} windows"
            if sample.expert >= self.book.num_experts or len(sample.nats) != self.book.num_windows:
                raise RemoteProtocolError(
                    found, f"experts below {self.book.num_experts}, {self.book.num_windows} windows each"
                )
