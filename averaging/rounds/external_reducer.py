"""Reducing slices of units that this peer does not hold (R7), for holders that cannot reach one another.

An external reducer needs no state of the unit: contributions are signed, results are hashed, and only holders of the unit vote.
It keeps a result in memory until the round is over.

Rules: R7, R9, R11, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from averaging.codecs import Codec
from averaging.network.seams.interfaces import BegunFile, Network, Offload, Stream
from averaging.rounds.exchange.chunk_means import ChunkMeans
from averaging.rounds.exchange.exchange import Exchange
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.exchange_driver import WAIT_FOR_PROPOSAL_S
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.exchange.shown_offers import send_shown
from averaging.rounds.lineage.next_state import Encoded, SliceBytes
from averaging.rounds.lineage.round_context import Changes, Seal, SendMessage, Tasks
from averaging.rounds.traffic.result_ref import NamedResult
from averaging.rounds.traffic.transfer import PIECE_BYTES
from protocol.errors import LocalProtocolError, TransportError
from protocol.identity.identity import Verifier
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.messages.messages import Member, Proposal, ResultReady
from protocol.rounds.messages.requests import ExchangeHello, FetchChunk, FetchResult
from protocol.rounds.schedule.proposal import both_codecs
from protocol.rounds.schedule.sum_rules import DEFAULT_SUMS, SumRules
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

MAX_LENT: Final = 2
"""The most exchanges of other units at a time: memory and link are for this peer's own units first."""

EXTRA_S: Final = 30.0
"""How long a result is kept beyond the deadline of its slice, for members that are slow to take it."""


@dataclass(frozen=True, slots=True)
class UnitShape:
    """The known facts of every unit of the run, held or not: its codecs and chunks, the longest interval between its rounds, and how
    its slices are summed.

    `codec` is that of contributions, `results` that of results if it is another one.
    """

    codec: Codec
    grid: ChunkGrid
    longest_interval_s: float
    results: Codec | None = None
    sums: SumRules = DEFAULT_SUMS


@dataclass(frozen=True)
class ExternalReducerContext:
    """Dependencies of an external reducer; `send(peers, message)` signs and sends. `credential` is our newest proof of admission."""

    run_id: RunId
    me: Member
    verifier: Verifier
    network: Network
    offload: Offload
    seal: Seal
    send: SendMessage
    shapes: Mapping[UnitName, UnitShape]
    credential: Callable[[], bytes] = bytes


class _Job:
    """One exchange that we reduce for."""

    def __init__(self, exchange: Exchange, offers: Offers) -> None:
        self.exchange = exchange
        self.offers = offers
        self.scope = trio.CancelScope()
        self.results: dict[Root, bytes | memoryview] = {}


