"""Bulk streams in memory: two flows of frames between two hosts, with delay, a window, cuts, stalls and resets."""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from averaging.network.memory.memory_host import Links, MemoryHost
from averaging.network.seams.frames import placed
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, BulkKind, Place, Way
from protocol.errors import ConnectionReset, LocalProtocolError
from protocol.ids import PeerId

FRAME_BUFFER: Final = 4
"""Frames under way or unread before a sender waits, so that a slow reader slows its writer."""

STALL_LIMIT_S: Final = 40.0
"""A stream whose frames cannot pass for this time is reset, as a transport with keepalives does."""


class _Flow:
    """One direction of a pipe. None among the frames is the clean end."""

    def __init__(self, pipe: Pipe, sender: MemoryHost, receiver: MemoryHost) -> None:
        self.pipe = pipe
        self.sender = sender
        self.receiver = receiver
        self.arrived: deque[bytes | None] = deque()
        self._on_way: deque[bytes | None] = deque()
        self._waiting_to_pass: deque[bytes | None] = deque()
        self.num_on_way = 0
        self.is_unread = False
        """The receiving end has closed; further sends fail."""
        self._last_arrival_s = 0.0
        self._reader: trio.lowlevel.Task | None = None
        self._writers: deque[trio.lowlevel.Task] = deque()

    @property
    def is_full(self) -> bool:
        return self.num_on_way + len(self.arrived) >= FRAME_BUFFER

    def send(self, frame: bytes | None) -> None:
        """Send a frame; frames of one flow arrive in order."""
        swarm, now_s = self.pipe.swarm, trio.current_time()
        delay_s, is_reset = swarm.frame_delay_s(self.sender.peer, self.receiver.peer, len(frame or b""))
        if is_reset:
            self.pipe.reset()
            return
        self.num_on_way += 1
        self._last_arrival_s = max(self._last_arrival_s, now_s + delay_s)
        self._on_way.append(frame)
        swarm.timers.after(self._last_arrival_s - now_s, self._arrive)

    def _arrive(self) -> None:
        """Take the next frame in order, whichever timer fired: on a real clock, timers may fire slightly out of order."""
        if self.pipe.is_reset:
            return
        self._waiting_to_pass.append(self._on_way.popleft())
        if len(self._waiting_to_pass) == 1:
            self._pass()

    def _pass(self) -> None:
        """Deliver frames; during a cut they wait, up to STALL_LIMIT_S."""
        swarm = self.pipe.swarm
        if self.pipe.is_reset:
            return
        if not swarm.is_passable(self.sender.peer, self.receiver.peer):
            swarm.when_passable(self.sender.peer, self.receiver.peer, self._pass)
            stuck = self._waiting_to_pass[0], self._last_arrival_s
            swarm.timers.after(STALL_LIMIT_S, lambda: self._give_up(stuck))
            return
        self.num_on_way -= len(self._waiting_to_pass)
        self.arrived.extend(self._waiting_to_pass)
        self._waiting_to_pass.clear()
        self.wake_reader()

    def _give_up(self, stuck: tuple[bytes | None, float]) -> None:
        if self._waiting_to_pass and (self._waiting_to_pass[0], self._last_arrival_s) == stuck:
            self.pipe.reset()

    def wake_reader(self) -> None:
        task, self._reader = self._reader, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def wake_writers(self) -> None:
        while self._writers:
            trio.lowlevel.reschedule(self._writers.popleft())

    async def wait_frame(self) -> None:
        """Wait until a frame arrives or the pipe breaks."""
        self._reader = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def wait_space(self) -> None:
        """Wait until a frame is read or the pipe breaks."""
        task = trio.lowlevel.current_task()
        self._writers.append(task)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._writers.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class Pipe:
    """Two flows between two hosts; flow 0 goes from the opener to the server."""

    def __init__(self, swarm: Links, number: int, opener: MemoryHost, server: MemoryHost) -> None:
        self.swarm = swarm
        self.number = number
        self.hosts = (opener, server)
        self.is_reset = False
        self.flows = (_Flow(self, opener, server), _Flow(self, server, opener))
        for host in self.hosts:
            host.pipes[number] = self

    def reset(self) -> None:
        """Break the pipe: both ends fail from now on."""
        self.is_reset = True
        for host in self.hosts:
            host.pipes.pop(self.number, None)
        for flow in self.flows:
            flow.wake_reader()
            flow.wake_writers()

    def lose(self, dead: MemoryHost) -> None:
        """One end's process is gone; the other end notices as soon as the link is passable."""
        dead.pipes.pop(self.number, None)
        far = self.hosts[0] if dead is self.hosts[1] else self.hosts[1]
        self.swarm.when_passable(dead.peer, far.peer, self.reset)


class MemoryStream:
    """One end of a pipe; end 0 is the opener's."""

    def __init__(self, pipe: Pipe, end: int, channel: str) -> None:
        self._pipe = pipe
        self._kind = BulkKind(Way.MEMORY, channel)
        self._here = pipe.hosts[end]
        self._out = pipe.flows[end]
        self._in = pipe.flows[1 - end]
        self._is_closed = False

    @property
    def remote(self) -> PeerId:
        """The peer at the other end."""
        return self._out.receiver.peer

    def count_as(self, unit: str, codec: str) -> None:
        """Count later frames under this unit and codec."""
        self._kind = BulkKind(Way.MEMORY, self._kind.channel, unit, codec)

    def _check(self, is_broken: bool) -> None:
        if is_broken or self._pipe.is_reset or self._is_closed or not self._here.is_alive:
            raise ConnectionReset(f"the stream with {self.remote} was reset", "a live stream")

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        """Send one frame, which arrives after the link's delay; waits while FRAME_BUFFER frames are under way or unread."""
        if len(head) + len(data) > MAX_FRAME_BYTES:
            raise LocalProtocolError(f"a frame of {len(head) + len(data)} bytes", f"at most {MAX_FRAME_BYTES}")
        frame = b"".join((head, data))
        await self._here.wait_awake()
        self._check(self._out.is_unread)
        while self._out.is_full:
            await self._out.wait_space()
            self._check(self._out.is_unread)
        self._here.bulk.sent(self._kind, len(frame))
        self._out.send(frame)

    async def receive_frame(self) -> bytes | None:
        """The next frame, None after a clean end."""
        await self._here.wait_awake()
        self._check(False)
        while not self._in.arrived:
            await self._in.wait_frame()
            await self._here.wait_awake()
            self._check(False)
        frame = self._in.arrived[0]
        if frame is None:
            return None
        self._in.arrived.popleft()
        self._in.wake_writers()
        self._here.bulk.received(self._kind, len(frame))
        return frame

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        """The next frame as a view."""
        frame = await self.receive_frame()
        return None if frame is None else placed(frame, place)

    async def aclose(self) -> None:
        """End the stream: sent frames still arrive; later sends of the other side fail."""
        if self._is_closed:
            return
        self._is_closed = True
        self._here.pipes.pop(self._pipe.number, None)
        if not self._pipe.is_reset:
            self._out.send(None)
            self._in.is_unread = True
            self._in.wake_writers()
            self._in.wake_reader()
