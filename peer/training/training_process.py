"""Runs one training process at a time on shared memory: starts it, sends its plan, reads its messages, and ends it.

Its supervisor sends the commands and handles its death: peer/training/trainer.py for a process that holds whole units and trains by
itself, peer/pipeline/stage/stage_process.py for one that holds one stage and only obeys.

Several processes may hold one replica together, one on each card. They live and die together: the first that ends takes all others
with it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import trio
from pydantic import BaseModel

from averaging.system.machine_limits import read_cores
from peer.training.plan.card_report import CardReport
from peer.training.supervision.ends_core import EndKind, RankEnd, cause_of
from peer.training.supervision.meeting_folder import meeting_folder, meeting_roots
from peer.training.supervision.process_readings import is_stopped, runnable_s
from peer.training.training_plan import MachinePlan
from peer.training.worker_channel import (
    MAX_MESSAGE_BYTES,
    Failed,
    OutOfMemory,
    Progress,
    Reply,
    SharedVectors,
    frame,
    mapping_bytes,
    parse_event,
)
from peer.training.worker_process import EarlyWorker, WorkerProcess, shared_memory, start_worker
from protocol.errors import LocalProtocolError, MachineError

T = TypeVar("T")
Plan = TypeVar("Plan", bound=MachinePlan)

RESTART_PAUSE_S: Final = 0.5
SLOW_RESTART_S: Final = 10.0
MAX_QUICK_DEATHS: Final = 5
"""After this many deaths without any progress the fault lies with this machine. It is reported, and restarts become slower."""

STOP_WITHIN_S: Final = 3.0
SAVED_BYTES_PER_S: Final = 2e8
MOST_SAVE_S: Final = 30.0
"""An ending process saves the optimizer's moments, 4 bytes a value, at the speed of a plain disk. One that takes longer is killed,
and the file before stays.
"""

SAYS_WHY_WITHIN_S: Final = 0.5
"""After a process said that another one is gone: how long to wait for the end of that one, before all are killed."""

FROZEN_LOOK_S: Final = 0.5
"""A process of several that the system has stopped in two looks, so far apart, is frozen. The others would wait for it."""

FROZEN: Final = "the system has stopped the training process"

_PART_BYTES: Final = 1 << 20


Said = OutOfMemory | Failed | None
"""The last words of a process; None if it ended without any."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a rank."""

    rank: int
    said: Said


Listen = Callable[[int, "MessageReader"], Awaitable[Said]]
"""Reads the messages of a rank until its end."""


def restart_pause_s(quick_deaths: int) -> float:
    """Seconds before the next start, after this many lives without any progress."""
    return SLOW_RESTART_S if quick_deaths >= MAX_QUICK_DEATHS else RESTART_PAUSE_S


def no_process(error: OSError) -> MachineError:
    """The system cannot create a process."""
    return MachineError(
        f"the training process cannot be started: {error}", "a working Python", "check memory and limits"
    )


class MessageReader:
    """Reads a training process's messages from its stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def exactly(self, num_bytes: int) -> bytes | None:
        """Exactly `num_bytes` bytes; None if the stream ends first."""
        while len(self._buffer) < num_bytes:
            part = await self._stream.receive_some(_PART_BYTES)
            if not part:
                return None
            self._buffer += part
        found = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return found

    async def message(self) -> bytes | None:
        """The next message, without its length; None if the stream ends first.

        Raises:
            LocalProtocolError: the message is too long.
        """
        head = await self.exactly(4)
        if head is None:
            return None
        length = int.from_bytes(head, "little")
        if length > MAX_MESSAGE_BYTES:
            raise LocalProtocolError(
                f"a message of {length} bytes from the training process", f"at most {MAX_MESSAGE_BYTES}"
            )
        return await self.exactly(length)


async def last_words(incoming: MessageReader, take: Callable[[Reply | Progress], None]) -> Said:
    """Hand on all that a process tells, until its end. Returns why it ends, None if it does not say so."""
    while (data := await incoming.message()) is not None:
        event = parse_event(data)
        if isinstance(event, OutOfMemory | Failed):
            return event
        take(event)
    return None


def card_words_of(
    take: Callable[[int, str | None, CardReport | None], None], rank: int, event: Reply | Progress
) -> None:
    """Pass on what a rank that follows the first one tells of its card. The counters are the first one's."""
    if isinstance(event, Progress):
        take(rank, event.card, event.card_report)


