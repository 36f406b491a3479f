"""The client against a real coordinator's gRPC port, TLS included."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
import grpc.aio
import pytest
import trio
from grpc_health.v1 import health_pb2

from averaging.network.seams.asyncio_thread import AsyncioThread, open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from coordinator.admission.rpc import ServerTls, open_rpc_server
from peer.membership.coordinator_client import Caller, CoordinatorClient, CoordinatorEndpoint, open_coordinator_client
from protocol.errors import CallTimeout, MachineError, RefusedError, UnreachableError
from protocol.host.calls import TLS_SERVER_NAME
from protocol.host.report_delta import report_digest, shortened
from protocol.host.reports import PeerReport
from protocol.host.work_verdict import VERDICT_DOMAIN, encode_verdict, verdict_of
from protocol.identity.credential import make_ca, make_request, make_tls_key
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.ids import CommitId, Root, RunId
from tests.coordinator.chain_world import PEERS
from tests.coordinator.host_world import RUN_TOML, SECRET, UNIT, HostWorld, open_host
from tests.ports import free_port

NUM_REPORTS = 20
READY = PeerReport("waiting", "for the start", UNIT, is_ready_to_start=True)


def caller(peer: Identity) -> Caller:
    sent = 0

    async def next_sequence() -> int:
        nonlocal sent
        sent += 1
        return sent

    return Caller(peer, next_sequence, SystemClock())


def tls(host: HostWorld) -> ServerTls:
    return ServerTls(*host.authority.issue_server((TLS_SERVER_NAME,), now_unix_s=SystemClock().unix_s()))


@asynccontextmanager
async def serving(tmp_path: Path, toml: str = RUN_TOML) -> AsyncIterator[tuple[HostWorld, AsyncioThread, str]]:
    with open_host(tmp_path, SystemClock(), toml=toml) as host:
        host.invite()
        async with (
            open_asyncio_thread() as thread,
            open_rpc_server(host.service, thread, tls(host), host="127.0.0.1", port=0) as server,
        ):
            yield host, thread, f"127.0.0.1:{server.port}"


def endpoint(host: HostWorld, *addresses: str) -> CoordinatorEndpoint:
    return CoordinatorEndpoint(addresses, host.authority.certificate_der, host.run_id)


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


async def join(client: CoordinatorClient, host: HostWorld, peer: Identity) -> None:
    request = make_request(peer, host.run_id, make_tls_key(), SystemClock().unix_s())
    assert (await client.admit(SECRET, request)).credential


async def test_peer_joins_reports_watches_and_lists_over_tls(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, thread, address):
        where = endpoint(host, free_address(), address)
        async with (
            open_coordinator_client(thread, where, caller(PEERS[0])) as first,
            open_coordinator_client(thread, where, caller(PEERS[1])) as second,
        ):
            assert abs(await first.clock_ahead_s()) < 5
            await join(first, host, PEERS[0])
            await join(second, host, PEERS[1])
            async with first.watch() as watch:
                assert (await watch.next()).phase == "gathering"
                await first.report(PeerReport("joining", "", UNIT))
                await second.report(READY)
                await first.report(READY)
                news = await watch.next()
            assert news.phase == "training"
            assert news.start_record == host.tracker.start_record
            assert await second.list_checkpoints() == ()
            renewal = make_request(PEERS[0], host.run_id, make_tls_key(), SystemClock().unix_s())
            assert await first.renew(renewal)


async def test_a_verdict_comes_to_the_host_which_takes_none_in_a_run_by_invite(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as (host, thread, address),
        open_coordinator_client(thread, endpoint(host, address), caller(PEERS[0])) as client,
    ):
        await join(client, host, PEERS[0])
        verdict = verdict_of(UNIT, CommitId(bytes(32)), PEERS[1].peer_id, Root(bytes(32)), gap=0.7, length_ratio=1.0)
        sealed = seal(PEERS[0], VERDICT_DOMAIN, host.run_id, 1, NEVER_MS, encode_verdict(verdict))
        with pytest.raises(RefusedError, match="a verdict about work in a run by invite"):
            await client.send_verdict(sealed)


class Relay:
    """Carries connections to a coordinator, and counts what goes over them, TLS and gRPC included."""

    def __init__(self, target: str) -> None:
        self.num_bytes = 0
        self.num_connections = 0
        self._host, _, port = target.rpartition(":")
        self._port = int(port)

    async def serve(self, near: trio.SocketStream) -> None:
        self.num_connections += 1
        far = await trio.open_tcp_stream(self._host, self._port)
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._carry, near, far)
            await self._carry(far, near)
            nursery.cancel_scope.cancel()

    async def _carry(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        async for data in source:
            self.num_bytes += len(data)
            await sink.send_all(data)


async def test_a_report_of_nothing_new_takes_few_bytes_on_a_connection_that_is_kept(tmp_path: Path) -> None:
    whole = PeerReport(
        "training", "training", UNIT, tokens_per_s=2000.0, loss_nats=2.5, addresses=("/ip4/" + "9" * 90,) * 4
    )
    async with serving(tmp_path) as (host, thread, address), trio.open_nursery() as nursery:
        relay = Relay(address)
        (listener,) = await nursery.start(partial(trio.serve_tcp, relay.serve, 0, host="127.0.0.1"))
        where = endpoint(host, f"127.0.0.1:{listener.socket.getsockname()[1]}")
        async with open_coordinator_client(thread, where, caller(PEERS[0])) as client:
            await join(client, host, PEERS[0])
            for _ in range(3):
                await client.report(whole, bytes(600))
            before, payload, connections = relay.num_bytes, client.traffic, relay.num_connections
            for _ in range(NUM_REPORTS):
                reply = await client.report(shortened(whole))
            spent = client.traffic
        assert reply.like == report_digest(whole)
        payload_bytes = spent.bytes_up - payload.bytes_up + spent.bytes_down - payload.bytes_down
        wire_bytes = relay.num_bytes - before
        assert payload_bytes <= 350 * NUM_REPORTS
        assert wire_bytes <= payload_bytes + 350 * NUM_REPORTS
        assert relay.num_connections == connections
        nursery.cancel_scope.cancel()


async def test_refusal_crosses_with_its_words(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as (host, thread, address),
        open_coordinator_client(thread, endpoint(host, address), caller(PEERS[0])) as client,
    ):
        with pytest.raises(RefusedError, match="not admitted to this run"):
            await client.report(READY)
        async with client.watch() as watch:
            with pytest.raises(RefusedError, match="not admitted"):
                await watch.next()


async def test_wrong_ca_is_told_from_an_unreachable_host(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, thread, address):
        other = make_ca(b"o" * 32, now_unix_s=SystemClock().unix_s()).certificate_der
        wrong = CoordinatorEndpoint((address,), other, host.run_id)
        async with open_coordinator_client(thread, wrong, caller(PEERS[0])) as client:
            with pytest.raises(RefusedError, match="not the host that made the invite"):
                await client.clock_ahead_s()
        nowhere = endpoint(host, free_address())
        async with open_coordinator_client(thread, nowhere, caller(PEERS[0])) as client:
            with pytest.raises(UnreachableError, match="the run's host does not answer at"):
                await client.clock_ahead_s()


async def test_silent_server_is_a_timeout_not_a_hang() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with open_asyncio_thread() as thread:
            authority = make_ca(b"o" * 32, now_unix_s=SystemClock().unix_s())
            where = CoordinatorEndpoint((address,), authority.certificate_der, RunId(bytes(32)))
            async with open_coordinator_client(thread, where, caller(PEERS[0])) as client:
                with trio.fail_after(120), pytest.raises((CallTimeout, UnreachableError)):
                    await client._call("Clock", b"", timeout_s=0.5)


async def test_watch_ends_when_the_coordinator_stops(tmp_path: Path) -> None:
    with open_host(tmp_path, SystemClock()) as host:
        host.invite()
        async with open_asyncio_thread() as thread, trio.open_nursery() as nursery:
            stop = trio.Event()
            where: list[str] = []

            async def serve(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
                async with open_rpc_server(host.service, thread, tls(host), host="127.0.0.1", port=0) as server:
                    where.append(f"127.0.0.1:{server.port}")
                    task_status.started()
                    await stop.wait()

            await nursery.start(serve)
            async with open_coordinator_client(thread, endpoint(host, *where), caller(PEERS[0])) as client:
                await join(client, host, PEERS[0])
                async with client.watch() as watch:
                    await watch.next()
                    stop.set()
                    with trio.fail_after(120), pytest.raises(UnreachableError):
                        await watch.next()


async def test_port_in_use_is_one_clear_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, thread, address):
        second = open_rpc_server(host.service, thread, tls(host), host="127.0.0.1", port=int(address.split(":")[1]))
        with pytest.raises(MachineError, match="cannot be listened on"):
            await second.__aenter__()


async def test_health_service_answers(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, thread, address):
        pem = ssl.DER_cert_to_PEM_cert(host.authority.certificate_der).encode()

        async def check() -> int:
            credentials = grpc.ssl_channel_credentials(root_certificates=pem)
            options = (("grpc.ssl_target_name_override", TLS_SERVER_NAME),)
            async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
                call = channel.unary_unary("/grpc.health.v1.Health/Check")
                reply = await call(health_pb2.HealthCheckRequest().SerializeToString(), timeout=5)
                return health_pb2.HealthCheckResponse.FromString(reply).status

        assert await thread.run(check, timeout_s=10) == health_pb2.HealthCheckResponse.SERVING
