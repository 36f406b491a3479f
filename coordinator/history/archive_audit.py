"""Checks the archive of a run's certificates against the ledger, for `potluck ledger`. Reads; changes nothing.

The ledger keeps the id of every round of the far past. An id is the hash of its record and of the id before it, so a file whose
records have these ids is what the members signed at the time. Signatures are checked when a certificate is first taken, and not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.history.certificate_archive import read_archive
from coordinator.history.history_rows import PastBlock, archived_units, past_blocks
from coordinator.ledger.ledger import Ledger
from protocol.errors import PotluckError, StorageError
from protocol.ids import CommitId
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record


@dataclass(frozen=True, slots=True)
class AuditedFile:
    """A file of the archive that is whole. `num_certificates` counts those of commits that were not followed, too."""

    unit: str
    file: str
    first_round: int
    last_round: int
    num_certificates: int
    num_bytes: int


def audited_files(ledger: Ledger, folder: Path) -> Iterator[AuditedFile]:
    """Check each file in the archive's folder, oldest first. Blocks.

    Raises:
        StorageError: the first file that is missing, damaged, or other than the ledger says.
    """
    for unit in archived_units(ledger):
        before: CommitId | None = None
        for block in past_blocks(ledger, unit):
            yield _audited(block, folder / block.file, before)
            before = block.rounds[-1].commit


def _audited(block: PastBlock, path: Path, before: CommitId | None) -> AuditedFile:
    """Check one file. `before`: the last commit of the file before it; None for the first one."""
    certificates = read_archive(path, block.sha256)
    parents = dict(_named(raw, path) for raw in certificates)
    for round_ in block.rounds:
        parent = parents.get(round_.commit)
        if parent is None or before not in (None, parent):
            raise StorageError(
                f"{path} does not have the certificate of round {round_.index} that the ledger names",
                "a file and a ledger of one run",
                "restore a copy of the host's folder",
            )
        before = round_.commit
    first, last = block.rounds[0].index, block.rounds[-1].index
    return AuditedFile(block.unit, block.file, first, last, len(certificates), path.stat().st_size)


def _named(raw: bytes, path: Path) -> tuple[CommitId, CommitId]:
    """The id of a certificate's commit, and that of its parent."""
    try:
        record = decode_certificate(raw).record
        parent = decode_record(record).parent
    except PotluckError as error:
        raise StorageError(
            f"{path} has a certificate that cannot be read: {error.found}",
            "what this release or an earlier one wrote",
            "install the newest release",
        ) from error
    return commit_id(parent, record), parent
