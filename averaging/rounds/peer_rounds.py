"""All rounds of one peer: hands what arrives from the network to its unit, and keeps what all units share.

One heartbeat covers all units (R4). A peer's sign of life or death counts for all of them. The heads of all units move together
when the spine changes to another lineage (R23 and R24).

Rules: R3, R4, R8, R23, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Network, Offload, Stream
from averaging.rounds.beat_sender import BEAT_CHANNEL, BeatSender
from averaging.rounds.exchange.carrier import CARRY_CHANNEL, serve_carry
from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL
from averaging.rounds.external_reducer import ExternalReducer, ExternalReducerContext, UnitShape
from averaging.rounds.head_vector import HeadVector, Mover, unit_move
from averaging.rounds.inbox import Inbox
from averaging.rounds.lineage.round_context import IsMember, Seal, Tasks, is_gone
from averaging.rounds.lineage.round_reports import HeadsMoved, Publish
from averaging.rounds.lineage.unit_chain import PreparedSwitch, UnitChain
from averaging.rounds.outbox import ROUND_CHANNEL, Outbox
from averaging.rounds.parting import PARTING_S
from averaging.rounds.spine_follower import SpineFollower, SpineMove
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, FRAME_WITHIN_S, read_request
from averaging.rounds.unit_service import RoundService
from protocol.errors import PeerUnreachable, PotluckError, RemoteProtocolError, TransportError
from protocol.identity.identity import Verifier
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, RunId, UnitName, short
from protocol.rounds import telling
from protocol.rounds.events import Event, MessageArrived, PeerLost, PeersListed
from protocol.rounds.failure_probes import is_large
from protocol.rounds.leading import leads
from protocol.rounds.lineage.lineage import SpineView
from protocol.rounds.messages.bounds import MAX_MEMBERS
from protocol.rounds.messages.heartbeat_delta import SAY_WHOLE
from protocol.rounds.messages.messages import Committed, Heartbeat, Leave, Member, Mend, Proposal, RoundMessage, Settle
from protocol.rounds.messages.requests import ExchangeHello, FetchChunk, FetchCommits, FetchRequest, FetchResult
from protocol.rounds.messages.wire import decode_body, decode_record, encode_message
from protocol.rounds.orders import SendHeartbeat
from protocol.rounds.queries import is_due_or_open, whom_we_miss
from protocol.rounds.state import OpenRound
from protocol.rounds.telling import own_head

log = structlog.get_logger()

SAY_AGAIN_AFTER_S: Final = (0.25, 0.5, 1.0, 2.0)
"""Pauses before a leader's message is sent again to peers that are up but did not take it, such as a peer that is just starting.
One member that misses a proposal costs everybody the whole deadline.
"""


@dataclass(frozen=True)
class PeerContext:
    """The interfaces and keys that all rounds of one peer share. `is_banned`: the peers that the host removed. They count as
    gone, whatever they send.
    """

    network: Network
    clock: Clock
    seal: Seal
    is_member: IsMember
    publish: Publish
    is_banned: Callable[[PeerId], bool] = lambda _: False


class PeerRounds:
    """The rounds of all units at one peer. `add` each of them, `serve` before the network starts, then `run`.

    `vector` keeps the record of moves of several units at once. `follower` follows the spine if this peer does not hold it.
    `lend(...)` makes this peer a reducer for units that it does not hold.
    """

    def __init__(
        self,
        run_id: RunId,
        verifier: Verifier,
        tools: PeerContext,
        vector: HeadVector,
        follower: SpineFollower | None = None,
    ) -> None:
        self._run_id = run_id
        self._verifier = verifier
        self._tools = tools
        self._vector = vector
        self._follower = follower
        self._services: dict[UnitName, RoundService] = {}
        self._by_name: tuple[RoundService, ...] = ()
        self._spine: SpineView | None = None if follower is None else follower.view
        self._tasks = Tasks(tools.publish)
        self._outbox = Outbox(tools.network, self._tasks, tools.is_banned, self._lose)
        self._inbox = Inbox(run_id, verifier, tools.clock, self._take)
        self._beats: dict[PeerId, tuple[float, UnitName]] = {}
        self._beat_sender = BeatSender(
            self._outbox, self._tasks, tools.clock, tools.seal, self._note_reply, self._are_many, self._note_silent
        )
        self._heartbeats = self._beat_sender.cache
        self._gone: set[PeerId] = set()
        self._external_reducer: ExternalReducer | None = None
        self._stood_at: dict[tuple[PeerId, UnitName], CommitId] = {}

    def lend(
        self,
        me: Member,
        offload: Offload,
        shapes: Mapping[UnitName, UnitShape],
        credential: Callable[[], bytes] = bytes,
    ) -> None:
        """Reduce, when asked, for units that are not held here. Call before `run`; `shapes` are those of all units of the run, and
        `credential` is our newest proof of admission.
        """
        tools = self._tools
        context = ExternalReducerContext(
            self._run_id, me, self._verifier, tools.network, offload, tools.seal, self.send, shapes, credential
        )
        self._external_reducer = ExternalReducer(context, self._tasks)

    def add(self, service: RoundService) -> None:
        """Add a unit, before `run`; the spine first."""
        self._services[service.unit] = service
        self._by_name = tuple(service for _, service in sorted(self._services.items()))
        if service.config.is_spine:
            state = service.state
            self._spine = SpineView(state.link.commit, state.tree)

    @property
    def services(self) -> Sequence[RoundService]:
        """The units' rounds, by name."""
        return self._by_name

    @property
    def spine(self) -> SpineView | None:
        """The spine as it is followed here."""
        return self._spine

    @property
    def spine_ready(self) -> int | None:
        """The spine's ready tokens in our heartbeats; None if this peer does not hold the spine."""
        holder = next((service for service in self._by_name if service.config.is_spine), None)
        return holder.state.tokens_ready if holder is not None else None

    def serve(self) -> None:
        """Answer on the round, exchange and fetch channels from now on."""
        network = self._tools.network
        network.serve_calls(ROUND_CHANNEL, self._on_call)
        network.serve_calls(BEAT_CHANNEL, self._on_short_beat)
        network.serve_streams(EXCHANGE_CHANNEL, self._on_exchange)
        network.serve_streams(FETCH_CHANNEL, self.serve_fetch)
        network.serve_streams(CARRY_CHANNEL, partial(serve_carry, self._check_member, self._services))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks.use(nursery)
            for service in self.services:
                await nursery.start(service.run)
            nursery.start_soon(trio.sleep_forever)  # a peer that only reduces has no service
            task_status.started()

    async def list_peers(self, peers: tuple[PeerId, ...]) -> None:
        """The directory lists these peers with credentials."""
        if self._follower is not None:
            self._follower.keep_holders(peers)
        await self.tell_all(PeersListed(peers))

    async def leave(self, parting_s: float = PARTING_S) -> None:
        """Hand over what was trained since the last commits, promise on disk to vote no more on these bases, and say goodbye, so that
        nobody waits for us (R3, R8).
        """
        async with trio.open_nursery() as nursery:
            for service in self.services:
                nursery.start_soon(service.leave, parting_s)

    async def tell_all(self, event: Event) -> None:
        """Give an event to the rounds of every unit."""
        for service in self.services:
            await service.tell(event)

    # --- to others ------------------------------------------------------------------------------------------------------------

    async def send(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        """Sign a message and deliver it to these peers, and to ourselves if we are named."""
        raw, me = await self._tools.seal(encode_message(message)), self._tools.network.peer_id
        if me in to:
            self._tasks.spawn(self._route, me, message, raw)
        others = tuple(peer for peer in to if peer != me)
        if others and isinstance(message, Proposal | Mend | Settle):
            self._tasks.spawn(self._lead, others, message, raw)
        elif others and isinstance(message, Heartbeat):
            self._tasks.spawn(self._beat_sender.send_whole, others, message, raw)
        elif others:
            self._tasks.spawn(self._deliver, others, message, raw)

    async def send_and_wait(self, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        """As `send`, but wait until each peer has it or cannot be reached."""
        await self._tasks.guarded(self._deliver, to, message, await self._tools.seal(encode_message(message)))

    async def _deliver(self, to: tuple[PeerId, ...], message: RoundMessage, raw: bytes) -> None:
        await self._outbox.deliver(to, raw, self._note_reply, gathers=self._may_gather(message))

    def _may_gather(self, message: RoundMessage) -> bool:
        """Whether another unit may soon have a message for the same peers: its round is due or open here, or all units say
        goodbye.
        """
        if isinstance(message, Heartbeat) or len(self._services) == 1:
            return False
        if isinstance(message, Leave):
            return True
        return any(is_due_or_open(each.state) for each in self._by_name if each.unit != message.unit)

    async def send_heartbeat(self, unit: UnitName, order: SendHeartbeat) -> None:
        """Report the heads of all units to these peers, unless another unit has just done so."""
        now_s = self._tools.clock.monotonic_s()
        to = tuple(peer for peer in order.to if order.is_question or not self._was_reported(peer, unit, now_s))
        for peer in to:
            self._beats[peer] = (now_s, unit)
        if not to:
            return
        await self._beat_sender.send(to, self._of_all_units(order.heartbeat, now_s))

    def _was_reported(self, peer: PeerId, unit: UnitName, now_s: float) -> bool:
        at_s, by = self._beats.get(peer, (-1e9, unit))
        if by == unit:
            return False
        service = self._services[unit]
        if self._is_exchanging():
            return now_s - at_s < service.config.ping_s / 2
        return now_s - at_s < telling.beat_interval_s(service.state, now_s) / 2

    def _is_exchanging(self) -> bool:
        return any(service.state.open.exchange is not None for service in self.services)

    def _of_all_units(self, heartbeat: Heartbeat, now_s: float) -> Heartbeat:
        """One heartbeat for all units: the head of each, the peers that any of them misses, and the slowest upload."""
        states = [service.state for service in self.services]
        if len(states) == 1:
            return heartbeat
        silent = dict.fromkeys(peer for state in states for peer in whom_we_miss(state, now_s))
        slowest_s = max(state.exchange_s for state in states)
        return replace(
            heartbeat,
            heads=tuple(own_head(state) for state in states),
            silent=tuple(silent)[:MAX_MEMBERS],
            upload_bytes_per_s=max(state.upload_bytes_per_s for state in states),
            exchange_ms=min(round(slowest_s * 1000), (1 << 32) - 1),
        )

    async def _lead(self, to: tuple[PeerId, ...], message: Proposal | Mend | Settle, raw: bytes) -> None:
        """Deliver the message of an attempt's leader. While we lead, send it again to peers that are up but did not take it."""
        missed: list[PeerId] = []

        async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
            if isinstance(reply, PotluckError) and not is_gone(reply):
                missed.append(peer)
            await self._note_reply(peer, reply)

        await self._outbox.deliver(to, raw, took, gathers=self._may_gather(message))
        for pause_s in SAY_AGAIN_AFTER_S:
            if not missed:
                return
            await trio.sleep(pause_s)
            if not leads(self._services[message.unit].state, message.ballot):
                return
            retried, missed[:] = tuple(missed), ()
            raw = await self._tools.seal(encode_message(message))
            await self._outbox.deliver(retried, raw, took, gathers=self._may_gather(message))

    async def _lose(self, peer: PeerId) -> None:
        await self.tell_all(PeerLost(peer, self._tools.clock.monotonic_s()))

    def _are_many(self) -> bool:
        return any(is_large(service.state) for service in self.services)

    async def _note_silent(self, peer: PeerId, since_s: float) -> None:
        log.info("peer_silent", peer=peer_name(peer))
        await self.tell_all(PeerLost(peer, since_s, is_silent=True))

    async def _note_reply(self, peer: PeerId, reply: bytes | PotluckError) -> None:
        """Note the result of one message of ours. A connection that broke twice is no death: a process that is gone refuses the
        second one.
        """
        if isinstance(reply, PeerUnreachable):
            self._heartbeats.not_taken(peer)
        if is_gone(reply):
            # once, until it answers again: messages to a peer that is gone fail every second
            (log.debug if peer in self._gone else log.info)("peer_gone", peer=peer_name(peer), reason=reply.one_line())
            self._gone.add(peer)
            await self._lose(peer)
        elif isinstance(reply, PotluckError):
            log.debug("not_delivered", to=peer_name(peer), reason=reply.one_line())
        else:
            self._gone.discard(peer)
            for service in self._services.values():
                service.note_answer(peer)

    # --- from others ----------------------------------------------------------------------------------------------------------

    async def _on_call(self, sender: PeerId, request: bytes) -> bytes:
        await self._check_member(sender)
        return await self._inbox.answer(sender, request)

    async def _take(self, sender: PeerId, message: RoundMessage, raw: bytes) -> None:
        if isinstance(message, Heartbeat):
            self._heartbeats.heard(sender, message)
        await self._route(sender, message, raw)

    async def _on_short_beat(self, sender: PeerId, request: bytes) -> bytes:
        await self._check_member(sender)
        heartbeat, is_understood = self._heartbeats.heard_short(sender, request)
        if heartbeat is not None:
            await self._route(sender, heartbeat, request)
        return b"" if is_understood else SAY_WHOLE

    async def _check_member(self, sender: PeerId) -> None:
        if not await self._tools.is_member(sender):
            raise RemoteProtocolError(
                f"{short(sender)} has shown no credential of this run", "a member", "join the run first"
            )

    async def _route(self, sender: PeerId, message: RoundMessage, raw: bytes) -> None:
        """Hand a message to all units, to its own unit, or to the follower of the spine."""
        if isinstance(message, Heartbeat):
            for each in self.services:
                if not each.note_heartbeat(message):
                    await each.tell(MessageArrived(sender, message, raw))
            if self._follower is not None:
                self._tasks.spawn(self._hear_of_spine, sender, message)
            return
        service = self._services.get(message.unit)
        if service is not None:
            await service.tell(MessageArrived(sender, message, raw))
            return
        if self._follower is not None and message.unit == self._follower.unit and isinstance(message, Committed):
            self._tasks.spawn(self._hear_of_spine, sender, message)
        if self._external_reducer is not None and isinstance(message, Proposal):
            self._external_reducer.take_proposal(sender, message)
        if self._external_reducer is not None and isinstance(message, Committed):
            self._external_reducer.end(sender, message.unit, decode_record(message.certificate.record).parent)

    async def _on_exchange(self, sender: PeerId, stream: Stream) -> None:
        """A member sends its chunks for one of our slices."""
        await self._check_member(sender)
        frame: bytes | None = None
        with trio.move_on_after(FRAME_WITHIN_S):
            frame = await stream.receive_frame()
        if frame is None:
            raise RemoteProtocolError("an exchange without a hello", "an ExchangeHello")
        hello = decode_body(ExchangeHello, frame)
        service = self._services.get(hello.unit)
        if service is not None:
            await service.serve_exchange(sender, hello, stream)
        elif self._external_reducer is not None:
            await self._external_reducer.serve_exchange(sender, hello, stream)
        else:
            raise TransportError(f"unit {hello.unit} is not held here", "a unit of ours")

    async def serve_fetch(self, sender: PeerId, stream: Stream) -> None:
        """Serve a peer that asks for our data; an empty end answers for what is not here."""
        await self._check_member(sender)
        request = await read_request(stream)
        service, follower = self._services.get(request.unit), self._follower
        if service is not None:
            self._note_where(sender, request)
            await service.serve_fetch(sender, request, stream)
        elif follower is not None and request.unit == follower.unit and isinstance(request, FetchCommits):
            await follower.serve_commits(request, stream)
        elif self._external_reducer is not None and isinstance(request, FetchResult):
            await self._external_reducer.serve_result(request, stream)
        elif self._external_reducer is not None and isinstance(request, FetchChunk):
            await self._external_reducer.serve_chunk(request, stream)

    def _note_where(self, sender: PeerId, request: FetchRequest) -> None:
        # a peer that has only verified a commit asks from that one alone (unit_mirror.py), and has yet to fetch its bytes
        if isinstance(request, FetchCommits) and len(request.known) > 1:
            self._stood_at[sender, request.unit] = request.known[0]

    def stood_at(self, peer: PeerId, unit: UnitName) -> CommitId | None:
        """The unit's head that a peer named when it last asked us for later commits; None if it never did."""
        return self._stood_at.get((peer, unit))

    # --- the spine ------------------------------------------------------------------------------------------------------------

    def spine_moved(self, spine: SpineView) -> None:
        """The spine has a new head, or more of its tree is known."""
        self._spine = spine
        for service in self.services:
            if not service.config.is_spine:
                service.note_spine()

    async def prepare_others(self, unit: UnitName, spine: SpineView, sources: tuple[PeerId, ...]) -> None:
        """Fetch what the other units need to follow the spine to another lineage. Does nothing if `unit` is not the spine."""
        if unit in self._services and not self._services[unit].config.is_spine:
            return
        async with trio.open_nursery() as nursery:
            for service in self.services:
                if not service.config.is_spine:
                    nursery.start_soon(service.prepare_with_spine, spine, sources)

    async def switch(self, unit: UnitName, prepared: PreparedSwitch) -> OpenRound:
        """Flip a unit to another lineage; with the spine, every unit that has to follow it. Raises as `HeadVector.move`."""
        service = self._services[unit]
        if not service.config.is_spine or len(self._services) == 1:
            return await service.chain.switch(prepared)
        opened: dict[UnitName, OpenRound] = {}
        mover = _chain_mover(service.chain, prepared, opened)
        await self._move_all(SpineView(prepared.path[-1].link.commit, service.state.tree), mover, opened)
        return opened[unit]

    async def _move_all(self, spine: SpineView, first: Mover, opened: dict[UnitName, OpenRound]) -> None:
        """Move the spine by `first`, and together with it every unit that has to follow and is ready."""
        joined: list[tuple[RoundService, PreparedSwitch]] = []
        for service in self.services:
            if not service.config.is_spine:
                prepared = await service.join_move(spine)
                if prepared is not None:
                    joined.append((service, prepared))
        movers = [first, *(_chain_mover(service.chain, prepared, opened) for service, prepared in joined)]
        try:
            await self._vector.move(movers)
        except PotluckError as error:
            for service, prepared in joined:
                await service.not_moved(prepared.path[-1].link.commit, error.one_line())
            raise
        self.spine_moved(spine)
        for service, _ in joined:
            await self._tasks.guarded(service.moved, opened[service.unit])
        log.info("heads_moved", units=[mover.move.unit for mover in movers])
        self._tools.publish(HeadsMoved(tuple(mover.move.unit for mover in movers)))

    async def _hear_of_spine(self, sender: PeerId, message: Heartbeat | Committed) -> None:
        follower = self._follower
        if follower is None:
            return
        before = follower.view
        if isinstance(message, Heartbeat):
            await follower.take_heartbeat(sender, message)
        else:
            await follower.take_committed(sender, message)
        await follower.follow(partial(self._follow_to, follower, sender))
        after = follower.view
        if after.head != before.head or after.tree is not before.tree:
            self.spine_moved(after)

    async def _follow_to(self, follower: SpineFollower, source: PeerId, spine: SpineView, move: SpineMove) -> None:
        """The spine's holders are on another lineage: our units follow in one step."""
        await self.prepare_others(follower.unit, spine, (source,))
        mover = Mover(
            unit_move(follower.unit, move.fork, move.path),
            follower.log,
            follower.moving,
            follower.has,
            partial(follower.flip, move),
        )
        await self._move_all(spine, mover, {})


def _chain_mover(chain: UnitChain, prepared: PreparedSwitch, opened: dict[UnitName, OpenRound]) -> Mover:
    """A unit that flips to the prepared switch; `opened` gets what is known of votes on its new head."""
    unit = chain.tools.unit

    async def flip() -> bool:
        opened[unit], is_written = await chain.flip(prepared)
        return is_written

    return Mover(unit_move(unit, prepared.fork, prepared.path), chain.tools.log, chain.moving, chain.line.has, flip)
