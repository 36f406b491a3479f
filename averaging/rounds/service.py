"""The round service: drives the round machine of one unit on the seams. It decides nothing: events in, orders out.

One task feeds events to `core.step` in order and performs the orders; whatever waits (sending, taking a delta, moving bytes,
applying a commit) runs in a task of its own and comes back as an event.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import structlog
import trio

from averaging.network.seams import Clock, Network, Offload, Publish, Stream, Trainer
from averaging.rounds.contribution import EncodedContribution, encode_contribution
from averaging.rounds.exchange import EXCHANGE_CHANNEL, Exchange, ExchangeTools
from averaging.rounds.gathering import GATHER_WITHIN_S, Gatherer
from averaging.rounds.reduction import Offers
from averaging.rounds.transfer import (
    FETCH_CHANNEL,
    FRAME_WITHIN_S,
    TransferService,
    fetch_commits,
    read_request,
)
from averaging.rounds.unit import AppliedCommit, UnitChain, adoption_shift
from averaging.unit_log import LoggedContribution
from protocol.envelope import ReplayGuard, open_envelope
from protocol.errors import CallTimeout, PeerUnreachable, PotluckError, RemoteProtocolError, TransportError
from protocol.ids import CommitId, PeerId, short
from protocol.rounds import core
from protocol.rounds.chain import ROUND_DOMAIN, ChainLink
from protocol.rounds.messages import (
    Certificate,
    Committed,
    ContributionHeader,
    ExchangeHello,
    Heartbeat,
    Leave,
    Proposal,
    ResultHeader,
    ResultReady,
    RoundMessage,
    Settle,
)
from protocol.rounds.state import (
    AckLogged,
    Action,
    AnswerWithCertificate,
    Applied,
    BeginExchange,
    BytesHeld,
    CatchUp,
    Commit,
    CommitStalled,
    ContributionFailed,
    ContributionReady,
    DropMember,
    EndExchange,
    Event,
    GatherBytes,
    LogAck,
    LogPromise,
    MessageArrived,
    OpenRound,
    PeerAnswered,
    PeerLost,
    PeersListed,
    PrepareContribution,
    Progressed,
    PromiseLogged,
    RoundConfig,
    RoundState,
    Send,
    SendHeartbeat,
    Ticked,
)
from protocol.wire import decode_body, decode_certificate, decode_message, decode_record, encode_body, encode_message

log = structlog.get_logger()

ROUND_CHANNEL: Final = "round"
TICK_S: Final = 0.25
CALL_WITHIN_S: Final = 2.0
ENCODE_COST_S: Final = 0.005
SNAPSHOT_WITHIN_S: Final = 60.0
WAIT_FOR_PROPOSAL_S: Final = 5.0
MAX_EVENTS: Final = 1000
"""Events that may wait; senders of messages are slowed beyond it."""

CATCH_UP_PAUSE_S: Final = 1.0


@dataclass(frozen=True)
class RoundTools:
    """The seams and the keys of a round service.

    `seal(payload)` signs under the round domain with the next durable sequence number; `is_member(peer)` says whether a peer
    holds a good credential.
    """

    network: Network
    clock: Clock
    offload: Offload
    trainer: Trainer
    seal: Callable[[bytes], Awaitable[bytes]]
    is_member: Callable[[PeerId], Awaitable[bool]]
    publish: Publish
    chooser: random.Random


class RoundService:
    """One unit's rounds at one peer. `serve` before the network starts, then `run`."""

    def __init__(self, config: RoundConfig, chain: UnitChain, open_round: OpenRound, tools: RoundTools) -> None:
        self.config = config
        self.chain = chain
        self._tools = tools
        self._open_round = open_round
        self._state: RoundState | None = None
        self._send_events, self._receive_events = trio.open_memory_channel[Event](MAX_EVENTS)
        self._exchange: Exchange | None = None
        self._exchange_scope: trio.CancelScope | None = None
        self._contribution: EncodedContribution | None = None
        self._offers: Offers | None = None
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._replays = ReplayGuard()
        self._transfer = TransferService(
            config.unit, chain.tools.log, chain.tools.generations, chain.tools.grid, chain.certificates_after
        )
        self._is_catching_up = False
        self._gatherer = Gatherer(tools.network, chain, self._is_exchanging, self.wait_changed)
        self.reason = "starting"

    @property
    def state(self) -> RoundState:
        """The machine's state, for status; the genesis of the service before `run`."""
        if self._state is None:
            now_s = self._tools.clock.monotonic_s()
            self._state = core.start(
                self.config, self.chain.head, now_s, state_root=self.chain.root, open_round=self._open_round
            )
        return self._state

    def serve(self) -> None:
        """Answer on the round, exchange and fetch channels from now on."""
        self._tools.network.serve_calls(ROUND_CHANNEL, self._on_call)
        self._tools.network.serve_streams(EXCHANGE_CHANNEL, self._on_exchange)
        self._tools.network.serve_streams(FETCH_CHANNEL, self._on_fetch)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        self._new_base()
        await self._tools.trainer.set_anchor(self.chain.state.anchor_N)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._tick)
            task_status.started()
            while True:
                event = await self._receive_events.receive()
                await self._step(event)

    async def list_peers(self, peers: tuple[PeerId, ...]) -> None:
        """The directory names these credentialed peers."""
        await self._send_events.send(PeersListed(peers))

    async def wait_changed(self) -> None:
        """Until something happened to the head, the exchange or the bytes on disk."""
        await self._changed.wait()

    async def leave(self) -> None:
        """Say goodbye to everybody, so that nobody waits for us."""
        message = Leave(self.config.me)
        raw = await self._tools.seal(encode_message(message))
        async with trio.open_nursery() as nursery:
            for peer in sorted(self.state.peers):
                nursery.start_soon(self._deliver, peer, raw, 1.0)

    # --- the loop ---

    async def _tick(self) -> None:
        expected_s = self._tools.clock.monotonic_s()
        while True:
            now_s = self._tools.clock.monotonic_s()
            progress = self._tools.trainer.progress()
            can = progress.state in ("training", "starting", "paused") and progress.tokens_ready >= 0
            await self._send_events.send(Progressed(progress.tokens_ready, can))
            await self._send_events.send(Ticked(max(0.0, now_s - expected_s - TICK_S)))
            expected_s = now_s + TICK_S
            await trio.sleep(TICK_S)

    async def _step(self, event: Event) -> None:
        step = core.step(self.state, event, self._tools.clock.monotonic_s())
        moved = step.state.link.commit != self.state.link.commit
        self._state = step.state
        if moved:
            self._new_base()
        if step.reason and step.reason != self.reason:
            self.reason = step.reason
            log.info("round", reason=step.reason, index=self.state.link.index, peer=short(self.config.me.peer))
            self._tools.publish("round_reason", {"reason": step.reason})
        for action in step.actions:
            await self._perform(action)
        if moved or isinstance(event, Applied):
            self._notify()

    def _new_base(self) -> None:
        tools = self.chain.tools
        self._offers = Offers(self.config.run_id, self.config.verifier, tools.codec, tools.grid)
        self._contribution = None
        self._exchange = None

    def _notify(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()

    def _spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._guarded, function, args)

    async def _guarded(self, function: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        """The edge of every task: what fails is told, and nothing else falls with it."""
        try:
            await function(*args)
        except PotluckError as error:
            log.warning("task_failed", task=function.__name__, reason=error.one_line())
            self._tools.publish("task_failed", {"task": function.__name__, "reason": error.one_line()})

    async def _perform(self, action: Action) -> None:
        log_ = self.chain.tools.log
        match action:
            case Send():
                await self._send(action.to, action.message)
            case SendHeartbeat():
                await self._send(action.to, action.heartbeat)
            case PrepareContribution():
                self._spawn(self._prepare, action.base)
            case BeginExchange():
                self._begin_exchange(action.proposal)
            case EndExchange():
                self._end_exchange()
            case DropMember():
                if self._exchange is not None:
                    self._exchange.drop(action.peer, action.reason)
            case GatherBytes():
                self._spawn(self._gather_for_ack, action.settle)
            case LogAck():
                await log_.log_ack(action.base, action.ballot, action.record)
                self._tell(AckLogged(action.base, action.ballot, action.commit))
            case LogPromise():
                await log_.log_promise(action.base, action.ballot)
                self._tell(PromiseLogged(action.base, action.ballot))
            case Commit():
                self._spawn(self._commit, action)
            case AnswerWithCertificate():
                self._spawn(self._answer_with_certificate, action.to, action.base)
            case CatchUp():
                self._spawn(self._catch_up, action.source)

    def _tell(self, event: Event) -> None:
        """An event from the loop itself, which must not wait for itself."""
        self._spawn(self._send_events.send, event)

    # --- messages ---

    async def _send(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        raw = await self._tools.seal(encode_message(message))
        timeout_s = CALL_WITHIN_S
        for peer in to:
            if peer == self.config.me.peer:
                self._tell(MessageArrived(peer, message, raw))
            else:
                self._spawn(self._deliver, peer, raw, timeout_s)

    async def _deliver(self, peer: PeerId, raw: bytes, timeout_s: float) -> None:
        try:
            await self._tools.network.call(peer, ROUND_CHANNEL, raw, timeout_s=timeout_s)
        except PeerUnreachable:
            await self._send_events.send(PeerLost(peer))
        except (CallTimeout, RemoteProtocolError) as error:
            log.debug("not_delivered", to=short(peer), reason=error.one_line())
        else:
            await self._send_events.send(PeerAnswered(peer))

    async def _on_call(self, sender: PeerId, request: bytes) -> bytes:
        if not await self._tools.is_member(sender):
            raise RemoteProtocolError(
                f"{short(sender)} has shown no credential of this run", "a member", "join the run first"
            )
        now_ms = int(self._tools.clock.unix_s() * 1000)
        envelope = open_envelope(
            request, verifier=self.config.verifier, domain=ROUND_DOMAIN, run_id=self.config.run_id, now_unix_ms=now_ms
        )
        if envelope.sender != sender:
            raise RemoteProtocolError(f"a message of {short(envelope.sender)} from {short(sender)}", "its own messages")
        if not self._replays.admit(envelope):
            raise RemoteProtocolError(
                f"a repeated message of {short(sender)}", "a new sequence number", "it was ignored"
            )
        message = decode_message(envelope.payload)
        if isinstance(message, Heartbeat | Leave) and message.member.peer != sender:
            raise RemoteProtocolError("a heartbeat in another's name", "the sender's own")
        await self._send_events.send(MessageArrived(sender, message, request))
        return b""

    async def _answer_with_certificate(self, to: PeerId, base: CommitId) -> None:
        raw = self.chain.certificate_on(base)
        if raw is not None:
            await self._send((to,), Committed(self.config.unit, decode_certificate(raw)))

    # --- contributing and exchanging ---

    async def _prepare(self, base: CommitId) -> None:
        chain, tools = self.chain, self._tools
        anchor_N, root = chain.state.anchor_N, chain.root
        try:
            with trio.fail_after(SNAPSHOT_WITHIN_S):
                snapshot = await tools.trainer.snapshot()
            if snapshot.tokens <= 0:
                raise RemoteProtocolError("a snapshot without tokens", "trained tokens")
            encoded = await tools.offload.run(
                lambda: encode_contribution(
                    anchor_N, snapshot.theta_N, snapshot.tokens, chain.tools.codec, chain.tools.grid
                ),
                cost_s=ENCODE_COST_S,
            )
        except (PotluckError, trio.TooSlowError) as error:
            log.warning("no_contribution", reason=str(error) or "the trainer gave no snapshot in time")
            await self._send_events.send(ContributionFailed(base))
            return
        if base != chain.head.commit:
            return
        await chain.log_contribution(base, LoggedContribution(encoded.root, snapshot.tokens, snapshot.next_step))
        header = ContributionHeader(
            self.config.unit, base, self.config.me, snapshot.tokens, self.config.codec, encoded.root, base, root
        )
        signed = await tools.seal(encode_body(header))
        self._contribution = EncodedContribution(
            encoded.theta_N, encoded.tokens, encoded.chunks, encoded.hashes, encoded.root, signed
        )
        self._tools.publish("contributed", {"root": encoded.root})
        await self._send_events.send(ContributionReady(base, encoded.root, snapshot.tokens))

    def _exchange_tools(self) -> ExchangeTools:
        chain = self.chain.tools
        return ExchangeTools(
            run_id=self.config.run_id,
            me=self.config.me,
            network=self._tools.network,
            offload=self._tools.offload,
            verifier=self.config.verifier,
            codec=chain.codec,
            grid=chain.grid,
            seal=self._tools.seal,
            keep_result=self._keep_result,
            announce=self._announce,
        )

    def _begin_exchange(self, proposal: Proposal) -> None:
        self._end_exchange()
        if self._offers is None:
            return
        self._exchange = Exchange(proposal, self._exchange_tools(), self._offers, self._contribution)
        self._spawn(self._run_exchange, self._exchange)
        self._notify()

    async def _run_exchange(self, exchange: Exchange) -> None:
        with trio.CancelScope() as scope:
            if exchange is not self._exchange:
                return
            self._exchange_scope = scope
            await exchange.run()

    def _is_exchanging(self, base: CommitId) -> bool:
        exchange = self._exchange
        return exchange is not None and not exchange.is_over and exchange.proposal.base == base

    def _end_exchange(self) -> None:
        if self._exchange_scope is not None:
            self._exchange_scope.cancel()
            self._exchange_scope = None
        self._exchange = None

    async def _keep_result(self, header: ResultHeader, data: bytes) -> None:
        await self.chain.tools.log.write_result(header.base, header.result_hash, data)
        self._notify()

    async def _announce(self, ready: ResultReady) -> None:
        """The opener and whoever may have to take over hear of a closed slice."""
        exchange = self._exchange
        if exchange is not None and exchange.proposal.ballot == ready.ballot:
            await self._send(tuple(member.peer for member in exchange.proposal.members), ready)

    async def _on_exchange(self, sender: PeerId, stream: Stream) -> None:
        if not await self._tools.is_member(sender):
            raise RemoteProtocolError(f"{short(sender)} has shown no credential of this run", "a member")
        frame: bytes | None = None
        with trio.move_on_after(FRAME_WITHIN_S):
            frame = await stream.receive_frame()
        if frame is None:
            raise RemoteProtocolError("an exchange without a greeting", "an ExchangeHello")
        hello = decode_body(ExchangeHello, frame)
        exchange = await self._exchange_of(hello)
        await exchange.serve(sender, hello, stream)

    async def _exchange_of(self, hello: ExchangeHello) -> Exchange:
        """The exchange that a stream belongs to; the stream may come before the proposal does."""
        with trio.move_on_after(WAIT_FOR_PROPOSAL_S):
            while True:
                exchange = self._exchange
                if (
                    exchange is not None
                    and exchange.proposal.ballot == hello.ballot
                    and exchange.proposal.base == hello.base
                ):
                    return exchange
                await self._changed.wait()
        raise TransportError("an exchange that is not running here", "the running attempt", "try again")

    # --- bytes, commits, catching up ---

    async def _on_fetch(self, sender: PeerId, stream: Stream) -> None:
        if not await self._tools.is_member(sender):
            raise RemoteProtocolError(f"{short(sender)} has shown no credential of this run", "a member")
        await self._transfer.serve(sender, await read_request(stream), stream)

    async def _gather_for_ack(self, settle: Settle) -> None:
        record = decode_record(settle.record)
        holders = tuple(dict.fromkeys((*settle.holders, settle.ballot.peer, *(s.reducer for s in record.slices))))
        if await self._gatherer.gather(record, holders):
            await self._send_events.send(BytesHeld(settle))

    async def _commit(self, action: Commit) -> None:
        me = self.config.me.peer
        holders = tuple(peer for peer in (*action.holders, *sorted(self.state.peers)) if peer != me)
        record = action.link.record
        if record is None or not await self._gatherer.gather(record, tuple(dict.fromkeys(holders))):
            await self._send_events.send(CommitStalled(action.link.commit, "its bytes are with nobody who answers"))
            return
        contribution = self._contribution
        applied = await self.chain.apply(action.link, action.certificate)
        await self._adopt(action.link, applied, contribution)
        await self._send_events.send(Applied(action.link, action.certificate, applied.root))
        self._tools.publish("committed", _commit_fields(action.link, action.certificate))

    async def _adopt(self, link: ChainLink, applied: AppliedCommit, contribution: EncodedContribution | None) -> None:
        record, me = link.record, self.config.me.peer
        if record is None:
            return
        entry = record.contributor(me)
        is_ours = entry is not None and contribution is not None and entry.root == contribution.root
        theta_N = contribution.theta_N if is_ours and contribution is not None else None
        shift_N = adoption_shift(applied, record, me, theta_N, self.chain.tools.grid)
        await self._tools.trainer.set_anchor(applied.state.anchor_N)
        await self._tools.trainer.shift(
            shift_N,
            credited_tokens=entry.credited_tokens if is_ours and entry is not None else 0,
            schedule_tokens=link.total_tokens,
        )

    async def _catch_up(self, source: PeerId) -> None:
        """Ask a peer for the commits after our head and apply them one by one."""
        if self._is_catching_up:
            return
        self._is_catching_up = True
        try:
            certificates = await fetch_commits(self._tools.network, source, self.config.unit, self.chain.head.commit)
            for raw in certificates:
                certificate = decode_certificate(raw)
                message = Committed(self.config.unit, certificate)
                index = self.chain.head.index
                await self._send_events.send(MessageArrived(source, message, b""))
                with trio.move_on_after(GATHER_WITHIN_S):
                    while self.chain.head.index == index or self.state.link.index == index:
                        await self._changed.wait()
                if self.chain.head.index == index:
                    return
            await trio.sleep(CATCH_UP_PAUSE_S if not certificates else 0)
        finally:
            self._is_catching_up = False


def _commit_fields(link: ChainLink, certificate: Certificate) -> Mapping[str, object]:
    return MappingProxyType({"link": link, "certificate": certificate})
