"""What this machine knows of a run that it joined before, without asking anybody."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from averaging.data.shards import DatasetManifest, parse_dataset
from peer.membership.saved_membership import last_run_folder, load_membership, run_folder
from protocol.identity.identity import Ed25519Verifier
from protocol.ids import RunId
from protocol.run.manifest import RunManifest, open_manifest


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run as its host described it at admission."""

    manifest: RunManifest
    dataset: DatasetManifest


def find_kept_run(state_dir: Path, run_id: RunId | None) -> KeptRun | None:
    """The run of that id, or the last one for None; None where it was never joined from here. Blocks.

    Raises:
        StorageError: what was kept is damaged.
        VersionError: another release made the run.
        RemoteProtocolError: it is not what its host signed.
    """
    folder = last_run_folder(state_dir) if run_id is None else run_folder(state_dir, run_id)
    saved = load_membership(folder) if folder is not None else None
    if saved is None:
        return None
    manifest = open_manifest(saved.manifest, verifier=Ed25519Verifier(), expected_run_id=run_id)
    return KeptRun(manifest, parse_dataset(saved.dataset, manifest.dataset_id))
