"""Network in memory: a world of peers with latency, bandwidth, loss, cuts, freezes and crashes, in trio's time from one seed.

Messages under way are callbacks on one set of timers; only handlers and callers are tasks. Handlers run with the context variables
of their process.
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.memory.memory_call import Answer, Answers, Call
from averaging.network.memory.memory_directory import MemoryDirectory
from averaging.network.memory.memory_host import MemoryHost
from averaging.network.memory.memory_stream import MemoryStream, Pipe
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.clocks import Timers
from averaging.network.seams.directory import RecordRule, sized_record_rule
from averaging.network.seams.interfaces import (
    MAX_CONTROL_BYTES,
    CallHandler,
    DirectoryEntry,
    Stream,
    StreamHandler,
    TookReply,
    TrafficCount,
)
from protocol.errors import CallTimeout, LocalProtocolError, PeerUnreachable, PotluckError
from protocol.ids import PeerId

log = structlog.get_logger()

OPENING_BYTES: Final = 64
RETRANSMIT_S: Final = (0.2, 2.0)
"""Range of the delay of a lost frame, since streams lose time, not frames."""

RESETS_PER_LOSS: Final = 0.02
"""Share of the lost frames that break their stream."""

DIRECTORY_WITHIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """One-way delay in seconds, and throughput in bytes per second."""

    latency_s: float = 0.01
    bytes_per_s: float = 12_500_000.0


class MemorySwarm:
    """The world. Handlers run in `nursery`.

    Attributes:
        speeds: links slower or faster than the default, by peer; the slower end counts.
        loss: share of messages lost everywhere, and `losses` at one peer. Streams lose time instead, and sometimes break.
        duplicated: share of call requests that arrive twice.
        broken: share of requests and of replies whose connection breaks under way while both processes live.
        reorder_s: most extra delay of each request and reply, in seconds.
        directory: the stored records.
        is_directory_up: whether records can be stored and found.
        has_way_in: the same for one peer, instead of `is_directory_up`; None if it is the same for all.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        chooser: random.Random,
        speed: LinkSpeed | None = None,
        record_rule: RecordRule = sized_record_rule,
        timers: Timers | None = None,
    ) -> None:
        self._nursery = nursery
        self._random = chooser
        self._default_speed = speed or LinkSpeed()
        self._hosts: dict[PeerId, MemoryHost] = {}
        self._next_number = 0
        self._cuts: dict[tuple[PeerId, PeerId], int] = {}
        self._waiting: list[tuple[PeerId, PeerId, Callable[[], None]]] = []
        self.timers = timers or Timers(nursery)
        self.speeds: dict[PeerId, LinkSpeed] = {}
        self.loss = 0.0
        self.losses: dict[PeerId, float] = {}
        self.duplicated = 0.0
        self.broken = 0.0
        self.reorder_s = 0.0
        self.directory = MemoryDirectory(record_rule)
        self.is_directory_up = True
        self.has_way_in: Callable[[PeerId], bool] | None = None
        self.unix_offset_s = 1_700_000_000.0
        self.num_messages = 0

    # --- processes ---

    def start(self, peer: PeerId, *, is_elsewhere: bool = False) -> MemoryNetwork:
        """Start a new process of `peer`, and kill an older one.

        With `is_elsewhere` the new one runs on another machine with the same identity: the older one goes on, and messages to the
        peer reach the newer one.
        """
        if not is_elsewhere:
            self.kill(peer)
        host = MemoryHost(peer, contextvars.copy_context())
        self._hosts[peer] = host
        host.context.run(self._nursery.start_soon, host.run)
        return MemoryNetwork(self, host)

    def kill(self, peer: PeerId) -> None:
        """Kill the process: its streams are reset, its calls refused, its handlers cancelled."""
        host = self._hosts.pop(peer, None)
        if host is not None:
            self._end(host)

    def end(self, network: MemoryNetwork) -> None:
        """As `kill`, but only for this process, since the peer may have a newer one."""
        host = network.host
        if self._hosts.get(host.peer) is host:
            del self._hosts[host.peer]
        if host.is_alive:
            self._end(host)

    def _end(self, host: MemoryHost) -> None:
        host.is_alive = False
        host.parked.clear()
        host.thaw()
        for pipe in list(host.pipes.values()):
            pipe.lose(host)
        for call in list(host.serving.values()):
            call.server_died()
        host.serving.clear()
        host.died.set()

    def break_calls(self, peer: PeerId) -> None:
        """Break the connections of all calls under way at this peer, which goes on running."""
        for call in list(self._hosts[peer].serving.values()):
            call.server_died()

    def freeze(self, peer: PeerId) -> None:
        """Freeze the process: it neither answers nor refuses until `thaw`; incoming messages wait."""
        host = self._hosts[peer]
        if host.thawed is None:
            host.thawed = trio.Event()

    def thaw(self, peer: PeerId) -> None:
        """Let the process go on."""
        host = self._hosts.get(peer)
        if host is not None:
            host.thaw()

    # --- links ---

    def cut(self, one_side: Sequence[PeerId], other_side: Sequence[PeerId], *, both_ways: bool = True) -> None:
        """Cut all links from one side to the other, and back if `both_ways`. Cuts add up; each needs its own `mend`."""
        for link in _links(one_side, other_side, both_ways):
            self._cuts[link] = self._cuts.get(link, 0) + 1

    def mend(self, one_side: Sequence[PeerId], other_side: Sequence[PeerId], *, both_ways: bool = True) -> None:
        """Undo one such cut."""
        for link in _links(one_side, other_side, both_ways):
            left = self._cuts.get(link, 0) - 1
            if left > 0:
                self._cuts[link] = left
            else:
                self._cuts.pop(link, None)
        self._release()

    def heal(self) -> None:
        """Undo all cuts."""
        self._cuts.clear()
        self._release()

    def is_passable(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether messages pass from one peer to the other."""
        return (sender, receiver) not in self._cuts

    def when_passable(self, sender: PeerId, receiver: PeerId, callback: Callable[[], None]) -> None:
        """Call back now, or once the cut is undone."""
        if self.is_passable(sender, receiver):
            callback()
        else:
            self._waiting.append((sender, receiver, callback))

    def _release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sender, receiver, callback in waiting:
            self.when_passable(sender, receiver, callback)

    def host_of(self, sender: PeerId, peer: PeerId) -> MemoryHost | None:
        """The live host; None if the message is lost under way. Raises PeerUnreachable: it is refused."""
        if self._cuts and (sender, peer) in self._cuts:
            return None
        if (self.loss or self.losses) and self._is_lost(sender, peer):
            return None
        host = self._hosts.get(peer)
        if host is None:
            raise PeerUnreachable(f"{peer} refused the connection", "a running peer")
        return host

    def _is_lost(self, sender: PeerId, receiver: PeerId) -> bool:
        if not (self.loss or self.losses):
            return False
        loss = self.loss_between(sender, receiver)
        return loss > 0 and self._random.random() < loss

    def loss_between(self, sender: PeerId, receiver: PeerId) -> float:
        """Share of messages lost between two peers."""
        if not self.losses:
            return self.loss
        return max(self.loss, self.losses.get(sender, 0.0), self.losses.get(receiver, 0.0))

    def delay_s(self, sender: PeerId, receiver: PeerId, num_bytes: int) -> float:
        """Seconds that `num_bytes` take from one peer to the other."""
        jitter = 1.0 + 0.2 * self._random.random()
        a = b = self._default_speed
        if not self.speeds:
            return a.latency_s * jitter + num_bytes / a.bytes_per_s
        a, b = self.speeds.get(sender, a), self.speeds.get(receiver, b)
        return (a.latency_s + b.latency_s) / 2 * jitter + num_bytes / min(a.bytes_per_s, b.bytes_per_s)

    def frame_delay_s(self, sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
        """Seconds that a frame takes, and whether its stream breaks instead."""
        delay_s = self.delay_s(sender, receiver, num_bytes)
        if not self._is_lost(sender, receiver):
            return delay_s, False
        return delay_s + self._random.uniform(*RETRANSMIT_S), self._random.random() < RESETS_PER_LOSS

    def carry(self, sender: PeerId, receiver: PeerId, num_bytes: int, arrive: Callable[[], None]) -> None:
        """Carry one message of a call; on arrival it is decided whether it is lost."""
        self.num_messages += 1
        delay_s = self.delay_s(sender, receiver, num_bytes + OPENING_BYTES)
        if self.reorder_s > 0:
            delay_s += self._random.uniform(0.0, self.reorder_s)
        self.timers.after(delay_s, arrive)

    def is_duplicated(self) -> bool:
        """Whether this request arrives twice."""
        return self.duplicated > 0 and self._random.random() < self.duplicated

    def is_broken(self) -> bool:
        """Whether the connection of this request or reply breaks under way."""
        return self.broken > 0 and self._random.random() < self.broken

    def next_number(self) -> int:
        """A new number for a call or pipe."""
        self._next_number += 1
        return self._next_number

    def connect(self, opener: MemoryHost, server: MemoryHost, channel: str, handler: StreamHandler) -> Stream:
        """Make a pipe and return the opener's end; the server's handler of this channel runs with the other end."""
        pipe = Pipe(self, self.next_number(), opener, server)

        async def serve() -> None:
            stream = MemoryStream(pipe, 1, channel)
            try:
                await handler(opener.peer, stream)
            except PotluckError as error:
                log.debug("stream_reset", peer=server.peer, reason=error.one_line())
                pipe.reset()
            else:
                await stream.aclose()

        server.start(serve)
        return MemoryStream(pipe, 0, channel)

    # --- the directory ---

    def reaches_directory(self, peer: PeerId) -> bool:
        """Whether this peer can reach the directory."""
        return self.is_directory_up if self.has_way_in is None else self.has_way_in(peer)

    def unix_s(self) -> float:
        """The clock by which records expire."""
        return self.unix_offset_s + trio.current_time()


def _links(
    one_side: Sequence[PeerId], other_side: Sequence[PeerId], both_ways: bool
) -> Sequence[tuple[PeerId, PeerId]]:
    there = [(a, b) for a in one_side for b in other_side]
    return there + [(b, a) for a, b in there] if both_ways else there


def _unanswered(channel: str, timeout_s: float, peer: PeerId) -> CallTimeout:
    return CallTimeout(f"no answer from {peer} on {channel} within {timeout_s} s", "an answer")


class MemoryNetwork:
    """One process's Network in a MemorySwarm."""

    def __init__(self, swarm: MemorySwarm, host: MemoryHost) -> None:
        self._swarm = swarm
        self._host = host

    @property
    def host(self) -> MemoryHost:
        """The process on this network."""
        return self._host

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
        answer: Answer[bytes] = Answer()
        self._depart((Call(self._swarm, self._host, peer, channel, request, answer),), request)
        return await answer.wait(self._swarm.timers, timeout_s, partial(_unanswered, channel, timeout_s, peer))

    async def call_each(
        self, peers: Sequence[PeerId], channel: str, request: bytes, *, timeout_s: float, took: TookReply
    ) -> None:
        """As `call`, on one task and one deadline for all."""
        answers = Answers()
        calls = [Call(self._swarm, self._host, peer, channel, request, answers.of(peer)) for peer in peers]
        self._depart(calls, request)
        await answers.tell(self._swarm.timers, timeout_s, took, partial(_unanswered, channel, timeout_s))

    def _depart(self, calls: Sequence[Call], request: bytes) -> None:
        if len(request) > MAX_CONTROL_BYTES:
            raise LocalProtocolError(f"a request of {len(request)} bytes", f"at most {MAX_CONTROL_BYTES}")
        self._host.check_alive()
        for call in calls:
            self._host.when_awake(call.depart)

    async def open_stream(self, peer: PeerId, channel: str, *, timeout_s: float) -> Stream:
        """A stream to the peer's handler of this channel."""
        me, swarm = self._host, self._swarm
        me.check_alive()
        answer: Answer[Stream] = Answer()

        def arrive() -> None:
            try:
                host = swarm.host_of(me.peer, peer)
            except PeerUnreachable as error:
                answer.fail(error)
                return
            if host is not None and swarm.is_passable(peer, me.peer):
                host.when_awake(lambda: accept(host))

        def accept(host: MemoryHost) -> None:
            handler = host.handlers.get(channel)
            if handler is None or not host.is_alive or not me.is_alive:
                answer.fail(PeerUnreachable(f"{peer} does not serve {channel}", "a served channel"))
            elif answer.is_awaited:
                answer.give(swarm.connect(me, host, channel, handler))

        def too_late() -> CallTimeout:
            return CallTimeout(f"no stream to {peer} on {channel} within {timeout_s} s", "an open stream")

        me.when_awake(lambda: swarm.carry(me.peer, peer, 0, arrive))
        return await answer.wait(swarm.timers, timeout_s, too_late)

    async def add_addresses(self, addresses: Sequence[str]) -> None:
        """Do nothing, since every peer is known here."""

    def bulk_addresses(self) -> tuple[BulkAddress, ...]:
        """Empty, since there are no sockets here."""
        return ()

    def addresses(self) -> tuple[str, ...]:
        """An address of this world."""
        return (f"/memory/{self._host.peer}/p2p/{self._host.peer}",)

    async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
        """Store a record; one that is too long is refused."""
        self._host.check_alive()
        self._host.control.published(key, subkey, value)
        if not await self._reach_directory(len(value)):
            return False
        return self._swarm.directory.store(key, DirectoryEntry(subkey, value, expires_unix_s), self._swarm.unix_s())

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        """Live records."""
        self._host.check_alive()
        self._host.control.looked_up(key)
        if not await self._reach_directory(OPENING_BYTES):
            return ()
        found = self._swarm.directory.live(key, self._swarm.unix_s())
        self._host.control.found(found)
        return found

    async def _reach_directory(self, num_bytes: int) -> bool:
        swarm, host = self._swarm, self._host
        await swarm.timers.sleep(swarm.delay_s(host.peer, host.peer, num_bytes))
        host.check_alive()
        if not swarm.reaches_directory(host.peer):
            await swarm.timers.sleep(DIRECTORY_WITHIN_S)
            host.check_alive()
        return swarm.reaches_directory(host.peer)

    def traffic(self) -> TrafficCount:
        """Payload bytes so far."""
        control, bulk = self._host.control, self._host.bulk
        lanes = (control.bytes_up, control.bytes_down, bulk.bytes_up, bulk.bytes_down)
        return TrafficCount(*lanes, bulk.counts(), control.counts())
