"""A peer's client of the coordinator: gRPC over server TLS, trusted by the CA in the invite, with several possible addresses.

Nothing here retries indefinitely. Each method tries each address once within its deadline and reports the failure. A peer trains on
without the coordinator; the caller decides when to retry.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import grpc
import grpc.aio
import trio

from protocol.errors import CallTimeout, PotluckError, RefusedError, RemoteProtocolError, UnreachableError, VersionError
from protocol.host.calls import (
    ERROR_METADATA_KEY,
    LIST_DOMAIN,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    PROBE_DOMAIN,
    REPORT_DOMAIN,
    SERVICE_NAME,
    TLS_SERVER_NAME,
    WATCH_DOMAIN,
    AdmitReply,
    CheckpointEntry,
    RunNews,
    decode_admit_reply,
    decode_checkpoints,
    decode_error,
    decode_news,
)
from protocol.host.report_bytes import decode_report_reply, encode_report
from protocol.host.reports import PeerReport, ReportReply
from protocol.identity.envelope import seal
from protocol.ids import PROTOCOL_VERSION, RunId
from protocol.pb import coordinator_pb2 as pb
from protocol.received import shown

if TYPE_CHECKING:
    from averaging.network.seams.asyncio_thread import AsyncioThread
    from averaging.network.seams.interfaces import Clock
    from protocol.identity.identity import Signer

CALL_TIMEOUT_S: Final = 10.0
ADMIT_TIMEOUT_S: Final = 30.0
WATCH_SILENCE_S: Final = 30.0
"""The coordinator sends an event every ten seconds. The watch ends after three missed ones."""

_EXPIRY_S: Final = 120.0
_OPTIONS: Final = (
    ("grpc.ssl_target_name_override", TLS_SERVER_NAME),
    ("grpc.max_receive_message_length", MAX_REPLY_BYTES),
    ("grpc.max_send_message_length", MAX_REQUEST_BYTES + 4096),
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.min_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # Disable grpc's bandwidth probe. It pings with every answer and doubles the bytes of a small one.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 20000),
    ("grpc.keepalive_timeout_ms", 10000),
)
_NO_NETWORK: Final = ("network is unreachable", "no route to host")
_TLS_WORDS: Final = ("certificate_verify_failed", "ssl handshake", "tls handshake", "handshaker", "peer did not return")


@dataclass(frozen=True, slots=True)
class CoordinatorEndpoint:
    """The coordinator's addresses ("host:port") and CA, as in the invite."""

    addresses: tuple[str, ...]
    ca_certificate_der: bytes
    run_id: RunId


@dataclass(frozen=True, slots=True)
class Greeting:
    """How far the coordinator's clock is ahead of ours in seconds, and its release; "" from hosts too old to report one."""

    ahead_s: float
    release: str


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """Payload bytes of calls to the coordinator and of its answers since the start, without gRPC and TLS overhead."""

    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True, slots=True)
class ProbeProof:
    """Proof that we may ask for a probe: the invite's secret, which the probe does not use up, or our credential if the secret is
    empty.
    """

    secret: bytes
    credential: bytes


@dataclass(frozen=True, slots=True)
class DialBack:
    """Whether the coordinator could connect to us, and our IP address as it sees it."""

    is_reached: bool
    seen_as: str


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller's identity. `next_sequence` gives numbers that never repeat, even after a restart."""

    signer: Signer
    next_sequence: Callable[[], Awaitable[int]]
    clock: Clock


def _metadata_error(error: grpc.aio.AioRpcError) -> PotluckError | None:
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in metadata:
        if key == ERROR_METADATA_KEY and isinstance(value, bytes):
            return decode_error(value)
    return None


