"""The runs joined from a state folder, read from disk whether or not the peer is running. Does not open any model state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from averaging.host.daemon_views import Row
from averaging.host.run_folder import run_row
from averaging.state.log_entries import LOG_NAME, newest_index
from averaging.storage.file_storage import read_log
from peer.membership.saved_membership import is_known, last_run_folder, load_membership, run_folders
from protocol.identity.verifier import Ed25519Verifier
from protocol.run.manifest import open_manifest

_KEPT_STATE: Final = re.compile(r"(\d{12})-[0-9a-f]{64}")
"""The name of a file of averaging/state/generations.py begins with its round."""


def joined_runs(state_dir: Path) -> list[Row]:
    """One row per run: "name", "run_id", "index" of the newest round on disk, "target_total_tokens", "disk_bytes" without the data
    that runs share, "folder", "is_joined", false if its host never admitted this peer, and "is_last", of the run that `potluck
    join` goes on with. A damaged value is None, and "note" says why. Blocks.
    """
    last = last_run_folder(state_dir)
    names = ("name", "run_id", "index", "target_total_tokens")
    return [
        {
            **run_row(folder, names, (_membership, _newest_round)),
            "is_joined": is_known(folder),
            "is_last": folder == last,
        }
        for folder in run_folders(state_dir)
    ]


def _membership(folder: Path) -> dict[str, object]:
    saved = load_membership(folder)
    if saved is None:
        return {}
    manifest = open_manifest(saved.manifest, verifier=Ed25519Verifier())
    run = manifest.config.run
    return {"name": run.name, "run_id": manifest.run_id.hex(), "target_total_tokens": run.total_tokens}


def _newest_round(folder: Path) -> dict[str, object]:
    """A state is written every few rounds; the log has all of them."""
    found = (_KEPT_STATE.fullmatch(path.name) for path in folder.glob("*/generations/*"))
    logged = (newest_index(read_log(path)) for path in folder.glob(f"*/{LOG_NAME}"))
    return {"index": max((*(int(match[1]) for match in found if match is not None), *logged), default=0)}
