"""Reducing slices of units that this peer does not hold (R7): holders that nobody can reach have no other way to meet.

A lender needs no state of the unit: contributions come signed, results are hashed, and only who holds the unit votes. It keeps a
result in memory until the round is over.

Rules: R7, R9, R11, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from averaging.codecs import Codec
from averaging.network.seams.interfaces import BegunFile, Network, Offload, Stream
from averaging.rounds.exchange.exchange import Exchange
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.exchange_driver import WAIT_FOR_PROPOSAL_S
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.lineage.next_state import Encoded, SliceBytes
from averaging.rounds.lineage.round_context import Changes, Seal, SendMessage, Tasks
from averaging.rounds.traffic.result_ref import NamedResult
from averaging.rounds.traffic.transfer import PIECE_BYTES
from protocol.errors import LocalProtocolError, TransportError
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName, short
from protocol.rounds.messages.messages import Member, Proposal, ResultReady
from protocol.rounds.messages.requests import ExchangeHello, FetchResult
from protocol.rounds.proposal import both_codecs
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

MAX_LENT: Final = 2
"""Exchanges of other units at a time: a lender's memory and link are for its own units first."""

EXTRA_S: Final = 30.0
"""How long a result is kept beyond the deadline of its slice, for members that are slow to take it."""


@dataclass(frozen=True, slots=True)
class UnitShape:
    """What is known of every unit of the run, held or not: its codecs and chunks, and the longest interval between its rounds.

    `codec` is that of contributions, `results` that of results where it is another one.
    """

    codec: Codec
    grid: ChunkGrid
    longest_interval_s: float
    results: Codec | None = None


@dataclass(frozen=True)
class ExternalReducerContext:
    """What a lender works with; `send(peers, message)` signs and sends."""

    run_id: RunId
    me: Member
    verifier: Verifier
    network: Network
    offload: Offload
    seal: Seal
    send: SendMessage
    shapes: Mapping[UnitName, UnitShape]


class _Loan:
    """One exchange that we reduce for."""

    def __init__(self, exchange: Exchange, offers: Offers) -> None:
        self.exchange = exchange
        self.offers = offers
        self.scope = trio.CancelScope()
        self.results: dict[Root, bytes | memoryview] = {}


