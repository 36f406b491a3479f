"""What `potluck doctor` reads of the way to the host. Like all of its readings: each with a deadline, and none can end the command.

It writes nothing: no identity is made, no invite used, no session counted.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from averaging.network.asyncio_thread import open_asyncio_thread
from averaging.network.clocks import SystemClock
from averaging.release import installed_release
from peer.config import PeerConfig
from peer.coordinator_client import Caller, CoordinatorClient, CoordinatorEndpoint, open_coordinator_client
from peer.doctor_host_core import Answer, HostReadings, NoAnswer
from peer.membership_file import is_known, last_run_folder, load_membership, run_folder
from protocol.envelope import first_sequence, next_session
from protocol.errors import CallTimeout, PotluckError, RemoteProtocolError, VersionError
from protocol.identity import Ed25519Verifier, Identity
from protocol.identity_file import read_identity
from protocol.invite import decode_invite
from protocol.manifest import open_manifest

ALL_WITHIN_S: Final = 30.0
"""The sum of the deadlines below, should the host be slow in everything."""

GREETING_WITHIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Way:
    """Where the host is, and by what it knows us: the secret of an invite, or, where that is empty, `identity` and its credential."""

    endpoint: CoordinatorEndpoint
    identity: Identity
    secret: bytes
    credential: bytes

    @property
    def is_needed(self) -> bool:
        """Whether nothing can begin without the host."""
        return bool(self.secret)


def find_way(config: PeerConfig, invite_text: str) -> Way | None:
    """By the invite, or else by the last run; None where there is neither. A run that was joined before is known by its credential.

    Raises:
        PotluckError: what is there cannot be used, and why.
    """
    if not invite_text:
        folder = last_run_folder(config.state_dir)
        return _known_way(config, folder) if folder is not None else None
    invite = decode_invite(invite_text)
    folder = run_folder(config.state_dir, invite.run_id)
    if is_known(folder):
        return _known_way(config, folder)
    invite.ensure_fresh(time.time())
    endpoint = CoordinatorEndpoint(invite.coordinator_addresses, invite.ca_certificate_der, invite.run_id)
    return Way(endpoint, Identity(secrets.token_bytes(32)), invite.secret, b"")


def _known_way(config: PeerConfig, folder: Path) -> Way | None:
    saved = load_membership(folder)
    if saved is None:
        return None
    run_id = open_manifest(saved.manifest, verifier=Ed25519Verifier()).run_id
    endpoint = CoordinatorEndpoint(saved.addresses, saved.ca_certificate_der, run_id)
    return Way(endpoint, read_identity(config.state_dir / "identity"), b"", saved.credential)


def read_host(config: PeerConfig, invite_text: str) -> HostReadings | None:
    """Read all of it; None where there is neither an invite nor a last run. Blocks for ALL_WITHIN_S at most."""
    try:
        way = find_way(config, invite_text)
    except PotluckError as error:
        return HostReadings(_no_answer(error, is_needed=True))
    return None if way is None else trio.run(_read, way)


def _no_answer(error: PotluckError, *, is_needed: bool) -> NoAnswer:
    expected = f", expected {error.expected}" if error.expected else ""
    return NoAnswer(f"{error.found}{expected}", error.remedy, is_needed)


async def _read(way: Way) -> HostReadings:
    with trio.move_on_after(ALL_WITHIN_S):
        return await _ask(way)
    late = CallTimeout(f"no answer from the host within {ALL_WITHIN_S:.0f} s", "", "try again later")
    return HostReadings(_no_answer(late, is_needed=way.is_needed))


async def _ask(way: Way) -> HostReadings:
    caller = Caller(way.identity, _next_sequence, SystemClock())
    try:
        async with (
            open_asyncio_thread() as thread,
            open_coordinator_client(thread, way.endpoint, caller) as client,
        ):
            return HostReadings(await _greet(way, client))
    except PotluckError as error:
        return HostReadings(_no_answer(error, is_needed=way.is_needed or isinstance(error, VersionError)))


async def _next_sequence() -> int:
    """By the clock alone: the coordinator judges these calls apart from all others, and the daemon may be running beside us."""
    now_unix_s = time.time()
    return first_sequence(next_session(0, now_unix_s)) + int(now_unix_s % 1.0 * (1 << 32))


async def _greet(way: Way, client: CoordinatorClient) -> Answer:
    with trio.move_on_after(GREETING_WITHIN_S * len(way.endpoint.addresses)):
        greeting = await client.greet()
        if not math.isfinite(greeting.ahead_s):
            raise RemoteProtocolError("a host whose clock tells no time", "seconds since 1970", "tell the host")
        return Answer(", ".join(way.endpoint.addresses), greeting.ahead_s, greeting.release, installed_release())
    raise CallTimeout(
        f"no answer from {', '.join(way.endpoint.addresses)}", "a running `potluck host`", "try again later"
    )
