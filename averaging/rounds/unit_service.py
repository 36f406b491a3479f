"""The round service: drives the round machine of one unit. It decides nothing: events in, orders out.

One task feeds events to `core.step` in order and performs the orders; whatever waits (sending, taking a delta, moving bytes,
applying a commit) runs in a task of its own and comes back as an event. What the orders mean is in exchanging.py (contribution and
exchange), pursuing.py (commits and lineages) and adopting.py (the trainer). What comes from the network is brought by peer_rounds.py.

Rules: R3, R12 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange.exchange_driver import ExchangeDriver
from averaging.rounds.fetching.gather_results import ExchangeView, Gatherer
from averaging.rounds.fetching.state_repair import Healer
from averaging.rounds.lineage.round_context import Peerwide, RoundContext, Tasks
from averaging.rounds.lineage.round_reports import RoundReason
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import PreparedSwitch, UnitChain
from averaging.rounds.lineage_driver import LineageDriver
from averaging.rounds.traffic.transfer import TransferService
from protocol.errors import PotluckError, StorageError
from protocol.ids import CommitId, PeerId, UnitName, short
from protocol.rounds import liveness, voting
from protocol.rounds import machine as core
from protocol.rounds.events import (
    AckLogged,
    Applied,
    BytesHeld,
    Event,
    FlipOrdered,
    LeaveLogged,
    LeaveOrdered,
    MessageArrived,
    PeersAnswered,
    Progressed,
    PromiseLogged,
    RoundTicked,
    SpineMoved,
    SwitchFailed,
)
from protocol.rounds.lineage.lineage import SpineView
from protocol.rounds.messages.messages import LAST_ATTEMPT, Ballot, Committed, Heartbeat, Leave, RoundMessage, Settle
from protocol.rounds.messages.requests import ExchangeHello, FetchHashes, FetchRequest, FetchState
from protocol.rounds.messages.wire import decode_certificate, decode_record
from protocol.rounds.orders import (
    Action,
    AnswerWithCertificate,
    BeginExchange,
    CatchUp,
    Commit,
    DropMember,
    EndExchange,
    GatherBytes,
    GiveTime,
    LogAck,
    LogLeave,
    LogPromise,
    PrepareContribution,
    PrepareSwitch,
    Send,
    SendHeartbeat,
    Switch,
)
from protocol.rounds.queries import is_suspected, own_heartbeat
from protocol.rounds.state import OpenRound, RoundConfig, RoundState, RoundStep

log = structlog.get_logger()

LEAVE_WITHIN_S: Final = 3.0
STAYS_WITHIN_S: Final = 20.0
"""How long who wants to leave stays for a commit whose bytes others need: after a leader's death the others take seconds to begin a
new attempt, and then the bytes go over our line.
"""

MAX_EVENTS: Final = 1000
"""Events that may wait; senders of messages are slowed beyond it."""

_WITH_PROGRESS: Final = (RoundTicked, Applied)
"""Before these the machine hears how training goes."""


class RoundService:
    """One unit's rounds at one peer."""

    def __init__(
        self, config: RoundConfig, chain: UnitChain, open_round: OpenRound, tools: RoundContext, peer: Peerwide
    ) -> None:
        self.config = config
        self.chain = chain
        self._tools = tools
        self._peer = peer
        self._open_round = open_round
        self._state: RoundState | None = None
        self._send_events, self._receive_events = trio.open_memory_channel[Event | trio.Event](MAX_EVENTS)
        self._tasks = Tasks(tools.publish)
        self._answers: dict[PeerId, float] = {}
        self._heartbeats: dict[PeerId, tuple[Heartbeat, float]] = {}
        self._ticking = trio.CancelScope()
        self._has_left = trio.Event()
        self._adopter = TrainerUpdater(
            config.me.peer, chain, tools.trainer, tools.offload, self._run_tokens, tools.mixing, tools.record
        )
        self._exchanging = ExchangeDriver(config, chain, tools, self._tasks, self.tell, peer.send)
        self._exchanging.probe = self._probe
        self._changes = self._exchanging.changes
        exchanging, changes = self._exchanging, self._changes
        view = ExchangeView(
            exchanging.is_exchanging,
            changes,
            arrivals=lambda: exchanging.arrivals,
            patience_s=lambda: exchanging.patience_s,
            is_silent=self._is_silent,
        )
        self._gatherer = Gatherer(tools.network, chain, view)
        exchanging.until_fetched = self._gatherer.until_fetched
        self._healer = Healer(chain, tools.network, self._adopter, tools.publish, self._live_peers)
        self._pursuer = LineageDriver(chain, tools, self._gatherer, self._adopter, self.tell, peer, lambda: self.state)
        self._transfer = TransferService(
            config.unit, chain.tools.log, chain.tools.generations, chain.tools.grid, chain.certificates_after
        )
        self._name = short(config.me.peer)
        self.reason = "starting"
        self.waiting = ""

    @property
    def unit(self) -> UnitName:
        """Whose rounds these are."""
        return self.config.unit

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
                spine=None if self.config.is_spine else self._peer.spine,
            )
        return self._state

    def _run_tokens(self, own: int) -> int:
        spine = None if self.config.is_spine else self._peer.spine
        return own if spine is None else spine.link.total_tokens

    @property
    def has_adopted(self) -> bool:
        """Whether the trainer has heard of every commit that the machine knows as applied."""
        return self._adopter.is_idle and self.state.link.commit == self.chain.state.head

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks.use(nursery)
            nursery.start_soon(self._adopter.run)
            nursery.start_soon(self._healer.run)
            if self.chain.tools.feedback is not None:
                nursery.start_soon(self.chain.tools.feedback.run)
            nursery.start_soon(self._tick)
            task_status.started()
            while True:
                await self._take(await self._receive_events.receive())
                while (event := self._waiting_event()) is not None:
                    await self._take(event)

    def _waiting_event(self) -> Event | trio.Event | None:
        """One that is there already: a turn of the scheduler for each would cost more than most steps."""
        try:
            return self._receive_events.receive_nowait()
        except trio.WouldBlock:
            return None

    async def _take(self, event: Event | trio.Event) -> None:
        await self._before(event)
        if isinstance(event, trio.Event):
            event.set()
        else:
            await self._step(event)

    async def _before(self, event: Event | trio.Event) -> None:
        """What the machine hears before anything else: where the spine is, who answered, and how training goes: with a tick, and
        with a commit, for then the next opener is told what we have ready, and is not to hear once more of tokens that were counted.
        """
        spine = self._peer.spine
        has_moved = spine is not None and spine is not self.state.spine and not self.config.is_spine
        if spine is not None and has_moved:
            # what is decided must not rest on a lineage that was left
            await self._step(SpineMoved(spine))
        if self._answers or self._heartbeats:
            heard, self._answers = tuple(self._answers.items()), {}
            heartbeats, self._heartbeats = tuple(self._heartbeats.values()), {}
            await self._step(PeersAnswered(heard, heartbeats))
        # Who has found its own state wrong opens nothing from that moment on, whatever it is that happens next.
        # What is ready for the spine's next round is told with its head.
        if isinstance(event, _WITH_PROGRESS) or has_moved or (self.state.can_contribute and not self.chain.is_sound):
            await self._step(self._progress())

    def note_answer(self, peer: PeerId) -> None:
        """A message to this peer was answered: told with the next event, at once where the peer was taken for dead."""
        self._answers[peer] = self._tools.clock.monotonic_s()
        view = self.state.peers.get(peer)
        if view is None or view.lost:
            self._tasks.spawn(self.drained)

    def note_heartbeat(self, heartbeat: Heartbeat) -> bool:
        """Whether a heartbeat of its sender's own may be told with the next event, and will be; others need to be told at once. Most
        say again what is known, and a turn of the machine for each costs more than all that follows from them.
        """
        peer = heartbeat.member.peer
        waiting = self._heartbeats.get(peer)
        if waiting is not None and waiting[0].member != heartbeat.member:
            return False  # the machine sorts out which process is the newer one
        if not liveness.can_wait(self.state, heartbeat):
            return False
        self._heartbeats[peer] = heartbeat, self._tools.clock.monotonic_s()
        return True

    async def tell(self, event: Event) -> None:
        """Give the machine an event; waits while it has too many."""
        try:
            self._send_events.send_nowait(event)
        except trio.WouldBlock:
            await self._send_events.send(event)

    async def drained(self) -> None:
        """Until the machine has taken all events that it was told before."""
        taken = trio.Event()
        await self._send_events.send(taken)
        await taken.wait()

    async def wait_changed(self) -> None:
        """Until something happened to the head, the exchange or the bytes on disk."""
        await self._changes.wait()

    async def leave(self) -> None:
        """Promise on disk to vote no more on this base, and say goodbye, so that nobody waits for us (R3).

        Not between our ack and the commit while its leader is dead, or is ourselves: where a majority acked, others must commit that
        record, and if all who acked go, nobody is left who has its bytes.
        """
        clock = self._tools.clock
        asked_s = clock.monotonic_s()
        with trio.move_on_after(STAYS_WITHIN_S):
            while voting.is_owed_bytes(self.state, clock.monotonic_s(), asked_s):
                with trio.move_on_after(voting.NOTICED_WITHIN_S):
                    await self.wait_changed()
        with trio.move_on_after(LEAVE_WITHIN_S):
            await self.tell(LeaveOrdered())
            await self._has_left.wait()

    # --- beside the spine ---

    def note_spine(self) -> None:
        """The spine moved: have the machine look."""
        self._tasks.spawn(self.drained)

    async def prepare_beside(self, spine: SpineView, sources: tuple[PeerId, ...]) -> None:
        """Get ready to follow the spine to another lineage."""
        await self._pursuer.ask_beside(sources)
        await self.drained()
        await self._pursuer.prepare_beside(spine, sources)

    async def join_move(self, spine: SpineView) -> PreparedSwitch | None:
        """What this unit has to flip to when the spine stands there; its rounds stand still until `moved` or `not_moved`."""
        prepared = self._pursuer.beside(spine)
        if prepared is None:
            return None
        await self.tell(FlipOrdered(prepared.fork, prepared.path))
        await self.drained()
        switching = self.state.switching
        if switching is None or not switching.is_with_spine or switching.target != prepared.state.head:
            return None  # its own head is moving: it follows by itself later
        self._pursuer.leave(prepared)
        return prepared

    async def moved(self, open_round: OpenRound) -> None:
        """The head is where the spine asked for."""
        await self._pursuer.moved(open_round)

    async def not_moved(self, target: CommitId, why: str) -> None:
        """The move did not come about."""
        await self.tell(SwitchFailed(target, why))

    # --- the loop ---

    async def _tick(self) -> None:
        """Ticks one after another; begins anew, with a tick at once, when a step has made the pause too long."""
        clock = self._tools.clock
        expected_s = clock.monotonic_s()
        while True:
            with trio.CancelScope() as self._ticking:
                while True:
                    now_s = clock.monotonic_s()
                    await self.tell(RoundTicked(max(0.0, now_s - expected_s), self._exchanging.arrivals.bringing()))
                    pause_s = liveness.next_tick_s(self.state)
                    expected_s = clock.monotonic_s() + pause_s
                    await trio.sleep(pause_s)

    def _progress(self) -> Progressed:
        progress = self._tools.trainer.progress()
        # a process that is starting has nothing to give, and a round that counts on it would wait for it
        can = progress.state in ("training", "paused") and self.chain.is_sound
        ready = max(0, progress.tokens_ready - self._adopter.pending_tokens)
        spine_ready = None if self.config.is_spine else self._peer.spine_ready
        exchanging = self._exchanging
        return Progressed(
            ready,
            can,
            exchanging.upload_bytes_per_s,
            due_tokens=progress.due_tokens,
            spine_ready=spine_ready,
            late_upload_s=exchanging.late_upload_s,
        )

    async def _step(self, event: Event) -> None:
        before = self.state
        step = self._judge(before, event)
        state = self._state = step.state
        self._tell_why(step)
        for action in step.actions:
            await self._tasks.guarded(self._perform, action)
        if isinstance(event, LeaveLogged) and not any(isinstance(action, Send) for action in step.actions):
            self._has_left.set()
        if before.link.commit != state.link.commit:
            self._exchanging.head_moved()
            self._changes.notify()
        self._tell_spine(before, state)
        if state.open is not before.open and liveness.next_tick_s(state) < liveness.next_tick_s(before):
            self._ticking.cancel()

    def _tell_why(self, step: RoundStep) -> None:
        """What changed, and what is waited for, once for each change; what one message came to, and what an order is for, only to
        who looks for it. Heartbeats go out all the time for the same few reasons.
        """
        if not (step.reason or step.remark or step.waiting or step.actions):
            return
        index, peer = step.state.link.index, self._name
        if step.reason and step.reason != self.reason:
            self.reason = step.reason
            log.info("round", reason=step.reason, index=index, peer=peer)
            self._tools.publish(RoundReason(step.reason))
        if step.waiting and step.waiting != self.waiting:
            self.waiting = step.waiting
            log.info("round_waits", reason=step.waiting, index=index, peer=peer)
        if step.remark:
            log.debug("round_remark", reason=step.remark, index=index, peer=peer)
        for action in step.actions:
            if not isinstance(action, SendHeartbeat):
                log.debug("round_order", order=type(action).__name__, reason=action.reason, index=index, peer=peer)

    def _tell_spine(self, before: RoundState, state: RoundState) -> None:
        """Where this unit is the spine, the others hear where it stands; not between a flip and the machine's word of it."""
        has_moved = state.link is not before.link or state.tree is not before.tree
        is_flipping = state.switching is not None and state.switching.is_flipping
        if has_moved and self.config.is_spine and not is_flipping:
            self._peer.spine_moved(SpineView(state.link.commit, state.tree))

    def _judge(self, state: RoundState, event: Event) -> RoundStep:
        """One step of the machine. What a stranger says may be refused, never end us."""
        now_s = self._tools.clock.monotonic_s()
        try:
            return core.step(state, event, now_s)
        except PotluckError as error:
            if not isinstance(event, MessageArrived):
                raise
            return RoundStep(state, remark=f"dropped a message of {short(event.sender)}: {error.one_line()}")

    async def _perform(self, action: Action) -> None:
        match action:
            case Send():
                await self._send(action.to, action.message)
            case SendHeartbeat():
                await self._peer.send_heartbeat(self.unit, action)
            case PrepareContribution():
                self._exchanging.prepare(action.base, self._adopter)
            case BeginExchange():
                self._exchanging.begin(action.proposal)
            case GiveTime():
                self._exchanging.give_time(action.ballot, action.reduce_within_s)
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
        self._tasks.spawn(self.tell, told)

    # --- messages ---

    async def _send(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        if isinstance(message, Leave):
            self._tasks.spawn(self._say_goodbye, to, message)
        else:
            await self._peer.send(to, message)

    async def _say_goodbye(self, to: tuple[PeerId, ...], message: Leave) -> None:
        await self._peer.send_and_wait(to, message)
        self._has_left.set()

    def _probe(self, peer: PeerId) -> None:
        """A refused connection is a death at once; an answer is a sign of life (R12)."""
        heartbeat = own_heartbeat(self.state, self._tools.clock.monotonic_s())
        self._tasks.spawn(self._peer.send_heartbeat, self.unit, SendHeartbeat((peer,), heartbeat, is_question=True))

    async def _answer_with_certificate(self, to: PeerId, base: CommitId) -> None:
        raw = self.chain.certificate_on(base)
        if raw is not None:
            await self._peer.send((to,), Committed(self.config.unit, decode_certificate(raw)))

    # --- bytes ---

    async def serve_exchange(self, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        """A member brings its chunks for one of our slices. Raises as `ExchangeDriver.serve`."""
        await self._exchanging.serve(sender, hello, stream)

    async def serve_fetch(self, sender: PeerId, request: FetchRequest, stream: Stream) -> None:
        """Somebody asks for what we hold."""
        if isinstance(request, FetchState | FetchHashes) and not self.chain.is_sound:
            return  # an empty end: ask somebody else; and nothing is pinned for a download that will not come
        await self._transfer.serve(sender, request, stream)

    async def _gather_for_ack(self, settle: Settle) -> None:
        record = decode_record(settle.record)
        reducers = (part.reducer for part in record.slices)
        first = (*settle.holders, settle.ballot.peer, *reducers)
        if await self._gatherer.gather(record, tuple(dict.fromkeys((*first, *self._live_peers())))):
            await self.tell(BytesHeld(settle))

    def _is_silent(self, peer: PeerId) -> bool:
        return is_suspected(self.state, peer, self._tools.clock.monotonic_s())

    def _live_peers(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer, view in sorted(self.state.peers.items()) if not (view.lost or view.left))
