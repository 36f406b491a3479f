"""One process on the network in memory, and what it needs to know of the calls and streams that it takes part in."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from averaging.network.pacing.counters import BulkTally, ControlTally
from averaging.network.seams.clocks import Timers
from averaging.network.seams.interfaces import CallHandler, StreamHandler
from protocol.errors import PeerUnreachable
from protocol.ids import PeerId

MAX_IDLE: Final = 16


class HostCall(Protocol):
    """A call under way to a host."""

    async def serve(self, host: MemoryHost, number: int) -> None:
        """Let the host's handler answer, and send the reply back."""
        ...

    def server_died(self) -> None:
        """Reset the connection."""
        ...


class HostPipe(Protocol):
    """A stream between two hosts."""

    def lose(self, dead: MemoryHost) -> None:
        """One end's process is gone."""
        ...


@dataclass(slots=True, eq=False)
class MemoryHost:
    """One process on the network. A restart is a new host under the same id."""

    peer: PeerId
    context: contextvars.Context
    is_alive: bool = True
    has_ended: bool = False
    """The world has ended while messages to this host were still under way."""

    thawed: trio.Event | None = None
    parked: list[Callable[[], None]] = field(default_factory=list)
    died: trio.Event = field(default_factory=trio.Event)
    nursery: trio.Nursery | None = None
    early: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    pipes: dict[int, HostPipe] = field(default_factory=dict)
    serving: dict[int, HostCall] = field(default_factory=dict)
    idle_servers: list[CallServer] = field(default_factory=list)
    calls: dict[str, CallHandler] = field(default_factory=dict)
    handlers: dict[str, StreamHandler] = field(default_factory=dict)
    control: ControlTally = field(default_factory=ControlTally)
    bulk: BulkTally = field(default_factory=BulkTally)

    async def wait_awake(self) -> None:
        """Wait while the process is frozen."""
        while self.thawed is not None and self.is_alive:
            await self.thawed.wait()

    def when_awake(self, callback: Callable[[], None]) -> None:
        """Call back now, or once the frozen process goes on."""
        if self.thawed is None:
            callback()
        else:
            self.parked.append(callback)

    def thaw(self) -> None:
        """Go on, and run the waiting callbacks in order."""
        event, self.thawed = self.thawed, None
        if event is not None:
            event.set()
        parked, self.parked = self.parked, []
        for callback in parked:
            callback()

    def check_alive(self) -> None:
        """Raises PeerUnreachable in a process that has crashed."""
        if not self.is_alive:
            raise PeerUnreachable(f"{self.peer} has crashed", "a running process")

    async def run(self) -> None:
        """Run the handlers' nursery until the process dies."""
        try:
            async with trio.open_nursery() as nursery:
                self.nursery = nursery
                for function in self.early:
                    nursery.start_soon(function)
                self.early.clear()
                await self.died.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.has_ended = True

    def start_call(self, call: HostCall, number: int) -> None:
        """Run the handler of a call on an idle task if there is one, since starting a task costs as much as a call."""
        if self.idle_servers and self.is_alive and not self.has_ended:
            self.idle_servers.pop().take(call, number)
        else:
            self.start(CallServer(self, call, number).run)

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a handler until it returns or the process dies."""
        if not self.is_alive or self.has_ended:
            return
        if self.nursery is None:
            self.early.append(function)
        else:
            self.context.run(self.nursery.start_soon, function)


class CallServer:
    """A task that serves one call after another; between two calls it waits in its host's list of idle servers."""

    __slots__ = ("_call", "_host", "_idle", "_number", "_task")

    def __init__(self, host: MemoryHost, call: HostCall, number: int) -> None:
        self._host = host
        self._idle = host.idle_servers
        self._call = call
        self._number = number
        self._task: trio.lowlevel.Task | None = None

    def take(self, call: HostCall, number: int) -> None:
        """Take the next call, as a server that was idle."""
        self._call, self._number = call, number
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)

    async def run(self) -> None:
        """Serve calls until there are enough idle servers without this one."""
        self._task = trio.lowlevel.current_task()
        await self._call.serve(self._host, self._number)
        while len(self._idle) < MAX_IDLE:
            self._idle.append(self)
            await trio.lowlevel.wait_task_rescheduled(self._abort)
            await self._call.serve(self._host, self._number)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._idle.remove(self)
        return trio.lowlevel.Abort.SUCCEEDED


class Links(Protocol):
    """The ways between hosts, for the calls and streams that take them."""

    timers: Timers

    def host_of(self, sender: PeerId, peer: PeerId) -> MemoryHost | None:
        """The live host; None if the message is lost under way. Raises PeerUnreachable: it is refused."""
        ...

    def is_passable(self, sender: PeerId, receiver: PeerId) -> bool:
        """Whether messages pass from one peer to the other."""
        ...

    def when_passable(self, sender: PeerId, receiver: PeerId, callback: Callable[[], None]) -> None:
        """Call back now, or once the cut is undone."""
        ...

    def frame_delay_s(self, sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
        """Seconds that a frame takes, and whether its stream breaks instead."""
        ...

    def carry(self, sender: PeerId, receiver: PeerId, num_bytes: int, arrive: Callable[[], None]) -> None:
        """Carry one message of a call; on arrival it is decided whether it is lost."""
        ...

    def is_duplicated(self) -> bool:
        """Whether this request arrives twice."""
        ...

    def is_broken(self) -> bool:
        """Whether the connection of this request or reply breaks under way."""
        ...

    def next_number(self) -> int:
        """A new number for a call or pipe."""
        ...
