"""The round service: drives the round machine of one unit on the seams. It decides nothing: events in, orders out.

One task feeds events to `core.step` in order and performs the orders; whatever waits (sending, taking a delta, moving bytes,
applying a commit) runs in a task of its own and comes back as an event. What the orders mean is in exchanging.py (contribution and
exchange), pursuing.py (commits and lineages) and adopting.py (the trainer).
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from averaging.network.seams import Stream
from averaging.rounds.adopting import Adopter
from averaging.rounds.exchange import EXCHANGE_CHANNEL
from averaging.rounds.exchanging import Exchanging
from averaging.rounds.gathering import Gatherer
from averaging.rounds.healing import Healer
from averaging.rounds.pursuing import Pursuer
from averaging.rounds.round_tools import RoundTools, Tasks
from averaging.rounds.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.rounds.unit import UnitChain
from protocol.envelope import ReplayGuard, open_envelope
from protocol.errors import CallTimeout, PeerUnreachable, PotluckError, RemoteProtocolError, StorageError
from protocol.ids import CommitId, PeerId, short
from protocol.rounds import core, liveness
from protocol.rounds.chain import ROUND_DOMAIN
from protocol.rounds.messages import LAST_ATTEMPT, Ballot, Committed, Heartbeat, Leave, RoundMessage, Settle
from protocol.rounds.orders import (
    Action,
    AnswerWithCertificate,
    BeginExchange,
    CatchUp,
    Commit,
    DropMember,
    EndExchange,
    GatherBytes,
    LogAck,
    LogLeave,
    LogPromise,
    PrepareContribution,
    PrepareSwitch,
    Send,
    SendHeartbeat,
    Switch,
)
from protocol.rounds.requests import FetchState
from protocol.rounds.state import (
    AckLogged,
    BytesHeld,
    Event,
    LeaveLogged,
    LeaveOrdered,
    MessageArrived,
    OpenRound,
    PeerAnswered,
    PeerLost,
    PeersListed,
    Progressed,
    PromiseLogged,
    RoundConfig,
    RoundState,
    Step,
    Ticked,
)
from protocol.rounds.views import own_heartbeat
from protocol.wire import decode_certificate, decode_message, decode_record, encode_message

log = structlog.get_logger()

ROUND_CHANNEL: Final = "round"
CALL_WITHIN_S: Final = 2.0
LEAVE_WITHIN_S: Final = 3.0
MAX_EVENTS: Final = 1000
"""Events that may wait; senders of messages are slowed beyond it."""


class RoundService:
    """One unit's rounds at one peer. `serve` before the network starts, then `run`."""

    def __init__(self, config: RoundConfig, chain: UnitChain, open_round: OpenRound, tools: RoundTools) -> None:
        self.config = config
        self.chain = chain
        self._tools = tools
        self._open_round = open_round
        self._state: RoundState | None = None
        self._send_events, self._receive_events = trio.open_memory_channel[Event](MAX_EVENTS)
        self._tasks = Tasks(tools.publish)
        self._replays = ReplayGuard()
        self._hurry = trio.Event()
        self._has_left = trio.Event()
        self._adopter = Adopter(config.me.peer, chain, tools.trainer, tools.offload)
        self._exchanging = Exchanging(config, chain, tools, self._tasks, self._send_events.send, self._send)
        self._exchanging.probe = self._probe
        self._changes = self._exchanging.changes
        self._gatherer = Gatherer(tools.network, chain, self._exchanging.is_exchanging, self._changes.wait)
        self._healer = Healer(chain, tools.network, self._adopter, tools.publish, self._live_peers)
        self._pursuer = Pursuer(chain, tools, self._gatherer, self._adopter, self._send_events.send, lambda: self.state)
        self._transfer = TransferService(
            config.unit, chain.tools.log, chain.tools.generations, chain.tools.grid, chain.certificates_after
        )
        self.reason = "starting"

    @property
    def state(self) -> RoundState:
        """The machine's state, for status; before `run` the one that it will start with."""
        if self._state is None:
            self._state = core.start(
                self.config,
                self.chain.head,
                self._tools.clock.monotonic_s(),
                state_root=self.chain.root,
                open_round=self._open_round,
                tree=self.chain.tree,
            )
        return self._state

    @property
    def has_adopted(self) -> bool:
        """Whether the trainer has heard of every commit that the machine knows as applied."""
        return self._adopter.is_idle and self.state.link.commit == self.chain.state.head

    def serve(self) -> None:
        """Answer on the round, exchange and fetch channels from now on."""
        self._tools.network.serve_calls(ROUND_CHANNEL, self._on_call)
        self._tools.network.serve_streams(EXCHANGE_CHANNEL, self._exchanging.serve)
        self._tools.network.serve_streams(FETCH_CHANNEL, self._on_fetch)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks.use(nursery)
            nursery.start_soon(self._adopter.run)
            nursery.start_soon(self._healer.run)
            nursery.start_soon(self._tick)
            task_status.started()
            while True:
                await self._step(await self._receive_events.receive())

    async def list_peers(self, peers: tuple[PeerId, ...]) -> None:
        """The directory names these credentialed peers."""
        await self._send_events.send(PeersListed(peers))

    async def wait_changed(self) -> None:
        """Until something happened to the head, the exchange or the bytes on disk."""
        await self._changes.wait()

    async def leave(self) -> None:
        """Promise on disk to vote no more on this base, and say goodbye, so that nobody waits for us (rule 3)."""
        with trio.move_on_after(LEAVE_WITHIN_S):
            await self._send_events.send(LeaveOrdered())
            await self._has_left.wait()

    # --- the loop ---

    async def _tick(self) -> None:
        clock = self._tools.clock
        expected_s = clock.monotonic_s()
        while True:
            now_s = clock.monotonic_s()
            await self._send_events.send(self._progress())
            await self._send_events.send(Ticked(max(0.0, now_s - expected_s)))
            pause_s = liveness.next_tick_s(self.state)
            expected_s = clock.monotonic_s() + pause_s
            with trio.move_on_after(pause_s):
                await self._hurry.wait()

    def _progress(self) -> Progressed:
        progress = self._tools.trainer.progress()
        # a process that is starting has nothing to give, and a round that counts on it would wait for it
        can = progress.state in ("training", "paused") and self.chain.is_sound
        ready = max(0, progress.tokens_ready - self._adopter.pending_tokens)
        return Progressed(ready, can, self._exchanging.upload_bytes_per_s)

    async def _step(self, event: Event) -> None:
        before = self.state
        step = self._judge(event)
        self._state = step.state
        if step.reason and step.reason != self.reason:
            self.reason = step.reason
            log.info("round", reason=step.reason, index=self.state.link.index, peer=short(self.config.me.peer))
            self._tools.publish("round_reason", {"reason": step.reason})
        for action in step.actions:
            await self._tasks.guarded(self._perform, action)
        if isinstance(event, LeaveLogged) and not any(isinstance(action, Send) for action in step.actions):
            self._has_left.set()
        if before.link.commit != self.state.link.commit:
            self._changes.notify()
        if liveness.next_tick_s(self.state) < liveness.next_tick_s(before):
            hurry, self._hurry = self._hurry, trio.Event()
            hurry.set()

    def _judge(self, event: Event) -> Step:
        """One step of the machine. What a stranger says may be refused, never end us."""
        now_s = self._tools.clock.monotonic_s()
        try:
            return core.step(self.state, event, now_s)
        except PotluckError as error:
            if not isinstance(event, MessageArrived):
                raise
            return Step(self.state, (), f"dropped a message of {short(event.sender)}: {error.one_line()}")

    async def _perform(self, action: Action) -> None:
        match action:
            case Send():
                await self._send(action.to, action.message)
            case SendHeartbeat():
                await self._send(action.to, action.heartbeat)
            case PrepareContribution():
                self._exchanging.prepare(action.base, self._adopter)
            case BeginExchange():
                self._exchanging.begin(action.proposal)
            case EndExchange():
                self._exchanging.end()
            case DropMember():
                self._exchanging.drop(action.peer, action.reason)
            case GatherBytes():
                self._tasks.spawn(self._gather_for_ack, action.settle)
            case LogAck() | LogPromise() | LogLeave():
                await self._vote(action)
            case AnswerWithCertificate():
                self._tasks.spawn(self._answer_with_certificate, action.to, action.base)
            case _:
                self._pursue(action)

    def _pursue(self, action: Commit | CatchUp | PrepareSwitch | Switch) -> None:
        match action:
            case Commit():
                self._tasks.spawn(self._pursuer.commit, action, self._exchanging.contribution)
            case CatchUp():
                self._tasks.spawn(self._pursuer.catch_up, action)
            case PrepareSwitch():
                self._tasks.spawn(self._pursuer.prepare_switch, action)
            case Switch():
                self._tasks.spawn(self._pursuer.switch, action)

    async def _vote(self, action: LogAck | LogPromise | LogLeave) -> None:
        """Write a vote to disk, in the order of the orders; one that cannot be written is never told."""
        log_ = self.chain.tools.log
        told: Event
        match action:
            case LogAck():
                await log_.log_ack(action.base, action.ballot, action.record, lone=action.lone)
                told = AckLogged(action.base, action.ballot, action.commit)
            case LogPromise():
                await log_.log_promise(action.base, action.ballot)
                told = PromiseLogged(action.base, action.ballot)
            case LogLeave():
                try:
                    await log_.log_promise(action.leave.base, Ballot(LAST_ATTEMPT, self.config.me.peer))
                except StorageError:
                    self._has_left.set()  # gone without a word: the others find out by themselves
                    raise
                told = LeaveLogged(action.leave)
        # the loop must not wait for itself
        self._tasks.spawn(self._send_events.send, told)

    # --- messages ---

    async def _send(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        raw = await self._tools.seal(encode_message(message))
        if isinstance(message, Leave):
            self._tasks.spawn(self._say_goodbye, to, raw)
            return
        for peer in to:
            if peer == self.config.me.peer:
                self._tasks.spawn(self._send_events.send, MessageArrived(peer, message, raw))
            else:
                self._tasks.spawn(self._deliver, peer, raw)

    def _probe(self, peer: PeerId) -> None:
        """A refused connection is a death at once; an answer is a sign of life (rule 12)."""
        self._tasks.spawn(self._send, (peer,), own_heartbeat(self.state, self._tools.clock.monotonic_s()))

    async def _say_goodbye(self, to: tuple[PeerId, ...], raw: bytes) -> None:
        async with trio.open_nursery() as nursery:
            for peer in to:
                nursery.start_soon(self._tasks.guarded, self._deliver, peer, raw)
        self._has_left.set()

    async def _deliver(self, peer: PeerId, raw: bytes) -> None:
        try:
            await self._tools.network.call(peer, ROUND_CHANNEL, raw, timeout_s=CALL_WITHIN_S)
        except PeerUnreachable:
            await self._send_events.send(PeerLost(peer))
        except (CallTimeout, RemoteProtocolError) as error:
            log.debug("not_delivered", to=short(peer), reason=error.one_line())
        else:
            await self._send_events.send(PeerAnswered(peer))

    async def _on_call(self, sender: PeerId, request: bytes) -> bytes:
        await self._check_member(sender)
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

    async def _check_member(self, sender: PeerId) -> None:
        if not await self._tools.is_member(sender):
            raise RemoteProtocolError(
                f"{short(sender)} has shown no credential of this run", "a member", "join the run first"
            )

    async def _answer_with_certificate(self, to: PeerId, base: CommitId) -> None:
        raw = self.chain.certificate_on(base)
        if raw is not None:
            await self._send((to,), Committed(self.config.unit, decode_certificate(raw)))

    # --- bytes ---

    async def _on_fetch(self, sender: PeerId, stream: Stream) -> None:
        await self._check_member(sender)
        request = await read_request(stream)
        if isinstance(request, FetchState) and not self.chain.is_sound:
            return  # an empty end: ask somebody else
        await self._transfer.serve(sender, request, stream)

    async def _gather_for_ack(self, settle: Settle) -> None:
        record = decode_record(settle.record)
        reducers = (part.reducer for part in record.slices)
        first = (*settle.holders, settle.ballot.peer, *reducers)
        if await self._gatherer.gather(record, tuple(dict.fromkeys((*first, *self._live_peers())))):
            await self._send_events.send(BytesHeld(settle))

    def _live_peers(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer, view in sorted(self.state.peers.items()) if not (view.lost or view.left))
