"""Whether the host of a joined run has banned this peer, from the files of the run, without network."""

from __future__ import annotations

from pathlib import Path

from peer.membership.saved_membership import load_membership
from protocol.errors import PotluckError, RefusedError
from protocol.identity.identity_file import read_identity
from protocol.identity.revocation import RevocationBook, split_entries
from protocol.identity.verifier import Ed25519Verifier
from protocol.run.manifest import open_manifest

FILE_NAME = "revocations"
"""In a run's folder: the host's bans, as signed."""


def banned(reason: str) -> RefusedError:
    """The error of a peer that its host has banned, for this reason; "" if the host gave none."""
    return RefusedError(
        f"the host banned this peer from the run{f': {reason}' if reason else ''}",
        "",
        "ask the host",
    )


def own_ban(state_dir: Path, run_folder: Path) -> RefusedError | None:
    """The error with which a join of this run would end; None if this peer is not banned as far as its files tell. Blocks."""
    try:
        saved, me = load_membership(run_folder), read_identity(state_dir / "identity").peer_id
        if saved is None:
            return None
        verifier = Ed25519Verifier()
        manifest = open_manifest(saved.manifest, verifier=verifier)
        book = RevocationBook().with_entries(
            split_entries((run_folder / FILE_NAME).read_bytes()),
            verifier=verifier,
            run_id=manifest.run_id,
            host_public_key=bytes.fromhex(manifest.host_public_key),
        )
    except (OSError, PotluckError):
        return None  # damaged files are told of when they are used
    return banned(book.by_peer[me].reason) if me in book.by_peer else None
