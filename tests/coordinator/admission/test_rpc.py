"""The gRPC shell, driven by clients that know nothing of Potluck: what they ask with, they have from the server."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import pytest
import trio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from coordinator.admission.rpc import ServerTls, caller_host, open_rpc_server
from protocol.host.calls import TLS_SERVER_NAME
from tests.coordinator.host_world import open_host

COORDINATOR = "potluck.v1.Coordinator"
WITHIN_S = 60.0


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:7000", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:7000", "2001:db8::1"),
        ("ipv6:[::1]:7000", "::1"),
        ("unix:/run/socket", ""),
        ("", ""),
    ],
)
def test_caller_is_known_by_its_ip_address_alone(peer: str, host: str) -> None:
    assert caller_host(peer) == host


class StockClient:
    """Asks the server what it serves, and calls that: no generated code, no bytes made by hand."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._database = ProtoReflectionDescriptorDatabase(channel)
        self._pool = DescriptorPool(self._database)

    def services(self) -> list[str]:
        return sorted(self._database.get_services())

    def methods(self, service: str) -> list[str]:
        return [method.name for method in self._pool.FindServiceByName(service).methods]

    def call(self, service: str, name: str, /, **fields: object) -> Message:
        method = self._pool.FindServiceByName(service).FindMethodByName(name)
        ask, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        path = f"/{service}/{name}"
        if method.server_streaming:
            stream = self._channel.unary_stream(path, ask.SerializeToString, answer.FromString)
            return next(stream(ask(**fields), timeout=WITHIN_S))
        unary = self._channel.unary_unary(path, ask.SerializeToString, answer.FromString)
        return unary(ask(**fields), timeout=WITHIN_S)


async def ask(tmp_path: Path, questions: Callable[[StockClient], None]) -> str:
    """Serve a run and let a stock client ask in a thread; the id of the run, in hex."""
    clock = SystemClock()
    with open_host(tmp_path, clock) as host:
        tls = ServerTls(*host.authority.issue_server((TLS_SERVER_NAME,), now_unix_s=clock.unix_s()))
        authority_pem = ssl.DER_cert_to_PEM_cert(host.authority.certificate_der).encode("ascii")
        async with (
            open_asyncio_thread() as thread,
            open_rpc_server(host.service, thread, tls, host="127.0.0.1", port=0) as server,
        ):

            def work() -> None:
                credentials = grpc.ssl_channel_credentials(authority_pem)
                options = [("grpc.ssl_target_name_override", TLS_SERVER_NAME)]
                with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options) as channel:
                    questions(StockClient(channel))

            with trio.fail_after(4 * WITHIN_S):
                await trio.to_thread.run_sync(work)
        return host.run_id.hex()


async def test_stock_client_learns_the_calls_from_the_server_and_makes_them(tmp_path: Path) -> None:
    found: dict[str, object] = {}

    def questions(client: StockClient) -> None:
        found["services"] = client.services()
        found["methods"] = client.methods(COORDINATOR)
        clock = client.call(COORDINATOR, "Clock")
        found["run"], found["late_s"] = clock.run_id.hex(), abs(clock.unix_s - SystemClock().unix_s())

    run_id = await ask(tmp_path, questions)
    assert found["services"] == ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", COORDINATOR]
    assert {"Clock", "Admit", "Renew", "Report", "WatchRun", "ListCheckpoints"} <= set(found["methods"])  # type: ignore[call-overload]
    assert found["run"] == run_id
    assert float(str(found["late_s"])) < 5.0


@pytest.mark.parametrize("call", ["Check", "Watch"])
async def test_stock_client_asks_for_health(tmp_path: Path, call: str) -> None:
    answers: list[int] = []

    def questions(client: StockClient) -> None:
        for service in ("", COORDINATOR):
            answers.append(client.call("grpc.health.v1.Health", call, service=service).status)  # type: ignore[attr-defined]
        if call == "Check":
            with pytest.raises(grpc.RpcError) as unknown:
                client.call("grpc.health.v1.Health", call, service="nothing")
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND

    await ask(tmp_path, questions)
    assert answers == [1, 1]  # SERVING


async def test_a_call_that_is_refused_tells_a_stock_client_why(tmp_path: Path) -> None:
    def questions(client: StockClient) -> None:
        refuse = partial(client.call, COORDINATOR, "Admit", protocol_version=99)
        with pytest.raises(grpc.RpcError) as refused:
            refuse()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "version" in str(refused.value.details())

    await ask(tmp_path, questions)
