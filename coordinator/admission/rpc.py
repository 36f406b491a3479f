"""The gRPC shell: server TLS under the run's CA, generic handlers, limits. It knows nothing of runs.

grpc.aio lives on the asyncio thread; each call crosses into trio by the bridge. A PotluckError crosses to the caller in trailing
metadata. Any other exception is logged here and answered without details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog
import trio
from grpc_health.v1 import _async as aio_health  # public as health.aio, but missing in its type stubs
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protocol.errors import MachineError, PotluckError, TemporaryError
from protocol.host.calls import (
    ERROR_METADATA_KEY,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    SERVICE_NAME,
    RunNews,
    encode_error,
    encode_news,
)

if TYPE_CHECKING:
    from averaging.network.seams.asyncio_thread import AsyncioThread
    from coordinator.admission.service import CoordinatorService

_log = structlog.get_logger()

CALL_LIMIT_S: Final = 20.0
"""No call with one reply may take longer."""

_START_TIMEOUT_S: Final = 10.0
_STOP_GRACE_S: Final = 1.0

_OPTIONS: Final = (
    # Without this, a second host on the same port would start without an error and take half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES + 4096),
    ("grpc.max_send_message_length", MAX_REPLY_BYTES),
    ("grpc.max_concurrent_streams", 32),
    # Without this, a silent socket would hold its place for half a minute.
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10000),
    # A peer of a very large run reports so rarely that its connection would only hold a place.
    ("grpc.max_connection_idle_ms", 600_000),
    ("grpc.keepalive_time_ms", 30000),
    ("grpc.keepalive_timeout_ms", 10000),
)
MAX_WATCHES: Final = 64
"""Most open watches of the run. Peers of this release report and need none; those of older releases watch until the start."""

_MAX_CALLS: Final = 256
MAX_CALLS_OF_ONE: Final = _MAX_CALLS // 2
"""Most calls under way from one address, so that a storm of them leaves room for all others. A whole cluster may have one address."""

_CODES: Final[Mapping[str, grpc.StatusCode]] = {
    "RefusedError": grpc.StatusCode.PERMISSION_DENIED,
    "SupersededError": grpc.StatusCode.ABORTED,
    "VersionError": grpc.StatusCode.FAILED_PRECONDITION,
    "RunOverError": grpc.StatusCode.FAILED_PRECONDITION,
    "RemoteProtocolError": grpc.StatusCode.INVALID_ARGUMENT,
}

Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM of the server's key and of its certificate chain."""

    key_pem: bytes
    chain_pem: bytes


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A serving coordinator: its port, and the number of calls answered, by name and outcome."""

    port: int
    answered: Counter[tuple[str, str]] = field(default_factory=Counter)


def caller_host(peer: str) -> str:
    """The IP address in what gRPC calls a peer ("ipv4:192.0.2.1:7000", "ipv6:%5B::1%5D:7000"); empty for anything else."""
    kind, _, rest = unquote(peer).partition(":")
    host = rest.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return host if kind in ("ipv4", "ipv6") else ""


async def _abort(context: Context, error: PotluckError) -> NoReturn:
    code = _CODES.get(type(error).__name__, grpc.StatusCode.RESOURCE_EXHAUSTED)
    metadata = ((ERROR_METADATA_KEY, encode_error(error)),)
    await context.abort(code, error.one_line(), trailing_metadata=metadata)


class _Shell:
    """One service over the bridge. All of its coroutines run on the asyncio thread."""

    def __init__(self, service: CoordinatorService, thread: AsyncioThread, answered: Counter[tuple[str, str]]) -> None:
        self._service = service
        self._thread = thread
        self._answered = answered
        self._calls_of: Counter[str] = Counter()
        self._num_watches = 0

    async def _limited(self, call: Callable[[bytes], Awaitable[bytes]], request: bytes) -> bytes:
        # Runs in trio.
        with trio.move_on_after(CALL_LIMIT_S):
            return await call(request)
        raise TemporaryError(f"no answer within {CALL_LIMIT_S:.0f} s", "a host with time", "try again")

    async def _guard(self, name: str, context: Context, work: Awaitable[bytes]) -> bytes:
        try:
            reply = await work
        except PotluckError as error:
            self._answered[name, "refused"] += 1
            _log.info("call_refused", call=name, caller=context.peer(), reason=error.one_line())
            await _abort(context, error)
        except Exception as error:  # noqa: BLE001 - the edge to gRPC: logged, answered without a detail
            self._answered[name, "failed"] += 1
            _log.exception("call_failed", call=name, caller=context.peer())
            await _abort(context, TemporaryError("the host failed", "", f"try again ({type(error).__name__})"))
        self._answered[name, "ok"] += 1
        return reply

    async def _placed(self, context: Context, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """The result of a call, one of at most MAX_CALLS_OF_ONE under way from its address."""
        host = caller_host(context.peer())
        if self._calls_of[host] >= MAX_CALLS_OF_ONE:
            raise TemporaryError(
                f"{MAX_CALLS_OF_ONE} calls from {host or 'one address'} at a time", "fewer", "try again in some seconds"
            )
        self._calls_of[host] += 1
        try:
            return await call()
        finally:
            self._calls_of[host] -= 1
            if not self._calls_of[host]:
                del self._calls_of[host]

    def unary(self, name: str, call: Callable[[bytes], Awaitable[bytes]]) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A handler of a call with one reply."""

        async def handle(request: bytes, context: Context) -> bytes:
            ask = partial(self._thread.call_trio, self._limited, call, request)
            return await self._guard(name, context, self._placed(context, ask))

        return grpc.unary_unary_rpc_method_handler(handle)

    def unary_from(
        self, name: str, call: Callable[[bytes, str], Awaitable[bytes]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """A handler of a call with one reply, which also gets the caller's address."""

        async def handle(request: bytes, context: Context) -> bytes:
            host = caller_host(context.peer())

            async def asked(request: bytes) -> bytes:
                return await call(request, host)

            ask = partial(self._thread.call_trio, self._limited, asked, request)
            return await self._guard(name, context, self._placed(context, ask))

        return grpc.unary_unary_rpc_method_handler(handle)

    def watch(self) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of WatchRun."""

        async def open_watch(request: bytes) -> bytes:
            if self._num_watches > MAX_WATCHES:
                raise TemporaryError(
                    f"{MAX_WATCHES} watches of the run are open", "fewer", "install the newest release"
                )
            return (await self._service.open_watch(request)).encode()

        async def handle(request: bytes, context: Context) -> AsyncIterator[bytes]:
            self._num_watches += 1
            try:
                await self._guard("WatchRun", context, self._thread.call_trio(self._limited, open_watch, request))
                news: RunNews | None = None
                while True:
                    news = await self._thread.call_trio(self._service.next_news, news)
                    yield encode_news(news)
            finally:
                self._num_watches -= 1

        return grpc.unary_stream_rpc_method_handler(handle)


def _handler(shell: _Shell, service: CoordinatorService) -> grpc.GenericRpcHandler[bytes, bytes]:
    methods = {name: shell.unary(name, call) for name, call in service.unary_calls().items()}
    methods |= {name: shell.unary_from(name, call) for name, call in service.calls_from().items()}
    methods["WatchRun"] = shell.watch()
    return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)


async def _add_stock_services(server: grpc.aio.Server) -> None:
    """Services that any gRPC client can use: health and reflection."""
    servicer = aio_health.HealthServicer()
    for name in ("", SERVICE_NAME):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)


async def _start(
    address: str, tls: ServerTls, handler: grpc.GenericRpcHandler[bytes, bytes]
) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS + MAX_WATCHES)
    server.add_generic_rpc_handlers([handler])
    await _add_stock_services(server)
    credentials = grpc.ssl_server_credentials([(tls.key_pem, tls.chain_pem)])
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise MachineError(
            f"port {address} cannot be listened on", "a free port of this machine", "choose another with --grpc-port"
        )
    await server.start()
    return server, port


@asynccontextmanager
async def open_rpc_server(
    service: CoordinatorService, thread: AsyncioThread, tls: ServerTls, *, host: str, port: int
) -> AsyncIterator[RpcServer]:
    """Serve until the block ends; `port` 0 takes any free one.

    Raises:
        MachineError: the port is taken or not ours to use.
    """
    answered: Counter[tuple[str, str]] = Counter()
    handler = _handler(_Shell(service, thread, answered), service)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    server, bound = await thread.run(_start, address, tls, handler, timeout_s=_START_TIMEOUT_S)
    try:
        yield RpcServer(bound, answered)
    finally:
        with trio.CancelScope(shield=True):
            await thread.run(server.stop, _STOP_GRACE_S, timeout_s=_STOP_GRACE_S + 4.0)
