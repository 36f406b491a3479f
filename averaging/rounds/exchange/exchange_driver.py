"""A unit's contribution and its running exchange at one peer: performs the round machine's orders about them.

Rules: R11, R16 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
import torch
import trio

from averaging.arithmetic.batched_codec import runs_in
from averaging.arithmetic.error_feedback import FedDelta
from averaging.network.seams.interfaces import BegunFile, NoPart, Snapshot, Stream
from averaging.rounds.exchange.carrier import take_carried
from averaging.rounds.exchange.chunk_means import ChunkMeans
from averaging.rounds.exchange.exchange import Exchange
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.exchange.shown_offers import ShownOffers
from averaging.rounds.exchange.streamed_contribution import GrowingContribution
from averaging.rounds.fetching.gather_results import EXCHANGE_PATIENCE_S
from averaging.rounds.lineage.next_state import Encoded, SliceBytes
from averaging.rounds.lineage.round_context import Changes, RoundContext, SendMessage, Tasks, Tell, tell_failure
from averaging.rounds.lineage.round_reports import Contributed
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.arrivals import Arrivals
from averaging.rounds.traffic.contribution import DeltaEncoder, EncodedContribution, stretches
from averaging.rounds.traffic.partial_results import HalfResults
from averaging.rounds.traffic.result_ref import NamedResult
from averaging.rounds.traffic.spans import spanned
from averaging.state.log_entries import LoggedContribution
from protocol.errors import LocalProtocolError, PotluckError, StorageError, TransportError
from protocol.ids import CommitId, PeerId, Root
from protocol.merkle import MerkleTree
from protocol.rounds.events import ContributionFailed, ContributionReady, ExchangeMeasured
from protocol.rounds.lineage.rule_numbers import bounds_strangers
from protocol.rounds.messages.claim import encode_claim
from protocol.rounds.messages.messages import Proposal, ResultReady
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.requests import CarryHello, ContributionHeader, ExchangeHello
from protocol.rounds.schedule.outer_rule import outer_of_round, turns_of_base
from protocol.rounds.state import RoundConfig

log = structlog.get_logger()

ENCODE_COST_S: Final = 0.005
"""Virtual time that encoding a delta takes."""

GROWS_FROM_ELEMENTS: Final = 1 << 25
GROWS_FROM_UPLOAD_S: Final = 0.2
GROWS_BELOW_BYTES_PER_S: Final = 2.5e7
"""Minimum length of a delta that is sent while it is still being encoded. A shorter one is sent so only if the last upload took
at least this time at less than this rate. On a fast line of a busy machine the second thread costs more than it saves; measured;
see tests/benchmarks/LOG.md.
"""

SNAPSHOT_WITHIN_S: Final = 60.0
"""How long to wait for a snapshot, unless the trainer says that it may take longer."""

WAIT_FOR_PROPOSAL_S: Final = 5.0
"""How long a member's stream waits for its proposal, which may arrive later."""

PATIENCE_SHARE: Final = 0.1
"""Share of our own upload's time for which a running exchange may deliver nothing."""

FETCHED_WITHIN_S: Final = 2.0
"""How long a result may be on its way from another peer before it is taken from its reducer as well."""