class TrainingProcess:
    """The training processes of one replica, and the memory shared with them. There is one, or one on each of several cards.

    Args:
        num_elements: float32 values in each of its areas.
        early: a process that is already running; its memory is taken over with it.
        more_bytes: of the shared memory, behind the areas.
    """

    def __init__(self, num_elements: int, early: EarlyWorker | None = None, *, more_bytes: int = 0) -> None:
        self.stream: trio.SocketStream | None = None
        """The stream to the process that has its plan, of several to the first; None if there is none."""

        self._early = early.take() if early is not None else None
        self.memory_fd = early.memory_fd if early is not None else shared_memory()
        """The file of the shared memory."""

        os.ftruncate(self.memory_fd, mapping_bytes(num_elements) + more_bytes)
        self.vectors = SharedVectors(self.memory_fd, num_elements)
        self._processes: tuple[subprocess.Popen[bytes], ...] = ()
        self._next: list[WorkerProcess] = []
        """Processes for the next life of several, which import while this one ends."""

        self._stop_within_s = STOP_WITHIN_S + min(MOST_SAVE_S, 4 * num_elements / SAVED_BYTES_PER_S)

    @property
    def pid(self) -> int | None:
        """The process id, of several that of the first; None if there is no process."""
        return self._processes[0].pid if self._processes else None

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids by rank."""
        return tuple(process.pid for process in self._processes)

    def stopped(self) -> list[int]:
        """Ranks whose process the system has stopped, as a frozen one."""
        return [rank for rank, pid in enumerate(self.pids) if is_stopped(pid)]

    def runnable_s(self) -> float:
        """Seconds that the running processes ran or waited for a processor so far; of those that ended, none."""
        return sum(runnable_s(pid) for pid in self.pids)

    async def live(self, plan: BaseModel, listen: Callable[[MessageReader], Awaitable[T]]) -> T | None:
        """One life of the process, from its start until `listen` returns; returns that result, or None if the process ended first.

        Raises:
            OSError: the system cannot create a process.
            LocalProtocolError: it sent an invalid message.
        """
        (worker,) = self._start(1)
        self._processes = (worker.process,)
        stream = _stream_of(worker)
        try:
            await stream.send_all(frame(plan))
            self.stream = stream
            return await listen(MessageReader(stream))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None
        finally:
            self.stream = None
            with trio.CancelScope(shield=True):
                await stream.aclose()
                await _end(worker.process, self._stop_within_s)
            self._processes = ()

    async def live_together(
        self,
        plan: MachinePlan,
        devices: Sequence[str],
        listen: Listen,
    ) -> Ended:
        """One life of the processes of a plan's mesh. All begin together, and all are killed at the first one's end.

        Args:
            devices: torch's names, one for each rank.

        Raises:
            OSError: the system cannot create a process, or no folder for them to meet in.
            LocalProtocolError: one sent an invalid message.
        """
        if len(devices) == 1:
            return Ended(0, await self.live(plan, partial(listen, 0)))
        with meeting_folder(
            meeting_roots(plan.moments_file.parent if plan.moments_file is not None else None)
        ) as meeting:
            workers = self._start(len(devices))
            life = _Together(workers, listen, self._stop_within_s, partial(self._prepare, len(devices)))
            self._processes = tuple(worker.process for worker in workers)

            def begin() -> None:
                self.stream = life.streams[0]

            try:
                return await life.run(plans_of_ranks(plan, devices, meeting), begin)
            finally:
                self.stream = None
                with trio.CancelScope(shield=True):
                    await life.end()
                self._processes = ()

    def _start(self, num_ranks: int) -> list[WorkerProcess]:
        """Start all, or none. The early process is the first; then come those that were prepared and still wait for a plan."""
        early, self._early = self._early, None
        workers = [early] if early is not None else []
        waiting, self._next = self._next, []
        alive = [worker for worker in waiting if worker.process.poll() is None]
        workers += alive[: num_ranks - len(workers)]
        try:
            while len(workers) < num_ranks:
                workers.append(start_worker(self.memory_fd))
        except OSError:
            _discard(workers)
            raise
        finally:
            _discard([worker for worker in waiting if worker not in workers])
        return workers

    def _prepare(self, num_ranks: int) -> None:
        """Start the processes of the next life: their imports take longer than the end of this one."""
        with suppress(OSError):  # the next life tries again, and tells
            while len(self._next) < num_ranks:
                self._next.append(start_worker(self.memory_fd))

    def kill(self) -> None:
        """Kill the running processes, if any. Their life is over then."""
        for process in self._processes:
            process.kill()

    def forget_next(self) -> None:
        """End processes that were started for a next life: none comes soon."""
        _discard(self._next)
        self._next.clear()

    def close(self) -> None:
        """Free the shared memory."""
        self.forget_next()
        os.close(self.memory_fd)


def _discard(workers: Sequence[WorkerProcess]) -> None:
    """End processes that have no plan. Blocks for a moment."""
    for worker in workers:
        worker.channel.close()
        worker.process.kill()
        worker.process.wait()


class _Together:
    """One life of several processes. `prepare` is called once it is about to end by itself."""

    def __init__(
        self,
        workers: Sequence[WorkerProcess],
        listen: Listen,
        stop_within_s: float,
        prepare: Callable[[], None],
    ) -> None:
        self._prepare = prepare
        self._processes = [worker.process for worker in workers]
        self.streams = [_stream_of(worker) for worker in workers]
        self._listen, self._stop_within_s = listen, stop_within_s
        self._ends: list[Ended] = []
        self._refused: LocalProtocolError | None = None
        self._ended = trio.Event()

    async def run(self, plans: Sequence[BaseModel], begin: Callable[[], None]) -> Ended:
        """Until one ends; then all are killed. `begin` is called once the first one has its plan."""
        async with trio.open_nursery() as nursery:
            for rank, plan in enumerate(plans):
                nursery.start_soon(self._one, rank, plan, _nothing if rank else begin)
            nursery.start_soon(self._watch_frozen)
            await self._ended.wait()
            self._prepare()
            with trio.move_on_after(SAYS_WHY_WITHIN_S):
                while self._refused is None and cause_of_end(self._ends, len(self._processes)) is None:
                    self._ended = trio.Event()
                    await self._ended.wait()
            self._kill()
            nursery.cancel_scope.cancel()
        if self._refused is not None:
            raise self._refused
        return cause_of_end(self._ends, len(self._processes)) or self._ends[0]

    async def _one(self, rank: int, plan: BaseModel, begin: Callable[[], None]) -> None:
        said = None
        try:
            await self.streams[rank].send_all(frame(plan))
            begin()
            said = await self._listen(rank, MessageReader(self.streams[rank]))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except LocalProtocolError as error:
            self._refused = error
        self._ends.append(Ended(rank, said))
        self._ended.set()

    async def _watch_frozen(self) -> None:
        """A frozen process ends its life, as one that died."""
        before = self._stopped()
        while True:
            await trio.sleep(FROZEN_LOOK_S)
            now = self._stopped()
            if frozen := [rank for rank in now if rank in before]:
                break
            before = now
        self._ends.append(Ended(frozen[0], Failed(reason=FROZEN)))
        self._ended.set()

    def _stopped(self) -> list[int]:
        return [rank for rank, process in enumerate(self._processes) if is_stopped(process.pid)]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    async def end(self) -> None:
        """Closing the channels ends the processes, if they were not killed."""
        for stream in self.streams:
            await stream.aclose()
        async with trio.open_nursery() as nursery:
            for process in self._processes:
                nursery.start_soon(_end, process, self._stop_within_s)


def _nothing() -> None:
    """Of a rank that gets no commands."""


def cause_of_end(ends: Sequence[Ended], num_ranks: int) -> Ended | None:
    """Of the ends of ranks seen so far, the one that made the others end; None if another one may still say more."""
    cause = cause_of([RankEnd(end.rank, _kind(end.said)) for end in ends], num_ranks)
    return next((end for end in ends if cause is not None and end.rank == cause.rank), None)


def _kind(said: Said) -> EndKind:
    if said is None:
        return "silent"
    if isinstance(said, OutOfMemory):
        return "out_of_memory"
    return "echo" if said.is_echo else "failed"


def plans_of_ranks(plan: Plan, devices: Sequence[str], meeting: Path) -> list[Plan]:
    """The plan of each rank: the same but for its place and device.

    Args:
        devices: torch's names, one for each rank. Those on the CPU share its cores, where the plan gives no number of threads.
        meeting: the folder in which they meet.

    Raises:
        LocalProtocolError: not one device for each rank of the mesh.
    """
    if len(devices) != plan.mesh.num_ranks:
        raise LocalProtocolError(f"{len(devices)} devices", f"one for each of {plan.mesh.num_ranks} ranks")
    num_on_cpu = sum(device == "cpu" for device in devices)
    threads = plan.num_threads or max(1, read_cores().num_threads // max(1, num_on_cpu))
    return [
        plan.model_copy(
            update={
                "rank": rank,
                "device": device,
                "meeting": meeting,
                "num_threads": threads if device == "cpu" else plan.num_threads,
            }
        )
        for rank, device in enumerate(devices)
    ]


class Replies:
    """The replies of a running process, for the one who waits for one."""

    def __init__(self) -> None:
        self._last: Reply | None = None
        self._changed = trio.Event()

    def take(self, reply: Reply) -> None:
        """One came."""
        self._last = reply
        self.wake()

    def wake(self) -> None:
        """Let the one who waits look again, since the process may be over."""
        event, self._changed = self._changed, trio.Event()
        event.set()

    async def of(self, number: int, is_over: Callable[[], bool]) -> Reply | None:
        """The reply to the command of this number; None once it is over without one."""
        while self._last is None or self._last.number != number:
            if is_over():
                return None
            await self._changed.wait()
        return self._last


def _stream_of(worker: WorkerProcess) -> trio.SocketStream:
    worker.channel.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(worker.channel))


async def _end(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Closing the channel ends the process. One that does not react is killed."""
    with trio.move_on_after(within_s):
        while process.poll() is None:
            await trio.sleep(0.05)
        return
    process.kill()
    await trio.to_thread.run_sync(process.wait)
