"""What lanes need of the network, and a way to ourselves: a keeper of lanes may serve in one of them."""

from __future__ import annotations

from typing import Protocol

import trio

from averaging.network.seams.interfaces import CallHandler, Stream, StreamHandler
from protocol.errors import CallTimeout, RemoteProtocolError
from protocol.ids import PeerId


class LaneNetwork(Protocol):
    """The part of averaging/network/seams/interfaces.py's Network that lanes use; errors as there."""

    @property
    def peer_id(self) -> PeerId:
        """Ourselves."""
        ...

    def serve_calls(self, channel: str, handler: CallHandler) -> None:
        """Answer calls on a channel."""
        ...

    def serve_streams(self, channel: str, handler: StreamHandler) -> None:
        """Take streams on a channel."""
        ...

    async def call(self, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
        """One request and its reply."""
        ...

    async def open_stream(self, peer: PeerId, channel: str, *, timeout_s: float) -> Stream:
        """A stream to a peer."""
        ...


class OwnLoop:
    """A network whose calls to ourselves come here at once: libp2p dials nobody's own address."""

    def __init__(self, network: LaneNetwork) -> None:
        self._network = network
        self._handlers: dict[str, CallHandler] = {}

    @property
    def peer_id(self) -> PeerId:
        """Ourselves."""
        return self._network.peer_id

    def serve_calls(self, channel: str, handler: CallHandler) -> None:
        """Answer calls on a channel, our own with them."""
        self._handlers[channel] = handler
        self._network.serve_calls(channel, handler)

    def serve_streams(self, channel: str, handler: StreamHandler) -> None:
        """Take streams on a channel."""
        self._network.serve_streams(channel, handler)

    async def call(self, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
        """One request and its reply.

        Raises:
            PeerUnreachable, CallTimeout, RemoteProtocolError: as of any peer.
        """
        if peer != self.peer_id:
            return await self._network.call(peer, channel, request, timeout_s=timeout_s)
        handler = self._handlers.get(channel)
        if handler is None:
            raise RemoteProtocolError(f"channel {channel} here", "a served channel")
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout_s):
            return await handler(peer, request)
        raise CallTimeout(f"our own answer on {channel} took {timeout_s:g} s", "one in time")

    async def open_stream(self, peer: PeerId, channel: str, *, timeout_s: float) -> Stream:
        """A stream to another peer; a lane has no two stages at one. Errors as of the network that this one is made of."""
        return await self._network.open_stream(peer, channel, timeout_s=timeout_s)
