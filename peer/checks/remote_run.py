"""What a host says of its run to somebody who holds an invite and has not joined: the invite is not used up, nothing is written."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import trio

from averaging.data.shards import parse_dataset
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from peer.checks.host_readings import Way, find_way
from peer.membership.coordinator_client import Caller, open_coordinator_client
from peer.membership.saved_run import KeptRun
from peer.settings.config import PeerConfig
from protocol.errors import CallTimeout
from protocol.identity.envelope import first_sequence, next_session
from protocol.identity.identity import Ed25519Verifier
from protocol.run.manifest import open_manifest

WITHIN_S: Final = 15.0


def ask_for_run(config: PeerConfig, invite_text: str) -> KeptRun | None:
    """The run as its host describes it now, checked as at admission; None without an invite. Blocks for WITHIN_S at most.

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
