"""Tries the ports of the run's host, and tells the owner within seconds of those that do not answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from averaging.data.shard_exchange import SHARD_CHANNEL
from averaging.data.shards import HashedFile
from averaging.network.direct.dialling import dial_first
from averaging.network.direct.tls_identity import TlsCredential, stranger_context, tls_context
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.direct.tls_stream import Ends, TlsStream, send_opening
from averaging.network.pacing.bulk_lane import BulkLane
from averaging.network.seams.asyncio_thread import open_plain_nursery
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.frames import Status, refusal
from peer.membership.host_ways_core import Purpose, Tried, closed_sentence, data_ports, peer_ports
from peer.membership.saved_membership import SavedMembership
from protocol.errors import PotluckError, RefusedError, RemoteProtocolError
from protocol.identity.credential import named_peer
from protocol.ids import PeerId

log = structlog.get_logger()

TRY_WITHIN_S: Final = 3.0
FIRST_AGAIN_S: Final = 1.0
AGAIN_S: Final = 5.0
"""Pauses between tries: a port is said to be closed after two failures in a row, within ten seconds."""

_ERRNO: Final = re.compile(r"\[Errno \d+\] ")
_MULTISTREAM: Final = b"\x13/multistream/1.0.0\n"
"""First message of a libp2p connection in both directions (multiformats, multistream-select)."""


@dataclass(frozen=True, slots=True)
class AsMember:
    """An admitted peer's credential, and a file of the run's data of which it asks for the first bytes."""

    credential: TlsCredential
    file: HashedFile


@dataclass(frozen=True, slots=True)
class HostWays:
    """The host's ports besides gRPC, as `peer_ports` and `data_ports` find them. A `member` is given data; a newcomer is only shown
    the host's certificate.
    """

    host: PeerId
    ca_certificate_der: bytes
    for_peers: tuple[BulkAddress, ...]
    for_data: tuple[BulkAddress, ...]
    member: AsMember | None = None

    async def try_all(self) -> tuple[Tried, ...]:
        """Try every port once, all at the same time."""
        found = dict[tuple[Purpose, BulkAddress], str]()

        async def attempt(purpose: Purpose, port: BulkAddress) -> None:
            found[purpose, port] = await (self._greet if purpose is Purpose.PEERS else self._shake_hands)(port)

        asked = [(Purpose.PEERS, port) for port in self.for_peers] + [(Purpose.DATA, port) for port in self.for_data]
        async with trio.open_nursery() as nursery:
            for purpose, port in asked:
                nursery.start_soon(attempt, purpose, port)
        return tuple(Tried(purpose, port, found[purpose, port]) for purpose, port in asked)

    async def _greet(self, port: BulkAddress) -> str:
        """The reason why no libp2p node answers there; empty if one does."""
        with trio.move_on_after(TRY_WITHIN_S):
            try:
                async with await trio.open_tcp_stream(port.host, port.port) as stream:
                    await stream.send_all(_MULTISTREAM)
                    heard = b""
                    while len(heard) < len(_MULTISTREAM):
                        piece = await stream.receive_some(len(_MULTISTREAM))
                        if not piece:
                            break
                        heard += piece
            except (OSError, trio.BrokenResourceError) as error:
                return _cause(error)
            return "" if heard.startswith(_MULTISTREAM) else "something else answers there"
        return f"no answer in {TRY_WITHIN_S:g} s"

    async def _shake_hands(self, port: BulkAddress) -> str:
        """The reason why the host does not show its certificate there; empty if it does."""

        def check(certificate_der: bytes) -> None:
            if named_peer(certificate_der) != self.host:
                raise RefusedError("another peer answers there", "the host")

        own, ca_certificate_der = self.member, self.ca_certificate_der
        with trio.move_on_after(TRY_WITHIN_S):
            try:
                if own is None:
                    context = stranger_context(ca_certificate_der)
                else:
                    context = tls_context(own.credential, ca_certificate_der, is_server=False)
                _, tls = await dial_first([port], context, check)
                try:
                    if own is not None:
                        await _take_bytes(tls, self.host, own.file)
                finally:
                    tls.close(is_reset=True)
            except PotluckError as error:
                return _ERRNO.sub("", error.found.removeprefix(f"{port.host} port {port.port}: "))
            except OSError as error:
                return _cause(error)
            return ""
        return f"no answer in {TRY_WITHIN_S:g} s"


async def _take_bytes(tls: TlsSocket, host: PeerId, file: HashedFile) -> None:
    """Ask for a file and take its first frame.

    Raises:
        PotluckError: the host refuses us, or does not have it.
        OSError: the connection broke.
    """
    if (status := await send_opening(tls, SHARD_CHANNEL)) is not Status.FINE:
        raise refusal(status, host, SHARD_CHANNEL)
    async with open_plain_nursery() as nursery:
        stream = TlsStream(tls, host, SHARD_CHANNEL, BulkLane(), Ends(lambda ending: nursery.start_soon(ending)))
        await stream.send_frame(bytes.fromhex(file.sha256))
        length = await stream.receive_frame()
        if length is None or int.from_bytes(length, "big") != file.num_bytes or not await stream.receive_frame():
            raise RemoteProtocolError("a host that does not give its data", "the run's first file")


def _cause(error: BaseException) -> str:
    """The system's word for the failure: that of the last address tried, if a name has several."""
    while isinstance(error, OSError) and error.strerror is None and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        return _cause(error.exceptions[-1])
    found = getattr(error, "strerror", None) or str(error)
    return "Connection refused" if isinstance(error, ConnectionRefusedError) else str(found)


def host_ways(saved: SavedMembership, host: PeerId) -> HostWays:
    """The ways that a membership names."""
    for_peers = peer_ports(saved.bootstrap, host)
    return HostWays(host, saved.ca_certificate_der, for_peers, data_ports(for_peers, saved.addresses))


async def watch_host_ports(ways: HostWays, answers_at: str, show: Callable[[str], None]) -> None:
    """Try the ports until each purpose has one that answers. After two failures in a row `show` gets the sentence, and "" when all
    is well; both are logged.
    """
    said, num_failures = "", 0
    while True:
        sentence = closed_sentence(answers_at, await ways.try_all())
        num_failures = num_failures + 1 if sentence else 0
        if not sentence:
            if said:
                log.info("host_ports_answer")
                show("")
            return
        if num_failures > 1 and sentence != said:
            said = sentence
            log.warning("host_ports_do_not_answer", reason=sentence)
            show(sentence)
        await trio.sleep(AGAIN_S if num_failures > 1 else FIRST_AGAIN_S)