class ExternalReducer:
    """The exchanges of other units in which this peer reduces, at most one for each unit."""

    def __init__(self, tools: ExternalReducerContext, tasks: Tasks) -> None:
        self._tools = tools
        self._tasks = tasks
        self._jobs: dict[UnitName, _Job] = {}
        self._changes = Changes()

    def take_proposal(self, sender: PeerId, proposal: Proposal) -> None:
        """Begin to reduce the slices that the proposal gives us, or continue. A proposal without slices for us ends the exchange
        on its base.
        """
        job = self._jobs.get(proposal.unit)
        reason = self._why_not(sender, proposal, job)
        if reason:
            log.info("not_lent", unit=proposal.unit, by=peer_name(sender), reason=reason)
            return
        if not self._asks_us(proposal):
            if job is not None:
                job.scope.cancel()
        elif job is not None and job.exchange.proposal.ballot == proposal.ballot:
            job.exchange.mend(proposal)
            job.exchange.give_time(self._within_s(proposal))  # the leader sends it again if an upload takes longer
            # slices that are new here begin now
            job.scope.deadline = max(job.scope.deadline, self._until_s(proposal))
        else:
            self._begin(proposal, job)

    def _why_not(self, sender: PeerId, proposal: Proposal, job: _Job | None) -> str:
        shape = self._tools.shapes.get(proposal.unit)
        if shape is None:
            return "the run has no such unit"
        if proposal.ballot.peer != sender or proposal.member(sender) is None:
            return "it is not the proposal of its sender"
        codecs = both_codecs(proposal.codec, proposal.result_codec)
        expected_codecs = both_codecs(shape.codec.name, shape.results.name if shape.results else "")
        if codecs != expected_codecs or proposal.num_chunks != shape.grid.num_chunks:
            return f"{codecs} over {proposal.num_chunks} chunks is not the run's"
        if job is None and len(self._jobs) >= MAX_LENT:
            return f"reducing for {MAX_LENT} other units already"
        return self._why_not_instead(sender, proposal, job.exchange.proposal) if job is not None else ""

    def _why_not_instead(self, sender: PeerId, proposal: Proposal, running: Proposal) -> str:
        """Why this proposal may not replace the running one; "" if it may. We know neither the roster nor which base is newer,
        and a proposal can name any members.

        So only a member of the running exchange may end it, or take us along to the next base. Others wait for the exchange's
        deadline. But the leader of a later attempt on the same base may have been out of reach, and may use what was scattered
        (R9 and R16).
        """
        is_same_base, takes_part = running.base == proposal.base, running.member(sender) is not None
        if is_same_base and proposal.ballot < running.ballot:
            return "a later attempt is running"
        if not self._asks_us(proposal):
            return (
                ""
                if is_same_base and takes_part
                else "it has no slice for us, and does not concern the running exchange"
            )
        return "" if is_same_base or takes_part else "reducing on another base, for other members"

    def _asks_us(self, proposal: Proposal) -> bool:
        return any(part.reducer == self._tools.me.peer for part in proposal.slices)

    def _begin(self, proposal: Proposal, before: _Job | None) -> None:
        tools, shape = self._tools, self._tools.shapes[proposal.unit]
        is_same_base = before is not None and before.exchange.proposal.base == proposal.base
        offers = Offers(tools.run_id, tools.verifier, shape.codec, shape.grid)
        if before is not None:
            before.scope.cancel()
            if is_same_base:  # what was scattered to us is not sent again (R9)
                offers = before.offers
        job = _Job(Exchange(proposal, self._exchange_tools(proposal.unit, shape), offers), offers)
        job.scope.deadline = self._until_s(proposal)
        self._jobs[proposal.unit] = job
        self._tasks.spawn(self._run, proposal.unit, job)
        self._changes.notify()

    def _within_s(self, proposal: Proposal) -> float:
        """The deadline of our slices. A proposal may ask for a day, but no attempt of an honest leader lasts longer than the
        unit's longest interval (R11).
        """
        return min(proposal.reduce_within_s, self._tools.shapes[proposal.unit].longest_interval_s)

    def _until_s(self, proposal: Proposal) -> float:
        return trio.current_time() + self._within_s(proposal) + EXTRA_S

    async def _run(self, unit: UnitName, job: _Job) -> None:
        with job.scope:
            await job.exchange.run()
        if self._jobs.get(unit) is job:
            del self._jobs[unit]

    def end(self, sender: PeerId, unit: UnitName, base: CommitId) -> None:
        """A member reports that the round on this base is over."""
        job = self._jobs.get(unit)
        proposal = job.exchange.proposal if job is not None else None
        if job is not None and proposal is not None and proposal.base == base and proposal.member(sender) is not None:
            job.scope.cancel()

    def _exchange_tools(self, unit: UnitName, shape: UnitShape) -> ExchangeContext:
        tools = self._tools

        def begin(named: NamedResult) -> BegunFile:
            raise LocalProtocolError("a result taken for a unit that is not held here", "no results")

        async def keep(named: NamedResult, result: SliceBytes, begun: BegunFile | None) -> Callable[[], None]:
            job = self._jobs.get(unit)
            if job is not None:
                job.results[named.result_hash] = result.data
            return lambda: None

        async def examine(first_chunk: int, encoded: Encoded) -> list[bytes]:
            return []  # we have no state of this unit, and take no results

        async def holds(named: NamedResult) -> bool:
            return False

        async def announce(ready: ResultReady) -> None:
            if unit in self._jobs:
                await tools.send((ready.ballot.peer,), ready)

        return ExchangeContext(
            run_id=tools.run_id,
            me=tools.me,
            network=tools.network,
            offload=tools.offload,
            verifier=tools.verifier,
            means=ChunkMeans(shape.results or shape.codec, shape.grid, shape.sums),
            seal=tools.seal,
            begin_result=begin,
            keep_result=keep,
            examine=examine,
            holds_result=holds,
            announce=announce,
            credential=tools.credential,
        )

    async def serve_exchange(self, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        """Take a member's chunks for one of our slices. Raises as `Exchange.serve`, and TransportError if no such exchange runs."""
        with trio.move_on_after(WAIT_FOR_PROPOSAL_S):
            while True:
                job = self._jobs.get(hello.unit)
                if job is not None and job.exchange.proposal.ballot == hello.ballot:
                    await job.exchange.begun.wait()
                    break
                await self._changes.wait()
        job = self._jobs.get(hello.unit)
        if job is None or (job.exchange.proposal.base, job.exchange.proposal.ballot) != (hello.base, hello.ballot):
            raise TransportError("an exchange that is not running here", "the running attempt", "try again")
        await job.exchange.serve(sender, hello, stream)

    async def serve_chunk(self, request: FetchChunk, stream: Stream) -> None:
        """Show one chunk of what we sum, to a member that computes the sum again; an empty end if the round is over."""
        job = self._jobs.get(request.unit)
        is_here = job is not None and job.exchange.proposal.base == request.base
        await send_shown(job.offers if job is not None and is_here else None, request, self._tools.offload, stream)

    async def serve_result(self, request: FetchResult, stream: Stream) -> None:
        """Send a result of ours; an empty end if it is gone."""
        job = self._jobs.get(request.unit)
        data = job.results.get(request.result_hash, b"") if job is not None else b""
        for begin in range(0, len(data), PIECE_BYTES):
            await stream.send_frame(data[begin : begin + PIECE_BYTES])
