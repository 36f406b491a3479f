"""Descriptions of runs: saved ones of runs joined before, without network, and those fetched from an invite's host.

Asking a host does not use up the invite and writes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from averaging.data.shards import DatasetManifest, parse_dataset
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from peer.checks.host_readings import Way, find_way
from peer.membership.coordinator_client import Caller, open_coordinator_client
from peer.membership.saved_membership import last_run_folder, load_membership, run_folder
from peer.settings.config import PeerConfig
from protocol.errors import CallTimeout
from protocol.identity.envelope import first_sequence, next_session
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import RunId
from protocol.run.manifest import RunManifest, open_manifest


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run as its host described it at admission."""

    manifest: RunManifest
    dataset: DatasetManifest


def find_kept_run(state_dir: Path, run_id: RunId | None) -> KeptRun | None:
    """The saved run of that id, or the last one for None; None if it was never joined from here. Blocks.

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


WITHIN_S: Final = 15.0


def ask_for_run(config: PeerConfig, invite_text: str) -> KeptRun | None:
    """The host's current description of its run, checked as at admission; None without an invite. Blocks for WITHIN_S at most.

    Raises:
        RefusedError: the invite is no good any more.
        UnreachableError, CallTimeout: nobody answers.
        VersionError, RemoteProtocolError: another release, or something that the host did not sign.
    """
    way = find_way(config, invite_text) if invite_text else None
    return None if way is None else trio.run(partial(_ask, way))


async def _ask(way: Way) -> KeptRun:
    caller = Caller(way.identity, _next_sequence, SystemClock())
    with trio.move_on_after(WITHIN_S):
        async with open_asyncio_thread() as thread, open_coordinator_client(thread, way.endpoint, caller) as client:
            signed, dataset = await client.describe(way.proof)
            manifest = open_manifest(signed, verifier=Ed25519Verifier(), expected_run_id=way.endpoint.run_id)
            return KeptRun(manifest, parse_dataset(dataset, manifest.dataset_id))
    raise CallTimeout(f"no answer from {', '.join(way.endpoint.addresses)}", "a running `potluck host`", "try later")


async def _next_sequence() -> int:
    return first_sequence(next_session(0, time.time()))
