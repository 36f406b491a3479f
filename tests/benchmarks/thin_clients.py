"""Peers of `many_peers` that only speak to the host. Each has an identity and a TLS connection of its own, all in one process.

They sign their reports as real ones do, shorten them as real ones do, and train nothing.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, cast

import grpc
import grpc.aio

from protocol.host.calls import ERROR_METADATA_KEY, REPORT_DOMAIN, SERVICE_NAME, TLS_SERVER_NAME, decode_error
from protocol.host.report_bytes import decode_report_reply, encode_report
from protocol.host.report_delta import report_digest, shortened
from protocol.host.reports import PeerReport, ReportReply
from protocol.identity.credential import make_request, make_tls_key
from protocol.identity.envelope import seal
from protocol.identity.identity import Identity
from protocol.ids import PROTOCOL_VERSION, CommitId, Root, RunId, UnitName
from protocol.pb import coordinator_pb2 as pb
from tests.coordinator.host_world import SECRET

WITHIN_S: Final = 60.0
EXPIRY_S: Final = 120.0
_OPTIONS: Final = (
    ("grpc.ssl_target_name_override", TLS_SERVER_NAME),
    ("grpc.use_local_subchannel_pool", 1),  # else all clients of this process would share one connection
    ("grpc.http2.bdp_probe", 0),
)


@dataclass(frozen=True, slots=True)
class HostAt:
    """The port on which the host listens, its authority's certificate (DER), and its run."""

    port: int
    ca_der: bytes
    run_id: RunId


@dataclass
class ThinClient:
    """One peer. `refused` are the reasons of calls that were refused."""

    host: HostAt
    number: int
    identity: Identity
    channel: grpc.aio.Channel
    sequence: int = 0
    like: bytes = b""
    refused: list[str] = field(default_factory=list)
    last: ReportReply | None = None

    async def admit(self) -> bool:
        """Ask for admission with the run's invite. Returns whether it was granted."""
        now = time.time()
        csr = make_request(self.identity, self.host.run_id, make_tls_key(), now)
        body = pb.AdmitRequest(
            protocol_version=PROTOCOL_VERSION,
            run_id=self.host.run_id,
            invite_secret=SECRET,
            credential_request=csr,
            unix_s=now,
        )
        return await self._call("Admit", body.SerializeToString()) is not None

    async def report(self, report: PeerReport) -> bool:
        """Send a report, shortened where the host knows one to compare with."""
        like = report_digest(report)
        said = shortened(report) if self.like == like else report
        self.sequence += 1
        expires_unix_ms = int((time.time() + EXPIRY_S) * 1000)
        payload = encode_report(said)
        envelope = seal(self.identity, REPORT_DOMAIN, self.host.run_id, self.sequence, expires_unix_ms, payload)
        raw = await self._call("Report", pb.Sealed(envelope=envelope).SerializeToString())
        if raw is None:
            self.like = b""
            return False
        self.last = decode_report_reply(raw)
        self.like = self.last.like
        return True

    async def _call(self, name: str, request: bytes) -> bytes | None:
        multi = self.channel.unary_unary(f"/{SERVICE_NAME}/{name}", bytes, bytes)
        try:
            return bytes(await multi(request, timeout=WITHIN_S))
        except grpc.aio.AioRpcError as error:
            self.refused.append(_reason(error))
            return None


def _reason(error: grpc.aio.AioRpcError) -> str:
    for key, value in cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ()):
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            return decode_error(value).one_line()
    return f"{error.code()}: {error.details()}"


def identity_of(number: int) -> Identity:
    """The identity of the client with this number."""
    return Identity(sha256(b"thin client %d" % number).digest())


def make_clients(host: HostAt, count: int, first: int = 0) -> list[ThinClient]:
    """So many clients with identities that no others have. Inside a running loop."""
    pem = ssl.DER_cert_to_PEM_cert(host.ca_der).encode("ascii")
    credentials = grpc.ssl_channel_credentials(root_certificates=pem)
    return [
        ThinClient(
            host,
            number,
            identity_of(number),
            grpc.aio.secure_channel(f"127.0.0.1:{host.port}", credentials, options=_OPTIONS),
        )
        for number in range(first, first + count)
    ]


def training(client: ThinClient, unit: UnitName, head: CommitId, index: int, tokens_ready: int) -> PeerReport:
    """The report of a peer that trains, with everything that real ones say."""
    address = f"/ip4/192.0.2.{client.number % 250}/tcp/7610/p2p/{client.identity.peer_id}"
    return PeerReport(
        state="training",
        reason="",
        unit=unit,
        head=head,
        index=index,
        total_tokens=600 * index,
        tokens_per_s=1000.0 + client.number + tokens_ready % 7,
        tokens_ready=tokens_ready,
        loss_nats=2.0 + client.number % 7 / 10,
        bytes_up=10_000_000 + tokens_ready,
        bytes_down=12_000_000 + tokens_ready,
        state_commit=head,
        state_root=Root(sha256(head).digest()),
        addresses=(address,),
        version="1.0.0",
        incarnation=1 + client.number,
    )


async def spread(calls: Sequence[Callable[[], Awaitable[bool]]], per_s: float) -> int:
    """Make these calls, evenly spread, whether or not earlier ones are over. Returns how many succeeded."""
    begin_s, tasks = time.monotonic(), []
    for place, call in enumerate(calls):
        await asyncio.sleep(max(0.0, begin_s + place / per_s - time.monotonic()))
        tasks.append(asyncio.ensure_future(call()))
    return sum(await asyncio.gather(*tasks))


async def at_most_at_once(calls: Sequence[Callable[[], Awaitable[bool]]], limit: int) -> int:
    """Make these calls, so many at a time. Returns how many succeeded."""
    turn = asyncio.Semaphore(limit)

    async def one(call: Callable[[], Awaitable[bool]]) -> bool:
        async with turn:
            return await call()

    return sum(await asyncio.gather(*(one(call) for call in calls)))


def bringing(report: PeerReport, certificate: bytes) -> PeerReport:
    """The same with the certificate of its head."""
    return replace(report, certificates=(certificate,))


PAGES_EVERY_S: Final = 5.0
"""How often a page asks for the peers that it shows, as page.js does."""


@dataclass
class OpenPage:
    """A page that somebody looks at: its stream is read and thrown away, its peers are asked for, and the whole status once at first
    and after each round, as page.js does it. A browser keeps a connection for what it asks for.
    """

    port: int
    num_bytes: int = 0
    num_events: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self) -> None:
        """Until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            await asyncio.gather(self._read_stream(reader, writer), self._ask_peers(reader, writer))
        finally:
            writer.close()

    async def _read_stream(self, asking: asyncio.StreamReader, asked: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        head = b""
        try:
            writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            while line := await reader.readline():
                self.num_bytes += len(line)
                if line.startswith(b"data: {"):
                    self.num_events += 1
                    now = line.partition(b'"head": "')[2][:64]
                    if now != head:
                        head = now
                        await self._get("/api/status", asking, asked)
        finally:
            writer.close()

    async def _ask_peers(self, asking: asyncio.StreamReader, asked: asyncio.StreamWriter) -> None:
        while True:
            await self._get("/api/peers?page=0&order=name&search=", asking, asked)
            await asyncio.sleep(PAGES_EVERY_S)

    async def _get(self, path: str, asking: asyncio.StreamReader, asked: asyncio.StreamWriter) -> None:
        async with self.turn:
            asked.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            headers = await asking.readuntil(b"\r\n\r\n")
            length = int(headers.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            self.num_bytes += len(headers) + len(await asking.readexactly(length))
