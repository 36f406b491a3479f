"""What lanes need of the network, and a way to ourselves: a keeper of lanes may serve in one of them."""

from __future__ import annotations

from typing import Final, Protocol

import structlog
import trio

from averaging.network.seams.frames import placed
from averaging.network.seams.interfaces import CallHandler, Place, Stream, StreamHandler
from protocol.errors import CallTimeout, PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.ids import PeerId

log = structlog.get_logger()

_FRAMES: Final = 16
"""Under way on a stream to ourselves, at most."""


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


class OwnStream:
    """One end of a stream to ourselves (averaging/network/seams/interfaces.py's Stream)."""

    def __init__(self, remote: PeerId, to: trio.MemorySendChannel[bytes], of: trio.MemoryReceiveChannel[bytes]) -> None:
        self.remote = remote
        self._to, self._of = to, of

    def count_as(self, unit: str, codec: str) -> None:
        """Nothing passes a network."""

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        """One frame.

        Raises:
            PeerUnreachable: the other end is closed.
        """
        try:
            await self._to.send(b"".join((head, data)))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerUnreachable("a stream to ourselves that is closed", "an open one") from error

    async def receive_frame(self) -> bytes | None:
        """The next frame, None after the end."""
        try:
            return await self._of.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return None

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        """As `receive_frame`."""
        frame = await self.receive_frame()
        return None if frame is None else placed(frame, place)

    async def aclose(self) -> None:
        """End both ways."""
        self._to.close()
        self._of.close()
        await trio.lowlevel.checkpoint()


class OwnLoop:
    """A network whose calls and streams to ourselves come here at once: libp2p dials nobody's own address.

    Streams to ourselves need `run`.
    """

    def __init__(self, network: LaneNetwork) -> None:
        self._network = network
        self._handlers: dict[str, CallHandler] = {}
        self._stream_handlers: dict[str, StreamHandler] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Take streams to ourselves until cancelled."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    @property
    def peer_id(self) -> PeerId:
        """Ourselves."""
        return self._network.peer_id

    def serve_calls(self, channel: str, handler: CallHandler) -> None:
        """Answer calls on a channel, our own with them."""
        self._handlers[channel] = handler
        self._network.serve_calls(channel, handler)

    def serve_streams(self, channel: str, handler: StreamHandler) -> None:
        """Take streams on a channel, our own with them."""
        self._stream_handlers[channel] = handler
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
        """A stream to a peer.

        Raises:
            PeerUnreachable: as of any peer; ourselves where `run` does not.
            RemoteProtocolError: a channel that is not served here.
        """
        if peer != self.peer_id:
            return await self._network.open_stream(peer, channel, timeout_s=timeout_s)
        handler = self._stream_handlers.get(channel)
        if handler is None:
            raise RemoteProtocolError(f"channel {channel} here", "a served channel")
        if self._nursery is None or self._nursery.cancel_scope.cancel_called:
            raise PeerUnreachable("a stream to ourselves while nothing takes it", "one while this peer works")
        await trio.lowlevel.checkpoint()
        there, here = trio.open_memory_channel[bytes](_FRAMES), trio.open_memory_channel[bytes](_FRAMES)
        self._nursery.start_soon(self._take, handler, OwnStream(peer, here[0], there[1]))
        return OwnStream(peer, there[0], here[1])

    async def _take(self, handler: StreamHandler, stream: OwnStream) -> None:
        try:
            await handler(self.peer_id, stream)
        except PotluckError as error:
            log.info("own_stream_ended", reason=error.one_line())
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()
