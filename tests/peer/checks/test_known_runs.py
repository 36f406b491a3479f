"""Tests of peer/checks/known_runs.py.

The facts that a newcomer gets about a run before joining, by a real coordinator's gRPC port, TLS included.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from peer.checks.known_runs import ask_for_run, find_kept_run
from peer.membership.saved_membership import FILE_NAME, SavedMembership, run_folder, save_membership
from protocol.errors import PotluckError, RefusedError, RemoteProtocolError, StorageError, UnreachableError
from protocol.identity.identity import Identity
from protocol.identity.invite import Invite, hash_secret
from protocol.ids import RunId
from protocol.run.manifest import default_run_toml, parse_run_config, sign_manifest
from tests.coordinator.host_world import SECRET
from tests.peer.checks.test_host_readings import config, files_of, invite, join_before
from tests.peer.membership.test_coordinator_client import free_address, serving
from tests.peer.membership.test_joining import DATASET, INVITE
from tests.protocol.run.made_manifest import manifest_of

HOST = Identity(b"h" * 32)
MANIFEST = manifest_of(
    parse_run_config(default_run_toml()), dataset_id=DATASET.dataset_id, host_public_key=HOST.public_key.hex()
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


async def test_whoever_holds_an_invite_is_told_the_run_and_the_invite_is_not_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the world's host has no data; what counts is that they are checked against the signed manifest
    monkeypatch.setattr("peer.checks.known_runs.parse_dataset", lambda data, dataset_id: (data, dataset_id))
    async with serving(tmp_path) as (host, _, address):
        asked = await trio.to_thread.run_sync(ask_for_run, config(tmp_path), invite(host, address))
        assert asked is not None
        assert asked.manifest.run_id == host.run_id
        assert asked.dataset == (b"{}", asked.manifest.dataset_id)  # type: ignore[comparison-overlap]
        facts = host.ledger.invite(hash_secret(SECRET))
        assert facts is not None
        assert facts.uses == 0
        assert not (tmp_path / "peer").exists()
        await join_before(host, address, tmp_path / "peer")
        before = files_of(tmp_path / "peer")
        again = await trio.to_thread.run_sync(ask_for_run, config(tmp_path), invite(host, address, secret=bytes(16)))
        assert again == asked
        assert files_of(tmp_path / "peer") == before


@pytest.mark.parametrize(
    ("changes", "error", "found"),
    [
        ({"secret": b"another secret 1"}, RefusedError, "invite"),
        ({"expires_unix_s": 1}, RefusedError, "expired"),
        ({"coordinator_addresses": (free_address(),)}, UnreachableError, "host does not answer"),
    ],
    ids=["a guess", "expired", "nobody there"],
)
async def test_what_stands_in_the_way_is_one_line(
    tmp_path: Path, changes: dict[str, object], error: type[PotluckError], found: str
) -> None:
    async with serving(tmp_path) as (host, _, address):
        line = invite(host, address, **changes)
        with pytest.raises(error, match=found):
            await trio.to_thread.run_sync(ask_for_run, config(tmp_path), line)


async def test_data_that_the_manifest_does_not_name_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        with pytest.raises(RemoteProtocolError):
            await trio.to_thread.run_sync(ask_for_run, config(tmp_path), invite(host, address))


def test_without_an_invite_nobody_is_asked(tmp_path: Path) -> None:
    assert ask_for_run(config(tmp_path), "") is None