class ExternalReducer:
    """The exchanges of other units in which this peer reduces, at most one a unit."""

    def __init__(self, tools: ExternalReducerContext, tasks: Tasks) -> None:
        self._tools = tools
        self._tasks = tasks
        self._loans: dict[UnitName, _Loan] = {}
        self._changes = Changes()

    def take_proposal(self, sender: PeerId, proposal: Proposal) -> None:
        """Begin to reduce what the proposal asks of us, or go on with what is left. One that asks for nothing ends it on its base."""
        loan = self._loans.get(proposal.unit)
        reason = self._why_not(sender, proposal, loan)
        if reason:
            log.info("not_lent", unit=proposal.unit, by=short(sender), reason=reason)
            return
        if not self._asks_us(proposal):
            if loan is not None:
                loan.scope.cancel()
        elif loan is not None and loan.exchange.proposal.ballot == proposal.ballot:
            loan.exchange.mend(proposal)
            loan.exchange.give_time(self._within_s(proposal))  # the leader says it again where an upload takes longer
            # slices that are new here begin now
            loan.scope.deadline = max(loan.scope.deadline, self._until_s(proposal))
        else:
            self._begin(proposal, loan)

    def _why_not(self, sender: PeerId, proposal: Proposal, loan: _Loan | None) -> str:
        shape = self._tools.shapes.get(proposal.unit)
        if shape is None:
            return "the run has no such unit"
        if proposal.ballot.peer != sender or proposal.member(sender) is None:
            return "it is not the proposal of its sender"
        codecs = both_codecs(proposal.codec, proposal.result_codec)
        expected_codecs = both_codecs(shape.codec.name, shape.results.name if shape.results else "")
        if codecs != expected_codecs or proposal.num_chunks != shape.grid.num_chunks:
            return f"{codecs} over {proposal.num_chunks} chunks is not the run's"
        if loan is None and len(self._loans) >= MAX_LENT:
            return f"reducing for {MAX_LENT} other units already"
        return self._why_not_instead(sender, proposal, loan.exchange.proposal) if loan is not None else ""

    def _why_not_instead(self, sender: PeerId, proposal: Proposal, running: Proposal) -> str:
        """We know neither the roster nor which base is the newer one, and a proposal names whom it likes.

        So only who takes part in what runs may end it, or take us along to the next base; others wait for the loan's deadline. But a
        later attempt on the same base may be led by who was out of reach before, and finds what was scattered (R9 and R16).
        """
        is_same_base, takes_part = running.base == proposal.base, running.member(sender) is not None
        if is_same_base and proposal.ballot < running.ballot:
            return "a later attempt is running"
        if not self._asks_us(proposal):
            return "" if is_same_base and takes_part else "it asks for nothing, and says nothing of what is running"
        return "" if is_same_base or takes_part else "reducing on another base, for others"

    def _asks_us(self, proposal: Proposal) -> bool:
        return any(part.reducer == self._tools.me.peer for part in proposal.slices)

    def _begin(self, proposal: Proposal, before: _Loan | None) -> None:
        tools, shape = self._tools, self._tools.shapes[proposal.unit]
        is_same_base = before is not None and before.exchange.proposal.base == proposal.base
        offers = Offers(tools.run_id, tools.verifier, shape.codec, shape.grid)
        if before is not None:
            before.scope.cancel()
            if is_same_base:  # what was scattered to us is not sent again (R9)
                offers = before.offers
        loan = _Loan(Exchange(proposal, self._exchange_tools(proposal.unit, shape), offers), offers)
        loan.scope.deadline = self._until_s(proposal)
        self._loans[proposal.unit] = loan
        self._tasks.spawn(self._run, proposal.unit, loan)
        self._changes.notify()

    def _within_s(self, proposal: Proposal) -> float:
        """A proposal may ask for a day; no attempt of an honest leader lasts longer than the unit's longest interval (R11)."""
        return min(proposal.reduce_within_s, self._tools.shapes[proposal.unit].longest_interval_s)

    def _until_s(self, proposal: Proposal) -> float:
        return trio.current_time() + self._within_s(proposal) + EXTRA_S

    async def _run(self, unit: UnitName, loan: _Loan) -> None:
        with loan.scope:
            await loan.exchange.run()
        if self._loans.get(unit) is loan:
            del self._loans[unit]

    def end(self, sender: PeerId, unit: UnitName, base: CommitId) -> None:
        """A member says that the round on this base is over."""
        loan = self._loans.get(unit)
        proposal = loan.exchange.proposal if loan is not None else None
        if loan is not None and proposal is not None and proposal.base == base and proposal.member(sender) is not None:
            loan.scope.cancel()

    def _exchange_tools(self, unit: UnitName, shape: UnitShape) -> ExchangeContext:
        tools = self._tools

        def begin(named: NamedResult) -> BegunFile:
            raise LocalProtocolError("a result taken for a unit that is not held here", "nobody's results")

        async def keep(named: NamedResult, result: SliceBytes, begun: BegunFile | None) -> None:
            loan = self._loans.get(unit)
            if loan is not None:
                loan.results[named.result_hash] = result.data

        async def examine(first_chunk: int, encoded: Encoded) -> list[bytes]:
            return []  # we have no state of this unit, and take nobody's result

        async def holds(named: NamedResult) -> bool:
            return False

        async def announce(ready: ResultReady) -> None:
            if unit in self._loans:
                await tools.send((ready.ballot.peer,), ready)

        return ExchangeContext(
            run_id=tools.run_id,
            me=tools.me,
            network=tools.network,
            offload=tools.offload,
            verifier=tools.verifier,
            result_codec=shape.results or shape.codec,
            grid=shape.grid,
            seal=tools.seal,
            begin_result=begin,
            keep_result=keep,
            examine=examine,
            holds_result=holds,
            announce=announce,
        )

    async def serve_exchange(self, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        """A member brings its chunks for one of our slices. Raises as `Exchange.serve`, and TransportError where nothing runs."""
        with trio.move_on_after(WAIT_FOR_PROPOSAL_S):
            while True:
                loan = self._loans.get(hello.unit)
                if loan is not None and loan.exchange.proposal.ballot == hello.ballot:
                    await loan.exchange.begun.wait()
                    break
                await self._changes.wait()
        loan = self._loans.get(hello.unit)
        if loan is None or (loan.exchange.proposal.base, loan.exchange.proposal.ballot) != (hello.base, hello.ballot):
            raise TransportError("an exchange that is not running here", "the running attempt", "try again")
        await loan.exchange.serve(sender, hello, stream)

    async def serve_result(self, request: FetchResult, stream: Stream) -> None:
        """The bytes of a result of ours; an empty end where they are gone."""
        loan = self._loans.get(request.unit)
        data = loan.results.get(request.result_hash, b"") if loan is not None else b""
        for begin in range(0, len(data), PIECE_BYTES):
            await stream.send_frame(data[begin : begin + PIECE_BYTES])
