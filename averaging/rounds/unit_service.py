"""The round service: drives the round machine of one unit. It decides nothing: events in, orders out.

One task feeds events to `core.step` in order and performs the orders. Anything that waits (sending, taking a delta, moving bytes,
applying a commit) runs in its own task and comes back as an event. The orders are carried out in exchange_driver.py (contribution
and exchange), lineage_driver.py (commits and lineages) and trainer_updates.py (the trainer). peer_rounds.py delivers what arrives
from the network.

Rules: R3, R8, R12 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.audit.unit_audits import UnitAudits
from averaging.rounds.exchange.exchange_driver import ExchangeDriver
from averaging.rounds.fetching.gather_results import ExchangeView, Gatherer
from averaging.rounds.fetching.served_meanwhile import transfer_service
from averaging.rounds.fetching.state_quota import StateQuota
from averaging.rounds.fetching.state_repair import Healer
from averaging.rounds.lineage.round_context import Peerwide, RoundContext, Tasks
from averaging.rounds.lineage.round_reports import RoundReason, VoterConvicted
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import PreparedSwitch, UnitChain
from averaging.rounds.lineage_driver import LineageDriver
from averaging.rounds.named_peers import with_names
from averaging.rounds.parting import PARTING_S, Parting
from averaging.rounds.votes import logged_vote
from protocol.errors import PotluckError, StorageError
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, UnitName, short
from protocol.rounds import liveness
from protocol.rounds import machine as core
from protocol.rounds.events import (
    Applied,
    BytesHeld,
    Event,
    FlipOrdered,
    LeaveLogged,
    LeaveOrdered,
    MessageArrived,
    PeersAnswered,
    Progressed,
    RoundTicked,
    SpineMoved,
    SwitchFailed,
)
from protocol.rounds.lineage.lineage import SpineView
from protocol.rounds.messages.messages import Committed, Heartbeat, Leave, RoundMessage, Settle
from protocol.rounds.messages.requests import ExchangeHello, FetchHashes, FetchRequest, FetchState
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import (
    Action,
    AnswerWithCertificate,
    BeginExchange,
    CatchUp,
    Commit,
    DropMember,
    EndExchange,
    FetchSumProof,
    GatherBytes,
    GiveTime,
    LogAck,
    LogLeave,
    LogPromise,
    PrepareContribution,
    PrepareSwitch,
    ReportDoubleVote,
    Send,
    SendHeartbeat,
    Switch,
)
from protocol.rounds.queries import is_silent
from protocol.rounds.state import OpenRound, RoundConfig, RoundState, RoundStep
from protocol.rounds.telling import own_heartbeat

log = structlog.get_logger()

LEAVE_WITHIN_S: Final = 3.0
MAX_EVENTS: Final = 1000
"""The most events that may wait; senders of messages are slowed down beyond it."""

_WITH_PROGRESS: Final = (RoundTicked, Applied, LeaveOrdered)
"""The machine gets the trainer's progress before each of these events."""


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
        self._trainer_updates = TrainerUpdater(
            config.me.peer, chain, tools.trainer, tools.offload, self._run_tokens, tools.mixing, tools.record
        )
        self.wait_adopted = self._trainer_updates.wait_adopted
        """Waits until the trainer has an anchor, and every commit since."""

        if tools.steps_in_place and tools.mixing is None:
            chain.held.steps_in_place = True
        self._exchange_driver = ExchangeDriver(config, chain, tools, self._tasks, self.tell, peer.send)
        self._exchange_driver.probe = self._probe
        self._changes = self._exchange_driver.changes
        driver = self._exchange_driver
        view = ExchangeView(
            driver.is_exchanging,
            self._changes,
            arrivals=lambda: driver.arrivals,
            patience_s=lambda: driver.patience_s,
            is_silent=self._is_silent,
        )
        self._gatherer = Gatherer(tools.network, chain, view)
        driver.until_fetched = self._gatherer.until_fetched
        self._audits = UnitAudits(config, chain, tools, driver.shown, self._tasks, self.tell)
        self.work = self._audits.work
        """Fetches what an audit of a contributor's work needs."""

        self._healer = Healer(chain, tools.network, self._trainer_updates, tools.publish, self._live_peers)
        self._lineages = LineageDriver(
            chain, tools, self._gatherer, self._trainer_updates, self.tell, peer, lambda: self.state
        )
        self._transfer = transfer_service(chain)
        self._quota = StateQuota(chain.tools.grid, tools)
        self._transfer.asked = lambda: self._tasks.spawn(self._lineages.keep_asked)
        self._name = peer_name(config.me.peer)
        self.carry = driver.carry
        self.reason = "starting"
        self.waiting = ""

    @property
    def unit(self) -> UnitName:
        """The unit of these rounds."""
        return self.config.unit

    @property
    def state(self) -> RoundState:
        """The machine's state, for status. Before `run`, the state that it will start with."""
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
            self.chain.forget_tree()
        return self._state

    def _run_tokens(self, own: int) -> int:
        spine = None if self.config.is_spine else self._peer.spine
        return own if spine is None else spine.link.total_tokens

    @property
    def has_adopted(self) -> bool:
        """Whether the trainer knows of every commit that the machine has applied."""
        return self._trainer_updates.is_idle and self.state.link.commit == self.chain.state.head

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks.use(nursery)
            nursery.start_soon(self._trainer_updates.run)
            nursery.start_soon(self._healer.run)
            self._tasks.spawn(self._audits.load)
            if self.chain.tools.feedback is not None:
                nursery.start_soon(self.chain.tools.feedback.run)
            nursery.start_soon(self._tick)
            task_status.started()
            while True:
                await self._take(await self._receive_events.receive())
                while (event := self._waiting_event()) is not None:
                    await self._take(event)

    def _waiting_event(self) -> Event | trio.Event | None:
        """An event that is already there. Taking it here saves a turn of the scheduler, which costs more than most steps."""
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
        """Give the machine what it must know before this event: the spine's head, the peers that answered, and the trainer's
        progress.

        Progress comes with a tick and with a commit: the next opener then learns what we have ready, and does not hear again of
        tokens that were counted.
        """
        spine = self._peer.spine
        has_moved = spine is not None and spine is not self.state.spine and not self.config.is_spine
        if spine is not None and has_moved:
            # decide nothing on a lineage that the spine has left
            await self._step(SpineMoved(spine))
        if self._answers or self._heartbeats:
            heard, self._answers = tuple(self._answers.items()), {}
            heartbeats, self._heartbeats = tuple(self._heartbeats.values()), {}
            await self._step(PeersAnswered(heard, heartbeats))
        # A peer that has found its own state wrong opens no round from that moment on, whatever the event. A move of the spine
        # also reports what is ready for its next round.
        if isinstance(event, _WITH_PROGRESS) or has_moved or (self.state.can_contribute and not self.chain.is_sound):
            await self._step(self._progress())

    def note_answer(self, peer: PeerId) -> None:
        """Note that this peer answered a message. The machine learns it with the next event, or at once if it took the peer for
        dead.
        """
        self._answers[peer] = self._tools.clock.monotonic_s()
        view = self.state.peers.get(peer)
        if view is None or view.lost:
            self._tasks.spawn(self.drained)

    def note_heartbeat(self, heartbeat: Heartbeat) -> bool:
        """Whether this heartbeat from its own sender can wait for the next event, and will. Any other heartbeat must be given to
        the machine at once. Most heartbeats repeat what is known, and a step for each would cost more than everything that
        follows from them.
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
        """Give the machine an event; waits while too many are waiting."""
        try:
            self._send_events.send_nowait(event)
        except trio.WouldBlock:
            await self._send_events.send(event)

    async def drained(self) -> None:
        """Wait until the machine has taken all earlier events."""
        taken = trio.Event()
        await self._send_events.send(taken)
        await taken.wait()

    async def wait_changed(self) -> None:
        """Wait until something happens to the head, the exchange or the bytes on disk."""
        await self._changes.wait()

    async def leave(self, parting_s: float = PARTING_S) -> None:
        """Hand over what was trained since the last commit, for at most `parting_s` (R8). Promise on disk to vote no more on this
        base, and say goodbye, so that nobody waits for us (R3). Stay before that while others may need bytes that we alone have.
        """
        driver, tools = self._exchange_driver, self._tools
        parting = Parting(tools.network, tools.clock, self, lambda: driver.contribution)
        await parting.give(parting_s)
        await parting.stay()
        with trio.move_on_after(LEAVE_WITHIN_S):
            await self.tell(LeaveOrdered(base=parting.base, carrier=parting.carrier))
            await self._has_left.wait()

    # --- following the spine ---

    def note_spine(self) -> None:
        """The spine moved: let the machine see it."""
        self._tasks.spawn(self.drained)

    async def prepare_with_spine(self, spine: SpineView, sources: tuple[PeerId, ...]) -> None:
        """Prepare to follow the spine to another lineage."""
        await self._lineages.ask_with_spine(sources)
        await self.drained()
        await self._lineages.prepare_with_spine(spine, sources)

    async def join_move(self, spine: SpineView) -> PreparedSwitch | None:
        """The switch that this unit makes if the spine moves there; None if it has none ready. Its rounds stop until `moved` or
        `not_moved`.
        """
        prepared = self._lineages.prepared_with(spine)
        if prepared is None:
            return None
        await self.tell(FlipOrdered(prepared.fork, prepared.path))
        await self.drained()
        switching = self.state.switching
        if switching is None or not switching.is_with_spine or switching.target != prepared.state.head:
            return None  # its own head is moving: it follows by itself later
        self._lineages.leave(prepared)
        return prepared

    async def moved(self, open_round: OpenRound) -> None:
        """The head has reached the lineage that the spine asked for."""
        await self._lineages.moved(open_round)

    async def not_moved(self, target: CommitId, why: str) -> None:
        """The move failed."""
        await self.tell(SwitchFailed(target, why))

    # --- the loop ---

    async def _tick(self) -> None:
        """Tick forever. Starts again, with a tick at once, when a step has made the pause too long."""
        clock = self._tools.clock
        expected_s = clock.monotonic_s()
        while True:
            with trio.CancelScope() as self._ticking:
                while True:
                    now_s = clock.monotonic_s()
                    await self.tell(
                        RoundTicked(max(0.0, now_s - expected_s), self._exchange_driver.arrivals.bringing())
                    )
                    pause_s = liveness.next_tick_s(self.state)
                    expected_s = clock.monotonic_s() + pause_s
                    await trio.sleep(pause_s)

    def _progress(self) -> Progressed:
        progress = self._tools.trainer.progress()
        # a starting process has no tokens yet, and a round that counts on it would wait
        can = progress.state in ("training", "paused") and self.chain.is_sound
        ready = max(0, progress.tokens_ready - self._trainer_updates.pending_tokens)
        spine_ready = None if self.config.is_spine else self._peer.spine_ready
        driver = self._exchange_driver
        return Progressed(
            ready,
            can,
            driver.upload_bytes_per_s,
            due_tokens=progress.due_tokens,
            spine_ready=spine_ready,
            late_upload_s=driver.late_upload_s,
            standings=self._tools.host_word.standings(),
            hold=self._tools.host_word.hold(),
        )

    async def _step(self, event: Event) -> None:
        before = self.state
        step = self._judge(before, event)
        state = self._state = step.state
        self._log_reasons(step)
        for action in step.actions:
            await self._tasks.guarded(self._perform, action)
        if isinstance(event, LeaveLogged) and not any(isinstance(action, Send) for action in step.actions):
            self._has_left.set()
        if before.link.commit != state.link.commit:
            self._exchange_driver.head_moved()
            self._changes.notify()
        self._report_spine(before, state)
        if state.open is not before.open and liveness.next_tick_s(state) < liveness.next_tick_s(before):
            self._ticking.cancel()

    def _log_reasons(self, step: RoundStep) -> None:
        """Log what changed and what is waited for, once each. Results of single messages and orders go to the debug log."""
        if not (step.reason or step.remark or step.waiting or step.actions):
            return
        index, peer = step.state.link.index, self._name
        if step.reason and step.reason != self.reason:
            self.reason = step.reason
            log.info("round", reason=with_names(step.reason, step.state), index=index, peer=peer)
            self._tools.publish(RoundReason(step.reason))
        if step.waiting and step.waiting != self.waiting:
            self.waiting = step.waiting
            log.info("round_waits", reason=with_names(step.waiting, step.state), index=index, peer=peer)
        if step.remark:
            log.debug("round_remark", reason=step.remark, index=index, peer=peer)
        for action in step.actions:
            if not isinstance(action, SendHeartbeat):
                log.debug("round_order", order=type(action).__name__, reason=action.reason, index=index, peer=peer)

    def _report_spine(self, before: RoundState, state: RoundState) -> None:
        """If this unit is the spine, report its head to the other units. Wait while a flip is not yet known to the machine."""
        has_moved = state.link is not before.link or state.tree is not before.tree
        is_flipping = state.switching is not None and state.switching.is_flipping
        if has_moved and self.config.is_spine and not is_flipping:
            self._peer.spine_moved(SpineView(state.link.commit, state.tree))

    def _judge(self, state: RoundState, event: Event) -> RoundStep:
        """One step of the machine. A stranger's message may be refused but must never end this service."""
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
                self._exchange_driver.prepare(action.base, self._trainer_updates)
            case BeginExchange():
                self._exchange_driver.begin(action.proposal)
            case GiveTime():
                self._exchange_driver.give_time(action.ballot, action.reduce_within_s)
            case EndExchange():
                self._exchange_driver.end()
            case DropMember():
                self._exchange_driver.drop(action.peer, action.reason)
            case GatherBytes():
                self._tasks.spawn(self._gather_for_ack, action.settle)
            case LogAck() | LogPromise() | LogLeave():
                await self._vote(action)
            case AnswerWithCertificate():
                self._tasks.spawn(self._answer_with_certificate, action.to, action.base)
            case _:
                self._pursue(action)

    def _pursue(self, action: Commit | CatchUp | PrepareSwitch | Switch | ReportDoubleVote | FetchSumProof) -> None:
        match action:
            case FetchSumProof():
                self._tasks.spawn(self._audits.fetch, action)
            case ReportDoubleVote():
                self._tools.publish(VoterConvicted(action.voter, action.one, action.other))
            case Commit():
                self._tasks.spawn(self._lineages.commit, action, self._exchange_driver.contribution)
            case CatchUp():
                self._tasks.spawn(self._lineages.catch_up, action)
            case PrepareSwitch():
                self._tasks.spawn(self._lineages.prepare_switch, action)
            case Switch():
                self._tasks.spawn(self._lineages.switch, action)

    async def _vote(self, action: LogAck | LogPromise | LogLeave) -> None:
        """Write a vote to disk, in the order of the orders. A vote that cannot be written is never sent."""
        try:
            logged = await logged_vote(self.chain.tools.log, action, self.config.me.peer)
        except StorageError:
            if isinstance(action, LogLeave):
                self._has_left.set()  # leave without a goodbye: the others find out by themselves
            raise
        # the loop must not wait for itself
        self._tasks.spawn(self.tell, logged)

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
        """Ping a peer: a refused connection means that it is dead, an answer that it is alive (R12)."""
        heartbeat = own_heartbeat(self.state, self._tools.clock.monotonic_s())
        self._tasks.spawn(self._peer.send_heartbeat, self.unit, SendHeartbeat((peer,), heartbeat, is_question=True))

    async def _answer_with_certificate(self, to: PeerId, base: CommitId) -> None:
        if (certificate := self.chain.line.on(base)) is not None:
            await self._peer.send((to,), Committed(self.config.unit, certificate))

    # --- bytes ---

    async def serve_exchange(self, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        """Take a member's chunks for one of our slices. Raises as `ExchangeDriver.serve`."""
        await self._exchange_driver.serve(sender, hello, stream)

    async def serve_fetch(self, sender: PeerId, request: FetchRequest, stream: Stream) -> None:
        """Serve a peer that asks for our data."""
        if isinstance(request, FetchState | FetchHashes) and not self.chain.is_sound:
            return  # an empty end: the peer asks another one, and no generation is pinned for it
        if not self._quota.takes(sender, request):
            return  # as above: a stranger had its share of states here
        if not await self._audits.serve(request, stream):
            await self._transfer.serve(sender, request, stream)

    async def _gather_for_ack(self, settle: Settle) -> None:
        record = decode_record(settle.record)
        reducers = (part.reducer for part in record.slices)
        first = (*settle.holders, settle.ballot.peer, *reducers)
        if await self._gatherer.gather(record, tuple(dict.fromkeys((*first, *self._live_peers())))):
            await self._audits.look(record, self._exchange_driver.contribution)
            await self.tell(BytesHeld(settle))

    def _is_silent(self, peer: PeerId) -> bool:
        return is_silent(self.state, peer, self._tools.clock.monotonic_s())

    def _live_peers(self) -> tuple[PeerId, ...]:
        return tuple(peer for peer, view in sorted(self.state.peers.items()) if not (view.lost or view.left))
