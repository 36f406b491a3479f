"""Credentials of a simulated world: production's authority, roster, directory record and renewal, with days that pass in seconds.

A credential begins BACKDATE_S early and ends LIFE_S after it was issued; a peer asks for another one when a third of that is left. The
host counts as away sooner than that third passes, as in a run: so whoever votes is judged as of its last word before anything ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from averaging.network.seams.interfaces import Network
from averaging.rounds.traffic.directory_keys import DirectoryKeys
from averaging.rounds.traffic.discovery import DirectoryPoller
from peer.membership import credential_cache as roster
from peer.membership import membership_upkeep
from peer.membership.credential_cache import CredentialCache, recent_voters
from peer.membership.membership_upkeep import MembershipUpkeep
from peer.membership.process_takeover import DirectoryClaim
from peer.membership.saved_membership import with_kept
from protocol.errors import RefusedError, SupersededError, TransportError
from protocol.identity import credential
from protocol.identity.credential import credential_ends_unix_s, make_ca, make_request, open_request
from protocol.identity.identity import Signer
from protocol.ids import PeerId

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.swarm import World

T = TypeVar("T")
DAY_S: Final = 86_400.0
LIFE_S: Final = 90.0
BACKDATE_S: Final = 6
RENEW_EVERY_S: Final = 20.0
HOST_AWAY_S: Final = 25.0
REQUEST_BYTES: Final = 512
HOST: Final = PeerId("host")
_TLS_KEY: Final = ec.derive_private_key(7, ec.SECP256R1())
"""Everybody's: a key that is drawn would make records of other lengths in each process."""


@contextmanager
def in_seconds() -> Iterator[None]:
    """Days pass in seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credential, "BACKDATE_S", BACKDATE_S)
        patch.setattr(roster, "HOST_AWAY_S", HOST_AWAY_S)
        patch.setattr(membership_upkeep, "RENEW_EVERY_S", RENEW_EVERY_S)
        patch.setattr(membership_upkeep, "make_tls_key", lambda: _TLS_KEY)
        yield


class Authority:
    """The host's own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ca = make_ca(b"c" * 32, now_unix_s=self.now_s() - DAY_S)
        self.certificate_der = self._ca.certificate_der
        self._num_issued = 0

    def now_s(self) -> float:
        """Unix time by a clock that is right."""
        return self._world.swarm.unix_offset_s + trio.current_time()

    def has_ended(self, der: bytes) -> bool:
        """Whether there is no credential, or one that is no good any more."""
        return not der or credential_ends_unix_s(der) <= self.now_s()

    def issue(self, sealed: bytes) -> bytes:
        """A credential for whoever signed this request."""
        world, now_s = self._world, self.now_s()
        asked = open_request(sealed, verifier=world.verifier, run_id=world.run_id, now_unix_s=now_s)
        self._num_issued += 1
        days: float = LIFE_S / DAY_S
        return self._ca.issue(asked, world.run_id, now_unix_s=now_s, days=days, serial=self._num_issued)

    def request(self, signer: Signer) -> bytes:
        """The credentials with which a peer asks before it runs."""
        return make_request(signer, self._world.run_id, _TLS_KEY, self.now_s())


@dataclass
class _Disk:
    """The part of its membership that a peer has on disk; as an offload it writes only that."""

    credential: bytes = b""
    host_heard_s: float | None = None
    peer_addresses: tuple[str, ...] = ()

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T | None:
        """`remember_credential(folder, credential, key)`, `remember_peers(folder, addresses)`."""
        if isinstance(function, partial) and function.func is membership_upkeep.remember_credential:
            self.credential = function.args[1]
            return None
        if isinstance(function, partial) and function.func is membership_upkeep.remember_peers:
            self.peer_addresses = with_kept(function.args[1], self.peer_addresses)
            return None
        return function()


@dataclass
class Standing:
    """One peer's membership over its process lives."""

    node: Node
    authority: Authority
    disk: _Disk = field(default_factory=_Disk)
    invited_by: tuple[str, ...] = ()
    """The addresses of the peers that its invite names beside the host."""

    dialled: tuple[str, ...] = ()
    """The peers that this process dials beside the host and those that it has listed: as its invite and its disk named them at its
    start.
    """

    def admitted(self) -> None:
        """By the host, which is there."""
        if self.authority.has_ended(self.disk.credential):
            self.disk.credential = self.authority.issue(self.authority.request(self.node.signer))
        self.disk.host_heard_s = self.authority.now_s()

    def begin(self) -> CredentialCache:
        """For a process that starts with what is on disk."""
        node, world, disk = self.node, self.node.world, self.disk
        self.dialled = (*self.invited_by, *disk.peer_addresses)
        made = CredentialCache(
            world.run_id,
            self.authority.certificate_der,
            HOST,
            disk.credential,
            world.verifier,
            node.clock,
            disk.host_heard_s,
        )
        made.rely_on(lambda: recent_voters(node.service.chain.links) if node.service is not None else ())
        made.ban(tuple(node.bans))
        return made

    def heard(self) -> None:
        """The host answered."""
        if self.node.roster is not None:
            self.node.roster.host_was_heard()
            self.disk.host_heard_s = self.node.roster.host_heard_s

    async def keep(self, used: CredentialCache) -> None:
        """Renew the credential and remember the others, until cancelled."""
        node, world = self.node, self.node.world
        upkeep = MembershipUpkeep(
            folder=Path(),
            roster=used,
            identity=node.signer,  # type: ignore[arg-type]
            run_id=world.run_id,
            ca_certificate_der=self.authority.certificate_der,
            clock=node.clock,
            offload=self.disk,  # type: ignore[arg-type]
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(upkeep.keep_peers)
            nursery.start_soon(upkeep.keep_credential, self._ask)

    async def _ask(self, sealed: bytes) -> bytes:
        node, world = self.node, self.node.world
        await world.swarm.timers.sleep(world.swarm.delay_s(node.peer, node.peer, REQUEST_BYTES))
        if not world.host.hears(node):
            raise TransportError("the host does not answer", "an answer")
        if world.host.is_banned(node.peer):
            raise RefusedError("a peer that was banned", "a peer in good standing")
        world.happened("expiry" if self.authority.has_ended(self.disk.credential) else "renewal", node.name)
        return self.authority.issue(sealed)


def own_record(
    node: Node, used: CredentialCache, network: Network, next_sequence: Callable[[], int]
) -> Callable[[float], Awaitable[bytes]]:
    """Makes a process's directory records, and closes it where a newer one of its identity has made some."""
    world = node.world
    own = DirectoryClaim(node.signer, world.run_id, node.session, next_sequence, world.verifier, used)
    poller = DirectoryPoller(network, DirectoryKeys(world.run_id))

    async def make(expires_unix_s: float) -> bytes:
        try:
            return await own.make(poller, expires_unix_s)
        except SupersededError as error:
            node.close(error)
            raise

    return make
