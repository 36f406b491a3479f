from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peer.membership.saved_membership import FILE_NAME, SavedMembership, run_folder, save_membership
from peer.membership.saved_run import find_kept_run
from protocol.errors import RemoteProtocolError, StorageError
from protocol.identity.identity import Identity
from protocol.identity.invite import Invite
from protocol.ids import RunId
from protocol.run.manifest import RunManifest, default_run_toml, parse_run_config, sign_manifest
from tests.peer.membership.test_joining import DATASET, INVITE

HOST = Identity(b"h" * 32)
MANIFEST = RunManifest(
    config=parse_run_config(default_run_toml()),
    dataset_id=DATASET.dataset_id,
    dataset_tokens=1000,
    heldout_tokens=100,
    zlib_bits_per_byte=2.0,
    pairs_nats_per_byte=2.4,
    host_public_key=HOST.public_key.hex(),
    ca_certificate_sha256="cd" * 32,
)
TO_IT: Invite = replace(INVITE, run_id=MANIFEST.run_id)


def keep(state_dir: Path, run_id: RunId = MANIFEST.run_id) -> Path:
    """As a peer keeps a run that it joined; its folder."""
    saved = SavedMembership.model_construct(
        addresses=("192.0.2.7:1",), ca_certificate_der=b"ca", tls_key_pem=b"tls key", credential=b"credential",
        manifest=sign_manifest(MANIFEST, HOST), dataset=DATASET.canonical_bytes(), start_record=b"",
        coordinator_peer_id="p", bootstrap=(), peer_addresses=(),
    )  # fmt: skip
    folder = run_folder(state_dir, run_id)
    save_membership(folder, saved)
    return folder


def test_run_that_was_joined_is_known_by_its_id_and_as_the_last_one(tmp_path: Path) -> None:
    keep(tmp_path)
    for run_id in (None, MANIFEST.run_id):
        kept = find_kept_run(tmp_path, run_id)
        assert kept is not None
        assert (kept.manifest, kept.dataset) == (MANIFEST, DATASET)
    assert find_kept_run(tmp_path, RunId(b"o" * 32)) is None


def test_nothing_is_known_where_no_run_was_joined(tmp_path: Path) -> None:
    assert find_kept_run(tmp_path / "absent", None) is None
    assert find_kept_run(tmp_path, MANIFEST.run_id) is None


def test_damaged_file_or_another_runs_is_an_error(tmp_path: Path) -> None:
    other = RunId(b"o" * 32)
    keep(tmp_path, other)
    with pytest.raises(RemoteProtocolError):
        find_kept_run(tmp_path, other)
    (run_folder(tmp_path, other) / FILE_NAME).write_bytes(b"{")
    with pytest.raises(StorageError, match="cannot be read"):
        find_kept_run(tmp_path, None)
