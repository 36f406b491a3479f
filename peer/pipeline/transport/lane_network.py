"""The network interface of lanes, and a loopback for calls to this peer itself: a keeper of lanes may serve in one of them."""

from __future__ import annotations

from typing import Protocol

import trio

from averaging.network.seams.interfaces import CallHandler, Stream, StreamHandler
from protocol.errors import CallTimeout, RemoteProtocolError
from protocol.ids import PeerId


class LaneNetwork(Protocol):
    """The part of Network (averaging/network/seams/interfaces.py) that lanes use. Same errors."""

    @property
    def peer_id(self) -> PeerId:
        """This peer."""
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
    """A network that delivers calls to this peer locally, since libp2p does not dial its own address."""

    def __init__(self, network: LaneNetwork) -> None:
        self._network = network
        self._handlers: dict[str, CallHandler] = {}

    @property
    def peer_id(self) -> PeerId:
        """This peer."""
        return self._network.peer_id

    def serve_calls(self, channel: str, handler: CallHandler) -> None:
        """Answer calls on a channel, including this peer's own."""
        self._handlers[channel] = handler
        self._network.serve_calls(channel, handler)

    def serve_streams(self, channel: str, handler: StreamHandler) -> None:
        """Take streams on a channel."""
        self._network.serve_streams(channel, handler)

    async def call(self, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
        """One request and its reply.

        Raises:
            PeerUnreachable, CallTimeout, RemoteProtocolError: as for any peer.
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
        """A stream to another peer; no peer serves two stages of a lane. Errors as of the wrapped network."""
        return await self._network.open_stream(peer, channel, timeout_s=timeout_s)
