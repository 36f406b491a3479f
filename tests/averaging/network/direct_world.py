"""Peers with credentials and the direct way alone: what would be asked on the control lane is a function call."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import trio

from averaging.network.direct.direct import (
    ADDRESS_CHANNEL,
    CONNECT_WITHIN_S,
    DirectOptions,
    DirectWay,
    HostNetwork,
    open_direct,
)
from averaging.network.direct.tls_identity import TlsCredential, credential_check
from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.seams.frames import Status
from averaging.network.seams.interfaces import CallHandler, Stream, StreamHandler
from protocol.errors import PeerUnreachable, PotluckError
from protocol.identity.credential import (
    CertificateAuthority,
    CredentialRequest,
    make_ca,
    make_request,
    make_tls_key,
    open_request,
)
from protocol.identity.credential import key_pem as pem_of
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId

RUN = RunId(b"r" * 32)
DAY_S = 86_400.0
CA = make_ca(b"c" * 32, now_unix_s=time.time() - 100 * DAY_S)
OTHER_CA = make_ca(b"d" * 32, now_unix_s=time.time() - 100 * DAY_S)
ALICE, BOB, CAROL = (Identity(bytes([40 + number]) * 32) for number in range(3))


def credential_of(
    identity: Identity, *, authority: CertificateAuthority = CA, run: RunId = RUN, ended_s: float = -DAY_S
) -> TlsCredential:
    """A credential that ended so long ago; by default it lasts for another day."""
    begin_s, key = time.time() - ended_s - DAY_S, make_tls_key()
    request: CredentialRequest = open_request(
        make_request(identity, run, key, begin_s), verifier=Ed25519Verifier(), run_id=run, now_unix_s=begin_s
    )
    return TlsCredential(authority.issue(request, run, now_unix_s=begin_s, days=1, serial=7), pem_of(key))


def options_of(identity: Identity, run: RunId = RUN) -> DirectOptions:
    """Listening on any port of loopback, with a credential that lasts for another day."""
    own = credential_of(identity, run=run)
    check = credential_check(CA.certificate_der, run, time.time)
    # beside other tests a first connection takes as long as it takes
    return DirectOptions(lambda: own, CA.certificate_der, check, "127.0.0.1", first_within_s=CONNECT_WITHIN_S)


@dataclass
class Peer:
    """One of them. `reported` are the addresses that others are told of it where they are not its own."""

    identity: Identity
    way: DirectWay
    lane: BulkLane
    handlers: dict[str, StreamHandler]
    calls: dict[str, CallHandler]
    admits: Callable[[PeerId], bool] = lambda _: True
    reported: bytes | None = None
    num_asked: int = 0
    failed: list[PotluckError] = field(default_factory=list)

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    @property
    def port(self) -> int:
        assert self.way.port is not None
        return self.way.port


class World:
    """The peers that are open now."""

    def __init__(self) -> None:
        self.peers: dict[PeerId, Peer] = {}

    @asynccontextmanager
    async def open(self, identity: Identity, options: DirectOptions | None = None) -> AsyncIterator[Peer]:
        handlers: dict[str, StreamHandler] = {}
        calls: dict[str, CallHandler] = {}
        me, lane = identity.peer_id, BulkLane()

        async def call(peer: PeerId, channel: str, request: bytes, timeout_s: float) -> bytes:
            assert channel == ADDRESS_CHANNEL
            asked = self.peers.get(peer)
            if asked is None:
                raise PeerUnreachable(f"{peer} is not there", "a peer")
            asked.num_asked += 1
            return asked.reported if asked.reported is not None else await asked.calls[channel](me, request)

        async def admits(peer: PeerId) -> bool:
            await trio.lowlevel.checkpoint()
            return self.peers[me].admits(peer)

        async def serve(peer: PeerId, channel: str, stream: Stream) -> bool:
            try:
                await handlers[channel](peer, stream)
            except PotluckError as error:
                self.peers[me].failed.append(error)
                return False
            return True

        def addresses() -> tuple[str, ...]:
            return (f"/ip4/127.0.0.1/tcp/1/p2p/{me}",)

        async def answer(peer: PeerId, channel: str, request: bytes) -> tuple[Status, bytes]:
            if channel not in calls:
                return Status.UNSERVED, b""
            try:
                return Status.FINE, await calls[channel](peer, request)
            except PotluckError as error:
                return Status.FAILED, error.one_line().encode()

        host = HostNetwork(
            me, call, addresses, calls.__setitem__, answer, frozenset(), admits, handlers.__contains__, serve
        )
        async with open_direct(options or options_of(identity), host, lane) as way:
            self.peers[me] = Peer(identity, way, lane, handlers, calls)
            try:
                yield self.peers[me]
            finally:
                del self.peers[me]


@asynccontextmanager
async def pair(bob: DirectOptions | None = None) -> AsyncIterator[tuple[Peer, Peer]]:
    """Alice and Bob."""
    world = World()
    async with world.open(ALICE) as alice, world.open(BOB, bob) as other:
        yield alice, other


def with_credential(identity: Identity, own: TlsCredential) -> DirectOptions:
    """The options of one that shows another credential."""
    return replace(options_of(identity), credential=lambda: own)
