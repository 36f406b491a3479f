"""Network in memory: a world of peers with latency, bandwidth, loss, cuts, freezes and crashes, in trio's time from one seed."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog
import trio

from averaging.network.directory import Record, RecordRule, sized_record_rule
from averaging.network.seams import (
    MAX_CONTROL_BYTES,
    MAX_FRAME_BYTES,
    CallHandler,
    DirectoryEntry,
    Stream,
    StreamHandler,
    TrafficCount,
)
from protocol.errors import CallTimeout, LocalProtocolError, PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.ids import PeerId

log = structlog.get_logger()

FRAME_BUFFER = 4
"""Frames in flight on a stream before its sender waits: a slow reader slows its writer, nothing piles up."""

OPENING_BYTES = 64


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """One-way delay in seconds, and throughput in bytes per second."""

    latency_s: float = 0.01
    bytes_per_s: float = 12_500_000.0


@dataclass(slots=True)
class _Host:
    """One process on the network. A restart is a new host under the same id."""

    peer: PeerId
    is_alive: bool = True
    thawed: trio.Event | None = None
    scopes: dict[int, trio.CancelScope] = field(default_factory=dict)
    pipes: dict[int, _Pipe] = field(default_factory=dict)
    calls: dict[str, CallHandler] = field(default_factory=dict)
    handlers: dict[str, StreamHandler] = field(default_factory=dict)
    control_up: int = 0
    control_down: int = 0
    bulk_up: int = 0
    bulk_down: int = 0

    async def wait_awake(self) -> None:
        """Returns at once unless the process is frozen."""
        while self.thawed is not None and self.is_alive:
            await self.thawed.wait()

    def check_alive(self) -> None:
        if not self.is_alive:
            raise PeerUnreachable(f"{self.peer} has crashed", "a running process")


class _Pipe:
    """Two directions of frames between two hosts."""

    def __init__(self, number: int, opener: _Host, server: _Host) -> None:
        self.number = number
        self.hosts = (opener, server)
        self.is_reset = False
        self.senders: list[trio.MemorySendChannel[bytes]] = []
        self.receivers: list[trio.MemoryReceiveChannel[bytes]] = []
        for _ in range(2):
            sender, receiver = trio.open_memory_channel[bytes](FRAME_BUFFER)
            self.senders.append(sender)
            self.receivers.append(receiver)
        self.broken = trio.Event()
        for host in self.hosts:
            host.pipes[number] = self

    def reset(self) -> None:
        """Both ends fail from now on."""
        self.is_reset = True
        self.broken.set()
        for sender in self.senders:
            sender.close()
        for receiver in self.receivers:
            receiver.close()
        for host in self.hosts:
            host.pipes.pop(self.number, None)


class MemoryStream:
    """One end of a pipe; end 0 is the opener's."""

    def __init__(self, swarm: MemorySwarm, pipe: _Pipe, end: int) -> None:
        self._swarm = swarm
        self._pipe = pipe
        self._end = end
        self._is_closed = False

    @property
    def remote(self) -> PeerId:
        """The peer at the other end."""
        return self._pipe.hosts[1 - self._end].peer

    def _broken(self) -> PeerUnreachable:
        return PeerUnreachable(f"the stream with {self.remote} was reset", "a live stream")

    async def send_frame(self, data: bytes | memoryview) -> None:
        """Arrives after the link's delay; waits while FRAME_BUFFER frames are unread."""
        if len(data) > MAX_FRAME_BYTES:
            raise LocalProtocolError(f"a frame of {len(data)} bytes", f"at most {MAX_FRAME_BYTES}")
        here, there = self._pipe.hosts[self._end], self._pipe.hosts[1 - self._end]
        frame = bytes(data)
        await here.wait_awake()
        if self._pipe.is_reset or self._is_closed:
            raise self._broken()
        here.bulk_up += len(frame)
        await self._swarm.travel(here.peer, there.peer, len(frame))
        while (here.peer, there.peer) in self._swarm.cuts and not self._pipe.is_reset:
            await self._swarm.wait_changed()
        try:
            await self._pipe.senders[self._end].send(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise self._broken() from error

    async def receive_frame(self) -> bytes | None:
        """The next frame, None after a clean end."""
        here = self._pipe.hosts[self._end]
        await here.wait_awake()
        try:
            frame = await self._pipe.receivers[1 - self._end].receive()
        except trio.EndOfChannel:
            if self._pipe.is_reset:
                raise self._broken() from None
            return None
        except trio.ClosedResourceError:
            raise self._broken() from None
        await here.wait_awake()
        here.bulk_down += len(frame)
        return frame

    async def aclose(self) -> None:
        """What was sent still arrives; what the other side sends from now on fails there."""
        if self._is_closed:
            return
        self._is_closed = True
        self._pipe.senders[self._end].close()
        self._pipe.receivers[1 - self._end].close()
        self._pipe.hosts[self._end].pipes.pop(self._pipe.number, None)


class MemorySwarm:
    """The world. Handlers run in `nursery`; `cuts` holds one-way pairs (from, to)."""

    def __init__(
        self,
        nursery: trio.Nursery,
        chooser: random.Random,
        speed: LinkSpeed | None = None,
        record_rule: RecordRule = sized_record_rule,
    ) -> None:
        self._record_rule = record_rule
        self._nursery = nursery
        self._random = chooser
        self._default_speed = speed or LinkSpeed()
        self._hosts: dict[PeerId, _Host] = {}
        self._records: dict[str, dict[str, DirectoryEntry]] = defaultdict(dict)
        self._next_number = 0
        self._changed = trio.Event()
        self.speeds: dict[PeerId, LinkSpeed] = {}
        self.cuts: set[tuple[PeerId, PeerId]] = set()
        self.loss = 0.0
        self.unix_offset_s = 1_700_000_000.0

    def start(self, peer: PeerId) -> MemoryNetwork:
        """A fresh process of `peer`; an older one is killed."""
        self.kill(peer)
        host = _Host(peer)
        self._hosts[peer] = host
        return MemoryNetwork(self, host)

    def kill(self, peer: PeerId) -> None:
        """The process is gone: its streams are reset, its calls refused, its handlers cancelled."""
        host = self._hosts.pop(peer, None)
        if host is None:
            return
        host.is_alive = False
        if host.thawed is not None:
            host.thawed.set()
        for pipe in list(host.pipes.values()):
            pipe.reset()
        for scope in list(host.scopes.values()):
            scope.cancel()
        self._wake()

    def freeze(self, peer: PeerId) -> None:
        """The process answers nothing and refuses nothing until `thaw`."""
        self._hosts[peer].thawed = trio.Event()

    def thaw(self, peer: PeerId) -> None:
        """The process goes on."""
        host = self._hosts.get(peer)
        if host is not None and host.thawed is not None:
            event, host.thawed = host.thawed, None
            event.set()

    def cut(self, one_side: Sequence[PeerId], other_side: Sequence[PeerId], *, both_ways: bool = True) -> None:
        """Nothing passes from one side to the other, nor back unless told otherwise."""
        for a in one_side:
            for b in other_side:
                self.cuts.add((a, b))
                if both_ways:
                    self.cuts.add((b, a))

    def heal(self) -> None:
        """All cuts are gone."""
        self.cuts.clear()
        self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()

    async def wait_changed(self) -> None:
        """Until a cut heals or a process dies."""
        await self._changed.wait()

    def reach(self, sender: PeerId, peer: PeerId) -> _Host | None:
        """The live host; None when the message vanishes on its way. Raises PeerUnreachable when it is refused."""
        if (sender, peer) in self.cuts or (self.loss > 0 and self._random.random() < self.loss):
            return None
        host = self._hosts.get(peer)
        if host is None:
            raise PeerUnreachable(f"{peer} refused the connection", "a running peer")
        return host

    async def travel(self, sender: PeerId, receiver: PeerId, num_bytes: int) -> None:
        """The time that so many bytes take from one to the other."""
        a = self.speeds.get(sender, self._default_speed)
        b = self.speeds.get(receiver, self._default_speed)
        jitter = 1.0 + 0.2 * self._random.random()
        await trio.sleep((a.latency_s + b.latency_s) / 2 * jitter + num_bytes / min(a.bytes_per_s, b.bytes_per_s))

    def connect(self, opener: _Host, server: _Host, handler: StreamHandler) -> Stream:
        """A new pipe; the server's handler runs with the other end."""
        self._next_number += 1
        pipe = _Pipe(self._next_number, opener, server)

        async def serve() -> None:
            stream = MemoryStream(self, pipe, 1)
            try:
                await handler(opener.peer, stream)
            except PotluckError as error:
                log.debug("stream_reset", peer=server.peer, reason=error.one_line())
                pipe.reset()
            else:
                await stream.aclose()

        self.spawn(server, serve)
        return MemoryStream(self, pipe, 0)

    def spawn(self, host: _Host, function: Callable[[], Awaitable[None]]) -> None:
        """Run a handler on behalf of a host; it ends when the host dies."""
        self._next_number += 1
        number = self._next_number

        async def guarded() -> None:
            with trio.CancelScope() as scope:
                host.scopes[number] = scope
                try:
                    await function()
                finally:
                    host.scopes.pop(number, None)

        if host.is_alive:
            self._nursery.start_soon(guarded)

    def store(self, key: str, entry: DirectoryEntry) -> bool:
        """Keep a directory record if the rule allows it; the later expiry wins, as in the DHT."""
        record = Record(entry.subkey, entry.value, entry.expires_unix_s)
        reason = self._record_rule(record, self.unix_offset_s + trio.current_time())
        known = self._records[key].get(entry.subkey)
        if reason or (known is not None and known.expires_unix_s >= entry.expires_unix_s):
            log.debug("record_refused", subkey=entry.subkey, reason=reason or "older than the one we have")
            return False
        self._records[key][entry.subkey] = entry
        return True

    def records(self, key: str, now_unix_s: float) -> Sequence[DirectoryEntry]:
        """Live records under a key."""
        return tuple(e for _, e in sorted(self._records[key].items()) if e.expires_unix_s > now_unix_s)


class MemoryNetwork:
    """One process's Network in a MemorySwarm."""

    def __init__(self, swarm: MemorySwarm, host: _Host) -> None:
        self._swarm = swarm
        self._host = host

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._host.peer

    def serve_calls(self, channel: str, handler: CallHandler) -> None:
        """Answer calls on this channel."""
        self._host.calls[channel] = handler

    def serve_streams(self, channel: str, handler: StreamHandler) -> None:
        """Answer streams on this channel."""
        self._host.handlers[channel] = handler

    async def call(self, peer: PeerId, channel: str, request: bytes, *, timeout_s: float) -> bytes:
        """One request, one reply; the reply of a frozen or cut-off peer never comes."""
        if len(request) > MAX_CONTROL_BYTES:
            raise LocalProtocolError(f"a request of {len(request)} bytes", f"at most {MAX_CONTROL_BYTES}")
        with trio.move_on_after(timeout_s):
            return await self._call(peer, channel, request)
        raise CallTimeout(f"no answer from {peer} on {channel} within {timeout_s} s", "an answer")

    async def _call(self, peer: PeerId, channel: str, request: bytes) -> bytes:
        me = self._host
        await me.wait_awake()
        me.check_alive()
        me.control_up += len(request)
        await self._swarm.travel(me.peer, peer, len(request) + OPENING_BYTES)
        host = self._swarm.reach(me.peer, peer)
        if host is None:
            await trio.sleep_forever()
        answered = trio.Event()
        outcome: list[bytes | PotluckError] = []

        async def serve() -> None:
            await host.wait_awake()
            handler = host.calls.get(channel)
            if handler is None:
                outcome.append(PeerUnreachable(f"{peer} does not serve {channel}", "a served channel"))
            else:
                host.control_down += len(request)
                try:
                    outcome.append(await handler(me.peer, request))
                except PotluckError as error:
                    outcome.append(RemoteProtocolError(f"{peer} failed on {channel}: {error.one_line()}", "an answer"))
            answered.set()

        async def watched() -> None:
            try:
                await serve()
            finally:
                answered.set()

        self._swarm.spawn(host, watched)
        if not host.is_alive:
            answered.set()
        await answered.wait()
        await me.wait_awake()
        me.check_alive()
        if not outcome:
            raise PeerUnreachable(f"{peer} died during a call on {channel}", "an answer")
        reply = outcome[0]
        size = len(reply) if isinstance(reply, bytes) else 0
        await self._swarm.travel(peer, me.peer, size + OPENING_BYTES)
        if self._swarm.reach(peer, me.peer) is None:
            await trio.sleep_forever()
        if isinstance(reply, PotluckError):
            raise reply
        if len(reply) > MAX_CONTROL_BYTES:
            raise RemoteProtocolError(f"a reply of {len(reply)} bytes from {peer}", f"at most {MAX_CONTROL_BYTES}")
        host.control_up += size
        me.control_down += size
        return reply

    async def open_stream(self, peer: PeerId, channel: str, *, timeout_s: float) -> Stream:
        """A stream to the peer's handler of this channel."""
        me = self._host
        with trio.move_on_after(timeout_s):
            await me.wait_awake()
            me.check_alive()
            await self._swarm.travel(me.peer, peer, OPENING_BYTES)
            host = self._swarm.reach(me.peer, peer)
            if host is None or (peer, me.peer) in self._swarm.cuts:
                await trio.sleep_forever()
            await host.wait_awake()
            handler = host.handlers.get(channel)
            if handler is None or not host.is_alive or not me.is_alive:
                raise PeerUnreachable(f"{peer} does not serve {channel}", "a served channel")
            return self._swarm.connect(me, host, handler)
        raise CallTimeout(f"no stream to {peer} on {channel} within {timeout_s} s", "an open stream")

    async def add_addresses(self, addresses: Sequence[str]) -> None:
        """Everybody is known here."""

    def addresses(self) -> tuple[str, ...]:
        """An address of this world."""
        return (f"/memory/{self._host.peer}/p2p/{self._host.peer}",)

    async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
        """Store a record; a record that is too long is refused."""
        self._host.check_alive()
        await self._swarm.travel(self._host.peer, self._host.peer, len(value))
        return self._swarm.store(key, DirectoryEntry(subkey, value, expires_unix_s))

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        """Live records."""
        self._host.check_alive()
        await self._swarm.travel(self._host.peer, self._host.peer, OPENING_BYTES)
        return self._swarm.records(key, self._swarm.unix_offset_s + trio.current_time())

    def traffic(self) -> TrafficCount:
        """Payload bytes so far."""
        host = self._host
        return TrafficCount(host.control_up, host.control_down, host.bulk_up, host.bulk_down)
