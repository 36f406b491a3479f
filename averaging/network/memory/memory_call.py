"""One call between two in-memory hosts: the request travels, a handler serves it, the reply travels back; each may be lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import trio

from averaging.network.memory.memory_host import Links, MemoryHost
from averaging.network.seams.clocks import Timers
from averaging.network.seams.interfaces import MAX_CONTROL_BYTES, TookReply
from protocol.errors import ConnectionReset, PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.ids import PeerId

T = TypeVar("T")


class Answer(Generic[T]):
    """The answer that one task waits for, up to a deadline; the first value or error counts."""

    def __init__(self) -> None:
        self._values: list[T] = []
        self._error: Exception | None = None
        self._task: trio.lowlevel.Task | None = None
        self.is_awaited = True

    def give(self, value: T) -> None:
        """The value, unless something came before."""
        if self.is_awaited:
            self._values.append(value)
            self._wake()

    def fail(self, error: Exception) -> None:
        """The error, unless something came before."""
        if self.is_awaited:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        self.is_awaited = False
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    async def wait(self, timers: Timers, timeout_s: float, too_late: Callable[[], Exception]) -> T:
        """The value; raises the error, or the error of `too_late` at the deadline."""
        if self.is_awaited:
            timer = timers.after(timeout_s, lambda: self.fail(too_late()))
            self._task = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                self._task = None
                self.is_awaited = False
                timer.cancel()
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
            timer.cancel()
        if self._error is not None:
            raise self._error
        return self._values[0]


class Answers:
    """The answers that one task waits for from several peers, up to one deadline; the first value or error of each counts."""

    def __init__(self) -> None:
        self._settled: list[tuple[PeerId, bytes | PotluckError]] = []
        self._open: dict[PeerId, None] = {}
        self._task: trio.lowlevel.Task | None = None

    def of(self, peer: PeerId) -> AnswerOf:
        """The receiver of one peer's answer."""
        self._open[peer] = None
        return AnswerOf(self, peer)

    def settle(self, peer: PeerId, reply: bytes | PotluckError) -> None:
        """A peer has answered or failed; only the first time counts."""
        if peer in self._open:
            del self._open[peer]
            self._settled.append((peer, reply))
            self._wake()

    def _wake(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        self._open.clear()
        return trio.lowlevel.Abort.SUCCEEDED

    async def tell(
        self, timers: Timers, timeout_s: float, took: TookReply, too_late: Callable[[PeerId], PotluckError]
    ) -> None:
        """Pass each answer to `took`, until all peers have answered; at the deadline the missing ones get `too_late`."""

        def end() -> None:
            for peer in list(self._open):
                self.settle(peer, too_late(peer))

        timer = timers.after(timeout_s, end)
        try:
            while self._settled or self._open:
                if not self._settled:
                    self._task = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._abort)
                settled, self._settled = self._settled, []
                for peer, reply in settled:
                    await took(peer, reply)
        finally:
            timer.cancel()


class AnswerOf:
    """One of several answers."""

    __slots__ = ("_all", "_peer")

    def __init__(self, answers: Answers, peer: PeerId) -> None:
        self._all = answers
        self._peer = peer

    def give(self, value: bytes) -> None:
        """The value, unless something came before."""
        self._all.settle(self._peer, value)

    def fail(self, error: PotluckError) -> None:
        """The error, unless something came before."""
        self._all.settle(self._peer, error)


class Call:
    """A call under way; its methods are its stages, called by timers."""

    __slots__ = ("_answer", "_caller", "_channel", "_peer", "_request", "_swarm")

    def __init__(
        self,
        swarm: Links,
        caller: MemoryHost,
        peer: PeerId,
        channel: str,
        request: bytes,
        answer: Answer[bytes] | AnswerOf,
    ) -> None:
        self._swarm = swarm
        self._caller = caller
        self._peer = peer
        self._channel = channel
        self._request = request
        self._answer = answer

    def depart(self) -> None:
        """Send the request; a duplicate has its own delay."""
        me, num_bytes = self._caller, len(self._request)
        for _ in range(2 if self._swarm.is_duplicated() else 1):
            me.control.sent(self._channel, num_bytes)
            self._swarm.carry(me.peer, self._peer, num_bytes, self._arrive)

    def _arrive(self) -> None:
        try:
            host = self._swarm.host_of(self._caller.peer, self._peer)
        except PeerUnreachable as error:
            self._answer.fail(error)
            return
        if host is None:
            return
        if self._swarm.is_broken():
            self._answer.fail(self._reset())
            return
        number = self._swarm.next_number()
        host.serving[number] = self
        if host.thawed is None:
            host.start_call(self, number)
        else:
            host.parked.append(partial(host.start_call, self, number))

    async def serve(self, host: MemoryHost, number: int) -> None:
        """Let the host's handler answer, and send the reply back."""
        handler = host.calls.get(self._channel)
        reply: bytes | PotluckError
        if handler is None:
            reply = PeerUnreachable(f"{self._peer} does not serve {self._channel}", "a served channel")
        else:
            host.control.received(self._channel, len(self._request))
            try:
                reply = await handler(self._caller.peer, self._request)
            except PotluckError as error:
                reply = RemoteProtocolError(f"{self._peer} failed on {self._channel}: {error.one_line()}", "an answer")
        if host.thawed is None:
            self._reply(host, number, reply)
        else:
            host.parked.append(partial(self._reply, host, number, reply))

    def _reply(self, host: MemoryHost, number: int, reply: bytes | PotluckError) -> None:
        host.serving.pop(number, None)
        num_bytes = 0
        if isinstance(reply, bytes):
            num_bytes = len(reply)
            host.control.sent(self._channel, num_bytes)
        self._swarm.carry(self._peer, self._caller.peer, num_bytes, partial(self._come_back, reply))

    def _come_back(self, reply: bytes | PotluckError) -> None:
        try:
            me = self._swarm.host_of(self._peer, self._caller.peer)
        except PeerUnreachable:
            return
        if me is not self._caller:
            return
        if me.thawed is None:
            self._take(reply)
        else:
            me.parked.append(partial(self._take, reply))

    def _take(self, reply: bytes | PotluckError) -> None:
        if self._swarm.is_broken():
            self._answer.fail(self._reset())
        elif isinstance(reply, PotluckError):
            self._answer.fail(reply)
        elif len(reply) > MAX_CONTROL_BYTES:
            self._answer.fail(
                RemoteProtocolError(f"a reply of {len(reply)} bytes from {self._peer}", f"at most {MAX_CONTROL_BYTES}")
            )
        else:
            self._caller.control.received(self._channel, len(reply))
            self._answer.give(reply)

    def server_died(self) -> None:
        """Reset the connection; the caller notices as soon as the link is passable."""
        self._swarm.when_passable(self._peer, self._caller.peer, lambda: self._answer.fail(self._reset()))

    def _reset(self) -> ConnectionReset:
        return ConnectionReset(f"a call of {self._peer} on {self._channel} was reset", "an answer")
