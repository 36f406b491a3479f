"""The gRPC shell, driven by clients that know nothing of Potluck: what they ask with, they have from the server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import trio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from coordinator.admission.rpc import MAX_CALLS_OF_ONE, MAX_WATCHES, ServerTls, _Shell, caller_host, open_rpc_server
from protocol.host.calls import TLS_SERVER_NAME
from tests.coordinator.host_world import open_host

COORDINATOR = "potluck.v1.Coordinator"
WITHIN_S = 60.0
NUM_CONNECTIONS = 200


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


class _Aborted(Exception):
    """A call was refused."""


class _Context:
    """A call's context: the address that it came from, and why it was refused."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.reason = ""

    def peer(self) -> str:
        return self._peer

    async def abort(self, _code: grpc.StatusCode, reason: str, *, trailing_metadata: object = ()) -> None:
        self.reason = reason
        raise _Aborted(reason)


class _Thread:
    """A bridge over which nothing comes back until `done` is set."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def call_trio(self, _function: object, *_args: object) -> bytes:
        await self.done.wait()
        return b"answer"


def test_a_storm_of_calls_from_one_address_is_refused_by_name_and_others_are_answered() -> None:
    async def storm() -> None:
        thread: Any = _Thread()
        answered: Counter[tuple[str, str]] = Counter()
        shell = _Shell(cast("Any", None), thread, answered)
        handle = shell.unary("Report", cast("Any", None)).unary_unary
        assert handle is not None
        from_one = [_Context(f"ipv4:192.0.2.1:{port}") for port in range(MAX_CALLS_OF_ONE + 3)]
        other = _Context("ipv6:[2001:db8::1]:7000")
        calls = [asyncio.ensure_future(handle(b"", cast("Any", context))) for context in (*from_one, other)]
        await asyncio.sleep(0)
        thread.done.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert outcomes.count(b"answer") == MAX_CALLS_OF_ONE + 1
        assert outcomes[-1] == b"answer"
        assert [context.reason for context in from_one if context.reason] == [
            f"{MAX_CALLS_OF_ONE} calls from 192.0.2.1 at a time; expected fewer; try again in some seconds"
        ] * 3
        assert (answered["Report", "ok"], answered["Report", "refused"]) == (MAX_CALLS_OF_ONE + 1, 3)
        assert await handle(b"", cast("Any", _Context("ipv4:192.0.2.1:9"))) == b"answer", "the storm is over"

    asyncio.run(storm())


def test_watches_beyond_their_own_bound_are_refused_and_take_no_place_of_a_call() -> None:
    async def watch() -> None:
        thread: Any = _Thread()
        shell = _Shell(cast("Any", None), thread, Counter())
        handle = shell.watch().unary_stream
        assert handle is not None
        thread.done.set()
        thread.call_trio = _asked
        shell._num_watches = MAX_WATCHES
        context = _Context("ipv4:192.0.2.1:1")
        with pytest.raises(_Aborted, match=f"{MAX_WATCHES} watches of the run are open"):
            await anext(handle(b"", cast("Any", context)))
        assert shell._num_watches == MAX_WATCHES

    async def _asked(_limited: object, call: Callable[[bytes], Awaitable[bytes]], request: bytes) -> bytes:
        return await call(request)

    asyncio.run(watch())


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


async def ask(
    tmp_path: Path,
    questions: Callable[[StockClient], None],
    beside: Callable[[int], AbstractContextManager[object]] = nullcontext,
) -> str:
    """Serve a run and let a stock client ask in a thread; the id of the run, in hex. `beside` is entered with the port meanwhile."""
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
                address = f"127.0.0.1:{server.port}"
                with beside(server.port), grpc.secure_channel(address, credentials, options) as channel:
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


_HALF_A_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(16)
"""Record and handshake header of a TLS ClientHello of 512 bytes, and a part of its random."""


@contextmanager
def _storm(port: int) -> Iterator[None]:
    """Connections from one address that stay open: some say nothing, some begin a TLS handshake, others say what is no TLS."""
    with ExitStack() as stack:
        for number in range(NUM_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))
            said = (b"", _HALF_A_HELLO, b"GET / HTTP/1.0\r\n\r\n")[number % 3]
            if said:
                connection.sendall(said)
        yield


async def test_a_storm_of_connections_from_one_address_keeps_nobody_from_being_answered(tmp_path: Path) -> None:
    runs: list[str] = []

    def questions(client: StockClient) -> None:
        runs.extend(client.call(COORDINATOR, "Clock").run_id.hex() for _ in range(3))  # type: ignore[attr-defined]

    run_id = await ask(tmp_path, questions, _storm)
    assert runs == [run_id] * 3


async def test_a_call_that_is_refused_tells_a_stock_client_why(tmp_path: Path) -> None:
    def questions(client: StockClient) -> None:
        refuse = partial(client.call, COORDINATOR, "Admit", protocol_version=99)
        with pytest.raises(grpc.RpcError) as refused:
            refuse()
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "version" in str(refused.value.details())

    await ask(tmp_path, questions)
