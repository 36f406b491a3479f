"""A TCP relay that counts what passes: what counters claim is held against what the sockets carried."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass
class CountingProxy:
    """Bytes of all connections so far; "up" is from those who connected."""

    port: int
    bytes_up: int = 0
    bytes_down: int = 0
    connected: int = 0
    relays: list[trio.CancelScope] = field(default_factory=list)

    def break_connections(self) -> None:
        """Reset those that are there, both ways; who listens goes on listening."""
        for relay in self.relays:
            relay.cancel()


@asynccontextmanager
async def open_counting_proxy(
    target_port: int, begin_after_s: float = 0.0, listener: socket.socket | None = None
) -> AsyncIterator[CountingProxy]:
    """Relay loopback connections to `target_port` of loopback until the block ends; the first bytes of each after this time. They come
    to `listener`, or to any port.
    """
    if listener is None:
        (serving,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    else:
        serving = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    proxy = CountingProxy(serving.socket.getsockname()[1])

    async def relay(here: trio.SocketStream) -> None:
        await trio.sleep(begin_after_s)
        there = await trio.open_tcp_stream("127.0.0.1", target_port)

        async def pass_on(source: trio.SocketStream, sink: trio.SocketStream, *, is_up: bool) -> None:
            try:
                while data := await source.receive_some(1 << 16):
                    if is_up:
                        proxy.bytes_up += len(data)
                    else:
                        proxy.bytes_down += len(data)
                    await sink.send_all(data)
                await sink.send_eof()
            except trio.BrokenResourceError:
                await trio.aclose_forcefully(sink)
                await trio.aclose_forcefully(source)
            except trio.ClosedResourceError:
                pass  # the other direction broke

        proxy.connected += 1
        async with there, trio.open_nursery() as nursery:
            proxy.relays.append(nursery.cancel_scope)
            nursery.start_soon(lambda: pass_on(here, there, is_up=True))
            nursery.start_soon(lambda: pass_on(there, here, is_up=False))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, relay, [serving])
        try:
            yield proxy
        finally:
            nursery.cancel_scope.cancel()
