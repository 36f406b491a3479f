"""Reads the run that was hosted from a folder, whether its host is running or not. Does not load the run itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from averaging.host.daemon_views import Row
from averaging.host.run_folder import run_row
from coordinator.ledger.ledger import LEDGER_FILE, START_RECORD, Ledger, open_ledger
from coordinator.progress.run_core import Phase
from protocol.errors import StorageError
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import UnitName
from protocol.rounds.messages.wire import decode_certificate, decode_record
from protocol.run.manifest import open_manifest
from protocol.tensors.model_config import WHOLE_MODEL
from protocol.tensors.spines import SPINES

MANIFEST_FILE: Final = "manifest.signed"
"""File in the host's folder. It is written last, so its presence means that the run is complete."""


def hosted_runs(folder: Path) -> list[Row]:
    """The run of a host's folder: none, or one row with "name", "run_id", "phase", "index", "total_tokens", "target_total_tokens",
    "disk_bytes" and "folder". A damaged value is None, and "note" gives the reason. Blocks while it reads every row of the ledger.
    """
    # False, too, for a folder that must not be read.
    if not any(os.path.exists(folder / name) for name in (MANIFEST_FILE, LEDGER_FILE)):
        return []
    names = ("name", "run_id", "phase", "index", "total_tokens", "target_total_tokens")
    row = run_row(folder, names, (_manifest, _progress))
    target, done = row["target_total_tokens"], row["total_tokens"]
    if isinstance(target, int) and isinstance(done, int) and done >= target:
        row["phase"] = Phase.FINISHED.value
    return [row]


def spine_in(ledger: Ledger) -> UnitName:
    """The unit whose commits are the progress of the run in this ledger; before the first commit any of them."""
    return next((unit for unit in SPINES if ledger.newest_commit(unit) is not None), WHOLE_MODEL)


def _manifest(folder: Path) -> dict[str, object]:
    path = folder / MANIFEST_FILE
    try:
        signed = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror})", "the run's manifest") from error
    manifest = open_manifest(signed, verifier=Ed25519Verifier())
    run = manifest.config.run
    return {"name": run.name, "run_id": manifest.run_id.hex(), "target_total_tokens": run.total_tokens}


def _progress(folder: Path) -> dict[str, object]:
    begun = {"phase": Phase.GATHERING.value, "index": 0, "total_tokens": 0}
    path = folder / LEDGER_FILE
    if not path.exists():
        return begun  # the host ended before it made its ledger
    with open_ledger(path) as ledger:
        is_started = ledger.get(START_RECORD) is not None
        newest = ledger.newest_commit(spine_in(ledger))
    if newest is not None:
        record = decode_record(decode_certificate(newest.certificate).record)
        return {"phase": Phase.TRAINING.value, "index": record.index, "total_tokens": record.total_tokens}
    return begun | {"phase": Phase.TRAINING.value} if is_started else begun
