"""Marks that a benchmark peer (allreduce_peer.py) takes while its daemon works: when each step of a round was done, and what it cost.

The daemon is the real one. Wrapped are public methods at the edges of a round's steps, and the door to threads, which tells what each
kind of work there costs. Steps, in their order:

    ordered      the snapshot is asked for
    offered      the contribution is encoded and its root on disk
    closed       our own slice is in, the last one where a mend gave us more
    reduced      the results of our own slices are on disk
    held         all results that the record names are on disk
    certified    the certificate is on disk
    applied      the new state stands in memory, and the trainer is told
    rooted       its root is known
    kept         it is on disk as a generation
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil

import averaging.rounds.exchange.contribution_sender
import averaging.rounds.exchange.exchange
from averaging.network.seams.interfaces import Stream
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.exchange.exchange import Exchange
from averaging.rounds.exchange.reduction import Reduction
from averaging.rounds.lineage.head_state import AppliedCommit, BeginShift
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.fair_sending import FairSending, Ready, is_ready, no_head, send_evenly
from averaging.state.generations import GenerationRef, Generations
from averaging.state.log_entries import LoggedContribution
from averaging.state.state import UnitState
from averaging.state.unit_log import UnitLog
from protocol.estimates.unit_disk import Occasion
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.requests import ExchangeHello

T = TypeVar("T")

STEPS: Final = ("ordered", "offered", "closed", "reduced", "held", "certified", "applied", "rooted", "kept")
AFTERWARDS: Final = frozenset({"rooted", "kept"})
"""Steps for which nobody's trainer waits."""

KEEPING: Final = "generation"
_TICKS_PER_S: Final = 100.0
_part_of: contextvars.ContextVar[str] = contextvars.ContextVar("part_of", default="")
_first_chunk: contextvars.ContextVar[int] = contextvars.ContextVar("first_chunk", default=0)
"""Of the slice whose result is being served."""


class Marks:
    """The times of one round's steps, Unix seconds, and what offloaded work cost since `begin`, processor seconds."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self.results_s: dict[Root, float] = {}
        self.offloaded_s: dict[str, float] = defaultdict(float)
        self.twice_bytes = 0
        """Of chunks that have left once more: of our contribution to whomever, of a result to the same member."""

        self._left = set[tuple[str, int]]()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Forget the round before."""
        self.at_s.clear()
        self.results_s.clear()
        self._left.clear()
        self.twice_bytes = 0
        with self._lock:
            self.offloaded_s.clear()

    def mark(self, step: str) -> None:
        """A step is done; done again it counts anew."""
        self.at_s[step] = time.time()

    def mark_results(self, record: CommitRecord, me: PeerId) -> None:
        """When the record's results were on disk: those of our own slices, of which a mend may have given us more, and all."""
        found = [(part.reducer == me, self.results_s.get(part.result_hash, 0.0)) for part in record.slices]
        self.at_s["held"] = max(at_s for _, at_s in found)
        self.at_s["reduced"] = max((at_s for is_own, at_s in found if is_own), default=0.0)

    def sent(self, what: str, chunk: int, num_bytes: int) -> None:
        """A chunk of this has left."""
        self.twice_bytes += num_bytes if (what, chunk) in self._left else 0
        self._left.add((what, chunk))

    def charge(self, part: str, seconds: float) -> None:
        """Offloaded work cost so much; called in its thread."""
        with self._lock:
            self.offloaded_s[part] += seconds


def install(marks: Marks) -> None:
    """Wrap the steps, in this process, for good."""
    _wrap_steps(marks)
    _wrap_keeping(marks)
    _wrap_sending(marks)
    _wrap_offload(marks)


def _wrap_steps(marks: Marks) -> None:
    offered, closed = UnitChain.log_contribution, Reduction.wait_ready
    result, logged = UnitLog.write_result, UnitLog.log_certificate

    async def log_contribution(chain: UnitChain, base: CommitId, contribution: LoggedContribution) -> None:
        await offered(chain, base, contribution)
        marks.mark("offered")

    async def wait_ready(reduction: Reduction, within_s: float) -> None:
        await closed(reduction, within_s)
        marks.mark("closed")

    async def write_result(log: UnitLog, base: CommitId, result_hash: Root, data: Any, begun: Any = None) -> None:
        await result(log, base, result_hash, data, begun)
        marks.results_s[result_hash] = time.time()

    async def log_certificate(log: UnitLog, base: CommitId, certificate: bytes) -> None:
        await logged(log, base, certificate)
        marks.mark("certified")

    setattr(UnitChain, "log_contribution", log_contribution)  # noqa: B010 - mypy takes no plain assignment
    setattr(Reduction, "wait_ready", wait_ready)  # noqa: B010
    setattr(UnitLog, "write_result", write_result)  # noqa: B010
    setattr(UnitLog, "log_certificate", log_certificate)  # noqa: B010