def _explain(error: grpc.aio.AioRpcError, address: str) -> PotluckError:
    """Translate a failed call into one of our errors."""
    refusal = _metadata_error(error)
    if refusal is not None:
        return refusal
    details = (error.details() or "").replace("\n", " ")[:200]
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimeout(
                f"no answer from the run's host at {address}", "one in time", "it may be busy or cut off"
            )
        case grpc.StatusCode.UNAVAILABLE if any(word in details.lower() for word in _TLS_WORDS):
            return RefusedError(
                f"the server at {address} is not the host that made the invite",
                "a certificate under the CA in the invite",
                "check the address, or ask the host for a new invite",
            )
        case grpc.StatusCode.UNAVAILABLE:
            # "failed to connect to all addresses; last error: UNKNOWN: ipv4:...: Connection refused": keep the last part.
            cause = details.rpartition(": ")[2].strip(" ]")
            has_no_way = any(word in cause.lower() for word in _NO_NETWORK)
            return UnreachableError(
                f"the run's host does not answer at {address} ({cause})",
                "",
                "connect this machine to a network, then try again"
                if has_no_way
                else "try later, or ask whoever gave you the invite",
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return VersionError(
                f"the server at {address} does not know the call", "a host of this version", "use one release"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return CallTimeout(
                f"the run's host at {address} is overloaded", "room for a call", "it will be tried again"
            )
        case code:
            return UnreachableError(f"the call to {address} failed: {code.name} ({details})", "a host")


def _is_worth_another_address(error: PotluckError) -> bool:
    return isinstance(error, (UnreachableError, CallTimeout))


class _Lines:
    """Channels by address. Its coroutines run on the asyncio thread."""

    def __init__(self, endpoint: CoordinatorEndpoint) -> None:
        self._endpoint = endpoint
        self._channels: dict[str, grpc.aio.Channel] = {}

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            pem = ssl.DER_cert_to_PEM_cert(self._endpoint.ca_certificate_der).encode("ascii")
            credentials = grpc.ssl_channel_credentials(root_certificates=pem)
            self._channels[address] = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        return self._channels[address]

    async def call(self, address: str, name: str, request: bytes, timeout_s: float) -> bytes:
        """One unary call."""
        multi = self._channel(address).unary_unary(f"/{SERVICE_NAME}/{name}", bytes, bytes)
        try:
            return bytes(await multi(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise _explain(error, address) from error

    async def open_watch(self, address: str, request: bytes) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
        """Open a watch. The first read returns the first event or raises the error."""
        multi = self._channel(address).unary_stream(f"/{SERVICE_NAME}/WatchRun", bytes, bytes)
        call: grpc.aio.UnaryStreamCall[bytes, bytes] = multi(request)
        return call

    async def read(self, call: grpc.aio.UnaryStreamCall[bytes, bytes], address: str) -> bytes:
        """The next event of a watch."""
        try:
            event = await call.read()
        except grpc.aio.AioRpcError as error:
            raise _explain(error, address) from error
        if not isinstance(event, bytes):  # grpc.aio.EOF
            raise UnreachableError(f"the run's host at {address} ended the watch", "a running host")
        return event

    async def cancel(self, call: grpc.aio.UnaryStreamCall[bytes, bytes]) -> None:
        """End a watch."""
        call.cancel()

    async def aclose(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close(grace=None)


class CoordinatorClient:
    """Calls to the coordinator, from trio. Create it with `open_coordinator_client`."""

    def __init__(self, endpoint: CoordinatorEndpoint, caller: Caller, lines: _Lines, thread: AsyncioThread) -> None:
        self._endpoint = endpoint
        self._caller = caller
        self._lines = lines
        self._thread = thread
        self._addresses = list(endpoint.addresses)
        self._bytes_up = 0
        self._bytes_down = 0

    @property
    def traffic(self) -> HostTraffic:
        """Bytes sent to the coordinator and received from it so far."""
        return HostTraffic(self._bytes_up, self._bytes_down)

    @property
    def answers_at(self) -> str:
        """The address that answered last; the first one before any answer."""
        return self._addresses[0]

    async def _call(self, name: str, request: bytes, *, timeout_s: float = CALL_TIMEOUT_S) -> bytes:
        async def attempt(address: str) -> bytes:
            self._bytes_up += len(request)
            reply = await self._thread.run(
                self._lines.call, address, name, request, timeout_s, timeout_s=timeout_s + 5.0
            )
            self._bytes_down += len(reply)
            return reply

        return await self._over_addresses(attempt)

    async def _over_addresses(self, attempt: Callable[[str], Awaitable[bytes]]) -> bytes:
        failures: list[PotluckError] = []
        for address in tuple(self._addresses):
            try:
                reply = await attempt(address)
            except PotluckError as error:
                if not _is_worth_another_address(error):
                    raise
                failures.append(error)
                continue
            # Try the address that answered first from now on.
            self._addresses.remove(address)
            self._addresses.insert(0, address)
            return reply
        if len(failures) == 1:
            raise failures[0]
        raise UnreachableError(
            f"the run's host does not answer at {' or '.join(self._endpoint.addresses)}",
            "",
            failures[-1].remedy if failures else "ask the host for a new invite",
        )

    def _note_down(self, num_bytes: int) -> None:
        self._bytes_down += num_bytes

    async def _seal(self, domain: str, payload: bytes, credential: bytes = b"") -> bytes:
        caller = self._caller
        expires_unix_ms = int((caller.clock.unix_s() + _EXPIRY_S) * 1000)
        sequence = await caller.next_sequence()
        envelope = seal(caller.signer, domain, self._endpoint.run_id, sequence, expires_unix_ms, payload)
        return pb.Sealed(envelope=envelope, credential=credential).SerializeToString()

    async def clock_ahead_s(self) -> float:
        """How far the coordinator's clock is ahead of ours, in seconds, to within the length of the call.

        Raises:
            UnreachableError, CallTimeout: nobody answers.
            RefusedError: not the coordinator of the invite.
            VersionError: it speaks another protocol version.
        """
        return (await self.greet()).ahead_s

    async def greet(self) -> Greeting:
        """The coordinator's public greeting. Raises as `clock_ahead_s`."""
        before = self._caller.clock.unix_s()
        reply = pb.ClockReply.FromString(await self._call("Clock", pb.ClockRequest().SerializeToString()))
        if reply.protocol_version != PROTOCOL_VERSION:
            raise VersionError(
                f"a host with protocol version {reply.protocol_version}",
                f"version {PROTOCOL_VERSION}",
                "install the run's release of potluck",
            )
        return Greeting(reply.unix_s - (before + self._caller.clock.unix_s()) / 2, shown(reply.release))

    async def admit(self, secret: bytes, credential_request: bytes) -> AdmitReply:
        """Ask to take part. `secret` is the invite's; empty for a peer that was admitted before.

        Raises:
            RefusedError, VersionError, RunOverError, TemporaryError: the coordinator said no, and why.
            UnreachableError, CallTimeout: nobody answers.
        """
        request = pb.AdmitRequest(
            protocol_version=PROTOCOL_VERSION,
            run_id=self._endpoint.run_id,
            invite_secret=secret,
            credential_request=credential_request,
            unix_s=self._caller.clock.unix_s(),
        )
        return decode_admit_reply(await self._call("Admit", request.SerializeToString(), timeout_s=ADMIT_TIMEOUT_S))

    async def challenge(self, public_key: bytes) -> bytes:
        """A puzzle for the owner of this key, as the open door of the run gives it. Raises as `admit`."""
        request = pb.ChallengeRequest(
            protocol_version=PROTOCOL_VERSION,
            run_id=self._endpoint.run_id,
            unix_s=self._caller.clock.unix_s(),
            public_key=public_key,
        )
        reply = await self._call("Challenge", request.SerializeToString())
        return bytes(pb.ChallengeReply.FromString(reply).challenge)

    async def enter(self, credential_request: bytes, challenge: bytes, answer: int) -> AdmitReply:
        """Ask to take part as a stranger, with the answer to a challenge. Raises as `admit`."""
        request = pb.EnterRequest(
            protocol_version=PROTOCOL_VERSION,
            run_id=self._endpoint.run_id,
            credential_request=credential_request,
            unix_s=self._caller.clock.unix_s(),
            challenge=challenge,
            answer=answer,
        )
        return decode_admit_reply(await self._call("Enter", request.SerializeToString(), timeout_s=ADMIT_TIMEOUT_S))

    async def renew(self, credential_request: bytes) -> bytes:
        """A new credential (DER) for an admitted peer. Raises as `admit`."""
        request = pb.RenewRequest(
            protocol_version=PROTOCOL_VERSION,
            run_id=self._endpoint.run_id,
            credential_request=credential_request,
            unix_s=self._caller.clock.unix_s(),
        )
        reply = await self._call("Renew", request.SerializeToString())
        return bytes(pb.RenewReply.FromString(reply).credential)

    async def report(self, report: PeerReport, credential: bytes = b"") -> ReportReply:
        """Send a report with the certificates from the index that the last reply asked for. `credential` is our own, empty in a
        short report. A coordinator restored from an old ledger may have forgotten us, and refuses a short report.

        Raises:
            RefusedError: banned, or not admitted.
            UnreachableError, CallTimeout: nobody answers; train on and try again later.
        """
        sealed = await self._seal(REPORT_DOMAIN, encode_report(report), credential)
        return decode_report_reply(await self._call("Report", sealed))

    async def dial_back(self, proof: ProbeProof, port: int, nonce: bytes) -> DialBack:
        """Ask the coordinator to connect to this port at the address that it sees us at. We send `nonce` to any connection there.

        Raises:
            TemporaryError: too often; the error says when again.
            RefusedError, VersionError: the proof is no good, or the coordinator too old.
            UnreachableError, CallTimeout: nobody answers.
        """
        secret, sealed = await self._proof(proof)
        request = pb.DialBackRequest(invite_secret=secret, sealed=sealed, port=port, nonce=nonce)
        reply = pb.DialBackReply.FromString(await self._call("DialBack", request.SerializeToString()))
        return DialBack(reply.is_reached, shown(reply.caller_host))

    async def move_bytes(self, proof: ProbeProof, up_bytes: int, down_bytes: int, *, timeout_s: float) -> None:
        """Send `up_bytes` and receive `down_bytes`; the caller takes the time. Raises as `dial_back`."""
        secret, sealed = await self._proof(proof)
        request = pb.BandwidthRequest(
            invite_secret=secret, sealed=sealed, wanted_bytes=down_bytes, padding=bytes(up_bytes)
        )
        reply = await self._call("Bandwidth", request.SerializeToString(), timeout_s=timeout_s)
        if len(pb.BandwidthReply.FromString(reply).padding) != down_bytes:
            raise RemoteProtocolError("a reply of another length", f"{down_bytes} bytes", "tell the host")

    async def describe(self, proof: ProbeProof) -> tuple[bytes, bytes]:
        """The run's signed manifest and its data set's canonical JSON. The caller must check both. Raises as `dial_back`."""
        secret, sealed = await self._proof(proof)
        request = pb.DescribeRequest(invite_secret=secret, sealed=sealed)
        reply = pb.DescribeReply.FromString(await self._call("Describe", request.SerializeToString()))
        return reply.manifest, reply.dataset

    async def _proof(self, proof: ProbeProof) -> tuple[bytes, pb.Sealed | None]:
        if proof.secret:
            return proof.secret, None
        return b"", pb.Sealed.FromString(await self._seal(PROBE_DOMAIN, b"", proof.credential))

    async def send_score(self, sealed: bytes) -> None:
        """Bring a signed score to the host, which keeps it as it is.

        Raises:
            TemporaryError: it is not this peer's turn yet, or the host does not know the commit yet; later it may take it.
            RefusedError, RemoteProtocolError: it will not take it.
            UnreachableError, CallTimeout: nobody answers.
        """
        await self._call("Score", pb.Sealed(envelope=sealed).SerializeToString())

    async def send_verdict(self, sealed: bytes) -> None:
        """Bring a signed verdict about another's work to the host. Raises as `send_score`."""
        await self._call("Verdict", pb.Sealed(envelope=sealed).SerializeToString())

    async def list_checkpoints(self) -> Sequence[CheckpointEntry]:
        """The checkpoints that the host holds, oldest first. Raises as `report`."""
        return decode_checkpoints(await self._call("ListCheckpoints", await self._seal(LIST_DOMAIN, b"")))

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[RunWatch]:
        """Watch the run until the block ends. The first event comes at once, later ones after each change.

        Raises:
            UnreachableError, CallTimeout, RefusedError: as `report`.
        """
        request = await self._seal(WATCH_DOMAIN, b"")
        address = self._addresses[0]
        self._bytes_up += len(request)
        call = await self._thread.run(self._lines.open_watch, address, request, timeout_s=CALL_TIMEOUT_S)
        try:
            yield RunWatch(self._lines, self._thread, call, address, self._note_down)
        finally:
            with trio.CancelScope(shield=True):
                await self._thread.run(self._lines.cancel, call, timeout_s=CALL_TIMEOUT_S)


class RunWatch:
    """One open watch of the run."""

    def __init__(
        self,
        lines: _Lines,
        thread: AsyncioThread,
        call: grpc.aio.UnaryStreamCall[bytes, bytes],
        address: str,
        note_down: Callable[[int], None],
    ) -> None:
        self._note_down = note_down
        self._lines = lines
        self._thread = thread
        self._call = call
        self._address = address

    async def next(self) -> RunNews:
        """The next event. Unchanged news is repeated every ten seconds.

        Raises:
            UnreachableError: the coordinator is gone.
            CallTimeout: it was silent for WATCH_SILENCE_S.
            RefusedError: it does not let us watch.
        """
        event = await self._thread.run(self._lines.read, self._call, self._address, timeout_s=WATCH_SILENCE_S)
        self._note_down(len(event))
        return decode_news(event)


@asynccontextmanager
async def open_coordinator_client(
    thread: AsyncioThread, endpoint: CoordinatorEndpoint, caller: Caller
) -> AsyncIterator[CoordinatorClient]:
    """A client for one run; connects on first use.

    Raises:
        RefusedError: the invite names no address.
    """
    if not endpoint.addresses:
        raise RefusedError("an invite without a host's address", "at least one host:port", "ask for a new invite")
    lines = _Lines(endpoint)
    try:
        yield CoordinatorClient(endpoint, caller, lines, thread)
    finally:
        with trio.CancelScope(shield=True):
            await thread.run(lines.aclose, timeout_s=CALL_TIMEOUT_S)