class ExchangeDriver:
    """Takes the delta, and runs one exchange at a time. `send(peers, message)` signs and sends a round message."""

    def __init__(
        self, config: RoundConfig, chain: UnitChain, tools: RoundContext, tasks: Tasks, tell: Tell, send: SendMessage
    ) -> None:
        self._config = config
        self._chain = chain
        self._tools = tools
        self._tasks = tasks
        self._tell = tell
        self._send = send
        self.changes = Changes()
        self.shown = ShownOffers(tasks)
        self._offers: Offers | None = None
        self._base: CommitId | None = None
        self._contribution: EncodedContribution | None = None
        self._growing: GrowingContribution | None = None
        """The encoded part of our contribution on the base, until all of it is encoded and signed."""

        self._halves = HalfResults()
        self._without_delta: CommitId | None = None
        self._asked = (chain.head.commit, trio.CancelScope())
        """The base on which the trainer is asked for a snapshot, and the wait for it."""

        self._no_part = False
        self._exchange: Exchange | None = None
        self._no_arrivals = Arrivals()
        self._scope: trio.CancelScope | None = None
        self.upload_bytes_per_s = 0
        self._upload_s = 0.0
        self.probe: Callable[[PeerId], None] | None = None
        """Pings a peer."""

        self.until_fetched: Callable[[Root], Awaitable[None]] | None = None
        """Waits until this peer fetches a result from nobody else."""

    # --- our contribution -----------------------------------------------------------------------------------------------------

    def prepare(self, base: CommitId, adopter: TrainerUpdater) -> None:
        """Take the delta on `base` at the next step boundary, encode it, write its root to disk, and notify the machine. An
        exchange that begins meanwhile waits for it, even if an earlier try failed.
        """
        self._without_delta = None
        asked_on, asking = self._asked
        if asked_on != base:
            asking.cancel()
        self._tasks.spawn(self._prepare, base, adopter)

    async def _prepare(self, base: CommitId, adopter: TrainerUpdater) -> None:
        try:
            contribution, fed, taken_s = await self._take_delta(base, adopter)
        except PotluckError as error:
            is_usual = (
                isinstance(error, NoPart) or base != self._chain.head.commit
            )  # a commit was faster than our delta
            (log.info if is_usual else log.warning)("no_contribution", reason=error.one_line())
            if isinstance(error, StorageError):
                tell_failure(self._tools.publish, "prepare", error)
            if base == self._chain.head.commit:
                self._without_delta, self._no_part, self._growing = base, isinstance(error, NoPart), None
            await self._tell(ContributionFailed(base))
            return
        self._at(base)
        self._contribution, self._growing = contribution, None
        adopter.remember(contribution)
        if self._chain.tools.feedback is not None and fed is not None:
            self._chain.tools.feedback.offer(contribution.root, fed)
        self._tools.publish(Contributed(contribution.root))
        taken_ago_s = trio.current_time() - taken_s
        await self._tell(ContributionReady(base, contribution.root, contribution.tokens, taken_ago_s))

    async def _take_delta(
        self, base: CommitId, adopter: TrainerUpdater
    ) -> tuple[EncodedContribution, FedDelta | None, float]:
        """The encoded contribution, what it leaves for later rounds, and the time at which the delta was taken."""
        chain, tools = self._chain, self._tools
        within_s = max(SNAPSHOT_WITHIN_S, tools.trainer.progress().answers_within_s)
        with trio.move_on_after(within_s) as asking:
            self._asked = (base, asking)
            await adopter.wait_adopted()
            if not chain.is_sound:
                raise LocalProtocolError("a state that is not the attested one", "a healed one")
            self._check_head(base)
            anchor_N, root = chain.state.anchor_N, chain.root
            index = chain.head.index + 1
            with spanned(tools.record, "snapshot", self._config.unit, round_index=index):
                snapshot = await tools.trainer.snapshot()
                taken_s = trio.current_time()
        self._check_head(base)
        if asking.cancelled_caught:
            raise LocalProtocolError(f"a trainer that gave no snapshot within {within_s:.0f} s", "one at its next step")
        work = f"{snapshot.tokens} tokens in {snapshot.num_steps} steps"
        with spanned(tools.record, "encode", self._config.unit, work, index) as moving:
            encoder = await tools.offload.run(lambda: _encoder(chain, anchor_N, snapshot))
            moving.num_bytes = sum(map(len, encoder.chunks))
            encoded, fed = await self._encode(base, encoder)
        # durable before its header leaves; if the head moves meanwhile the contribution is useless
        num_told = snapshot.num_steps if snapshot.num_readers == 1 else 0  # others' steps lie between
        logged = LoggedContribution(encoded.root, snapshot.tokens, snapshot.next_step, num_told)
        await chain.log_contribution(base, logged)
        config = self._config
        credential, may_overwrite = _credential(config, chain, tools), snapshot.may_overwrite
        header = ContributionHeader(
            config.unit,
            base,
            config.me,
            snapshot.tokens,
            config.codec,
            encoded.root,
            base,
            root,
            snapshot.lanes,
            _is_stranger(config, chain, credential),
        )
        signed = await tools.seal(encode_claim(header))
        self._check_head(base)
        offered = replace(encoded, header=signed, credential=credential, may_overwrite_theta=may_overwrite)
        return offered, fed, taken_s

    async def _encode(self, base: CommitId, encoder: DeltaEncoder) -> tuple[EncodedContribution, FedDelta | None]:
        """Encode the delta. A long vector is sent chunk by chunk while it is still being encoded; it does not count until its
        header follows.
        """
        self._check_head(base)
        self._at(base)
        exchange, offload, grid = self._exchange, self._tools.offload, self._chain.tools.grid
        if not self._grows(grid.num_elements):
            runs = runs_in(0, grid.num_chunks, grid.chunk_elements)
            await offload.run(partial(_encode_runs, encoder, runs), cost_s=ENCODE_COST_S)
            return await offload.run(encoder.finished)
        growing = self._growing = GrowingContribution(encoder.data, encoder.chunks)
        if exchange is not None and exchange.proposal.base == base:
            exchange.grow(growing)
        order = stretches(self._others_parts(), grid)
        try:
            for runs in order:
                await offload.run(partial(_encode_runs, encoder, runs), cost_s=ENCODE_COST_S / len(order))
                growing.grew(runs)
            return await offload.run(encoder.finished)
        except PotluckError:
            growing.give_up()
            raise

    def _grows(self, num_elements: int) -> bool:
        is_line_thin = 0 < self.upload_bytes_per_s < GROWS_BELOW_BYTES_PER_S
        return num_elements >= GROWS_FROM_ELEMENTS or (is_line_thin and self._upload_s >= GROWS_FROM_UPLOAD_S)

    def _others_parts(self) -> list[range]:
        """The chunks that go to each of the other reducers, as far as they are known."""
        slices = () if self._exchange is None else self._exchange.proposal.slices
        others = (part for part in slices if part.reducer != self._config.me.peer)
        return [range(part.first_chunk, part.stop_chunk) for part in others]

    def _check_head(self, base: CommitId) -> None:
        if self._chain.head.commit != base or self._chain.held.is_torn:
            raise LocalProtocolError("the head moved while the delta was taken", "a delta on the head")

    @property
    def contribution(self) -> EncodedContribution | None:
        """Our contribution on the head, if there is one."""
        return self._contribution if self._base == self._chain.head.commit else None

    # --- the exchange ---------------------------------------------------------------------------------------------------------

    def begin(self, proposal: Proposal) -> None:
        """Begin the exchange of this proposal, or continue it: its slices may have moved, or our contribution may be ready."""
        self._at(proposal.base)
        exchange = self._exchange
        if exchange is None or exchange.proposal.ballot != proposal.ballot:
            self.end()
            if self._offers is None:
                return
            exchange = self._exchange = Exchange(
                proposal, self._exchange_tools(), self._offers, self._upload_s, self._halves
            )
            self._tasks.spawn(self._run, exchange)
            self.changes.notify()
        elif exchange.proposal.slices != proposal.slices:
            exchange.mend(proposal)
        if self._contribution is not None:
            exchange.offer(self._contribution)
        elif self._without_delta == proposal.base:
            exchange.offer(None, no_part=self._no_part)
        elif self._growing is not None:
            exchange.grow(self._growing)

    def head_moved(self) -> None:
        """Free the memory of contributions to other bases until the next round, once nobody asks for their chunks any more."""
        if self._base is not None and self._base != self._chain.head.commit:
            self._base = self._contribution = self._growing = self._offers = None
            self.shown.end()
            self._halves = HalfResults()

    def _at(self, base: CommitId) -> None:
        """Drop everything that belongs to another base."""
        if self._base != base:
            tools = self._chain.tools
            self._base = base
            self._contribution = self._growing = None
            self._halves = HalfResults()
            config, head = self._config, self._chain.head
            voters, tells = frozenset(head.roster), bounds_strangers(head.rules)
            self._offers = Offers(
                config.run_id, config.verifier, tools.codec, tools.grid, voters, tells_strangers=tells
            )
            self.shown.begin(base, self._offers)

    async def _run(self, exchange: Exchange) -> None:
        with trio.CancelScope() as scope:
            if exchange is self._exchange:
                self._scope = scope
                await exchange.run()
        seconds = exchange.upload_s(trio.current_time())
        if seconds is not None:
            self.upload_bytes_per_s = exchange.upload_bytes_per_s(trio.current_time())
            await self._tell(ExchangeMeasured(seconds))

    def end(self) -> None:
        """Stop moving bytes."""
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
        if self._exchange is not None:  # the next one may begin before this one's task has ended
            self._upload_s = self._exchange.upload_s(trio.current_time()) or self._upload_s
        self._exchange = None

    def give_time(self, ballot: Ballot, reduce_within_s: float) -> None:
        """Let slices of this attempt wait this long from their beginning."""
        if self._exchange is not None and self._exchange.proposal.ballot == ballot:
            self._exchange.give_time(reduce_within_s)

    def drop(self, peer: PeerId, reason: str) -> None:
        """Stop waiting for a member."""
        if self._exchange is not None:
            self._exchange.drop(peer, reason)

    @property
    def late_upload_s(self) -> float:
        """How long the running upload will take, once it takes longer than the last one; else 0. The rest of this attempt, and
        the next one, must not be planned with the line's earlier rate (R11).
        """
        return 0.0 if self._exchange is None else self._exchange.late_upload_s(trio.current_time())

    def is_exchanging(self, base: CommitId) -> bool:
        """Whether results on this base may still arrive through the exchange."""
        exchange = self._exchange
        return exchange is not None and not exchange.is_over and exchange.proposal.base == base

    @property
    def arrivals(self) -> Arrivals:
        """The streams' deliveries to the running exchange; always empty if none runs."""
        return self._no_arrivals if self._exchange is None else self._exchange.arrivals

    @property
    def patience_s(self) -> float:
        """How long the exchange may deliver nothing. A lost packet stalls a thin line for long, and asking elsewhere would move
        bytes twice.
        """
        upload_s = None if self._exchange is None else self._exchange.upload_s(trio.current_time())
        return max(EXCHANGE_PATIENCE_S, PATIENCE_SHARE * (upload_s or 0.0))

    def _exchange_tools(self) -> ExchangeContext:
        chain, tools = self._chain.tools, self._tools
        return ExchangeContext(
            run_id=self._config.run_id,
            me=self._config.me,
            network=tools.network,
            offload=tools.offload,
            verifier=self._config.verifier,
            means=ChunkMeans(chain.result_codec, chain.grid, self._config.sums),
            seal=tools.seal,
            begin_result=lambda named: chain.log.begin_result(named.base, named.result_hash),
            keep_result=self._keep_result,
            examine=self._examine,
            holds_result=self._holds_result,
            announce=self._announce,
            probe=self._probe,
            learn=self._learn,
            refused=self._tell,
            record=tools.record,
            credential=lambda: _credential(self._config, self._chain, tools),
        )

    def _probe(self, peer: PeerId) -> None:
        if self.probe is not None:
            self.probe(peer)

    async def _keep_result(self, named: NamedResult, result: SliceBytes, begun: BegunFile | None) -> Callable[[], None]:
        await self._chain.tools.log.write_result(named.base, named.result_hash, result.data, begun)
        self.changes.notify()
        return partial(self._chain.updates.remember, named.base, named.result_hash, result)

    async def _examine(self, first_chunk: int, encoded: Encoded) -> list[bytes]:
        """Check results as they arrive. Compute the next state from them, by the outer step that the run's settings name, if it gets
        memory of its own.
        """
        chain = self._chain
        is_made_ahead = not chain.held.steps_in_place and chain.state.head == self._base
        if not is_made_ahead:
            return await chain.updates.examine(None, self._config.outer, first_chunk, encoded)
        turns = turns_of_base(self._config.outer, reversed(chain.links))
        outer = outer_of_round(self._config.outer, self._config.momentum_from_tokens, chain.head, turns)
        return await chain.updates.examine(chain.state, outer, first_chunk, encoded)

    async def _holds_result(self, named: NamedResult) -> bool:
        if self.until_fetched is not None:
            with trio.move_on_after(FETCHED_WITHIN_S):
                await self.until_fetched(named.result_hash)
        return await self._chain.tools.log.holds_results(named.base, [named.result_hash])

    async def _announce(self, ready: ResultReady) -> None:
        """Announce a closed slice to the leader and to ourselves: if we lead the next attempt, the members counted in it take
        part in that, too. No other peer can use a result summed under this ballot (R16).
        """
        exchange = self._exchange
        if exchange is not None and exchange.proposal.ballot == ready.ballot:
            await self._send(tuple(dict.fromkeys((ready.ballot.peer, self._config.me.peer))), ready)

    async def _learn(self, ready: ResultReady) -> None:
        """Take a reducer's announcement if we lead: a leader settles on these, and one sent while its network was away is not
        repeated.
        """
        if ready.ballot.peer == self._config.me.peer:
            await self._send((self._config.me.peer,), ready)

    async def serve(self, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        """Take a member's chunks for one of our slices.

        Raises:
            RemoteProtocolError: bytes that do not fit. TransportError: no such exchange here.
        """
        exchange = await self._exchange_of(hello)
        try:
            await exchange.serve(sender, hello, stream)
        except TransportError:
            if not exchange.is_over:
                self._probe(sender)
            raise

    async def carry(self, sender: PeerId, hello: CarryHello, stream: Stream) -> None:
        """Take the contribution of a peer that leaves, to bring it into the round on our head.

        Raises:
            RemoteProtocolError: bytes that do not fit. TransportError: our head is another commit, or there is no room.
        """
        with trio.move_on_after(WAIT_FOR_PROPOSAL_S):
            while self._chain.head.commit != hello.base:
                await self.changes.wait()
        if self._chain.head.commit != hello.base:
            raise TransportError(
                "a contribution on another commit than our head", "one on the head", "ask another peer"
            )
        self._at(hello.base)
        if self._offers is not None:
            over, grid = self._tools.offload.run, self._chain.tools.grid
            await take_carried(
                self._offers, grid, lambda hashes: over(partial(MerkleTree.over, hashes)), sender, hello, stream
            )

    async def _exchange_of(self, hello: ExchangeHello) -> Exchange:
        named = (hello.base, hello.ballot)
        with trio.move_on_after(WAIT_FOR_PROPOSAL_S):
            while True:
                exchange = self._exchange
                if exchange is not None and (exchange.proposal.base, exchange.proposal.ballot) == named:
                    await exchange.begun.wait()
                    return exchange
                await self.changes.wait()
        raise TransportError("an exchange that is not running here", "the running attempt", "try again")


def _credential(config: RoundConfig, chain: UnitChain, tools: RoundContext) -> bytes:
    """Our proof of admission, if records need it because we are not in the base roster."""
    return b"" if config.me.peer in chain.head.roster else tools.credential()


def _is_stranger(config: RoundConfig, chain: UnitChain, credential: bytes) -> bool:
    """Whether our claim has to say that we are a stranger, by the credential that goes with it."""
    if not credential or not bounds_strangers(chain.head.rules):
        return False
    standing = config.verifier.standing(credential, config.me.peer, config.run_id)
    return standing is not None and not standing.may_reduce


def _encoder(chain: UnitChain, anchor_N: torch.Tensor, snapshot: Snapshot) -> DeltaEncoder:
    if snapshot.tokens <= 0:
        raise NoPart(
            "nothing was trained here since the last round", "trained tokens"
        )  # such as while its owner pauses it
    tools = chain.tools
    feedback = None if tools.feedback is None else tools.feedback.state
    return DeltaEncoder(anchor_N, snapshot.theta_N, snapshot.tokens, tools.codec, tools.grid, feedback)


def _encode_runs(encoder: DeltaEncoder, runs: Sequence[range]) -> None:
    for run in runs:
        encoder.encode(run)