def _wrap_keeping(marks: Marks) -> None:
    stepped, proved, kept, written = UnitChain.apply, UnitChain.prove, UnitChain.keep, Generations.write

    async def apply(
        chain: UnitChain, link: ChainLink, certificate: Certificate, begin_shift: BeginShift | None = None
    ) -> AppliedCommit:
        done = await stepped(chain, link, certificate, begin_shift)
        marks.mark("applied")
        return done

    async def prove(chain: UnitChain, applied: AppliedCommit) -> Root:
        root = await proved(chain, applied)
        marks.mark("rooted")
        return root

    async def keep(chain: UnitChain, occasion: Occasion = Occasion.COMMIT) -> None:
        await kept(chain, occasion)
        marks.mark("kept")

    async def write(generations: Generations, state: UnitState, root: Root) -> GenerationRef:
        token = _part_of.set(KEEPING)
        try:
            return await written(generations, state, root)
        finally:
            _part_of.reset(token)

    setattr(UnitChain, "apply", apply)  # noqa: B010
    setattr(UnitChain, "prove", prove)  # noqa: B010
    setattr(UnitChain, "keep", keep)  # noqa: B010
    setattr(Generations, "write", write)  # noqa: B010


def _wrap_sending(marks: Marks) -> None:
    served = Exchange.serve

    async def serve(exchange: Exchange, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        token = _first_chunk.set(hello.first_chunk)
        try:
            await served(exchange, sender, hello, stream)
        finally:
            _first_chunk.reset(token)

    setattr(Exchange, "serve", serve)  # noqa: B010
    contributions = _counted(marks, lambda _: ("contribution", 0))
    setattr(averaging.rounds.exchange.contribution_sender, "send_evenly", contributions)  # noqa: B010
    results = _counted(marks, lambda stream: (f"result to {stream.remote}", _first_chunk.get()))
    setattr(averaging.rounds.exchange.exchange, "send_evenly", results)  # noqa: B010


def _counted(marks: Marks, what_of: Callable[[Stream], tuple[str, int]]) -> Callable[..., Awaitable[None]]:
    """`send_evenly`, of which is noted what has left; `what_of` says what it is, and which chunk is number 0 in it."""

    async def counted(
        stream: Stream,
        numbers: Sequence[int],
        data: bytes | memoryview,
        chunks: Sequence[bytes | memoryview],
        sending: FairSending,
        head_of: Callable[[range], bytes] = no_head,
        left: Callable[[range], None] = lambda run: None,
        ready: Ready = is_ready,
    ) -> None:
        what, first_chunk = what_of(stream)

        def noted(run: range) -> None:
            for number in run:
                marks.sent(what, first_chunk + number, len(chunks[number]))
            left(run)

        await send_evenly(stream, numbers, data, chunks, sending, head_of, noted, ready)

    return counted


def _wrap_offload(marks: Marks) -> None:
    run = ThreadOffload.run

    async def timed(offload: ThreadOffload, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        part = _part_of.get() or _name_of(function)

        def work() -> T:
            begin_s = time.thread_time()
            try:
                return function()
            finally:
                marks.charge(part, time.thread_time() - begin_s)

        return await run(offload, work, cost_s=cost_s)

    setattr(ThreadOffload, "run", timed)  # noqa: B010


def _name_of(function: Callable[..., object]) -> str:
    """`Updates.advance` for the lambda in it."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", type(inner).__name__)).split(".<locals>")[0]


def threads_cpu_s() -> Mapping[str, float]:
    """Processor seconds of the main thread (trio) and of the threads with a name of their own (asyncio) so far."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.name.startswith("Trio thread") or " from " in thread.name:
            continue  # trio's own, named by what is done there, which is told apart
        name = "trio" if thread is threading.main_thread() else thread.name.lower()
        with suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found


def children_cpu_s() -> float:
    """Processor seconds of this process's descendants so far: p2pd."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def interface_bytes() -> tuple[int, int]:
    """Bytes sent and received by this machine's or namespace's interfaces but loopback; headers included."""
    up = down = 0
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        name, _, counts = line.partition(":")
        numbers = counts.split()
        if name.strip() != "lo":
            up, down = up + int(numbers[8]), down + int(numbers[0])
    return up, down


def spans(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds from the first peer's order until the last peer has done each step, as the time that each step adds."""
    if not steps:
        return {}
    reached_s = min(at_s["ordered"] for at_s in steps)
    parts: dict[str, float] = {}
    for step in STEPS[1:]:
        last_s = max(reached_s, *(at_s.get(step, 0.0) for at_s in steps))
        parts[step] = last_s - reached_s
        reached_s = last_s
    return parts
