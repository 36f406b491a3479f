"""The owner of synced steps: holds the bytes of what it asks for, hears replicas, and tells them what the machines decide.

What decides is in protocol/pipeline/synced/synced_group.py and synced.py. The owner keeps every stage's input and every gradient as
the bytes that it sends, until the step is taken, so whatever is lost is done again elsewhere with the same ones: of a micro-batch
one message each way for each boundary between stages. `held_bytes` says how much it is now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import structlog
import trio

from averaging.codecs.boundary import Boundary, decode_boundary
from peer.pipeline.seats.lane_keeper import GOODBYE_WITHIN_S, TICK_S
from peer.pipeline.transport.lane_calls import MEMBER_CHANNEL, CallLine
from peer.pipeline.transport.lane_outbox import Outbox, Postable
from peer.pipeline.transport.lane_work import PASS_COST_S, LaneContext
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline.messages import lane_messages as lane_msg
from protocol.pipeline.messages import synced_messages as synced_msg
from protocol.pipeline.messages.lane_wire import Said
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.pipeline.synced import synced
from protocol.pipeline.synced import synced_group as group
from protocol.pipeline.synced_routing import Work

log = structlog.get_logger()

Spares = Callable[[], tuple[tuple[PeerId, int], ...]]
"""Who serves nothing and could serve a stage."""


class SyncedOwner:
    """One group; `run` lasts as long as it does.

    Args:
        number: no other group's or lane's of the run.
        members: by the stages that they are to serve.
    """

    def __init__(
        self,
        number: int,
        tools: LaneContext,
        begun: tuple[group.GroupConfig, Mapping[PeerId, int], Point],
        spares: Spares,
    ) -> None:
        config, members, at = begun
        self.number = number
        self.most_held_bytes = 0
        self.waiting = ""
        self.commits: list[synced.Commit] = []
        """Newest last; the last hundred."""

        self._network = tools.network
        self._form = tools.form
        self._offload = tools.offload
        self._measured = tools.measured
        self._spares = spares
        self._begun = group.begin(config, number, members, at, trio.current_time())
        self.state = self._begun.state
        self._lines: dict[PeerId, CallLine] = {}
        self._outboxes: dict[PeerId, Outbox] = {}
        self._held: dict[Work, bytes] = {}
        self._arrived: dict[tuple[PeerId, Point, Work], tuple[synced_msg.SyncedReply, bytes]] = {}
        """Not yet looked at, in the order in which they came."""

        self._has_more = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._over = trio.Event()

    @property
    def held_bytes(self) -> int:
        """Of this step, held for whatever has to be done again."""
        return sum(map(len, self._held.values()))

    @property
    def waiting_bytes(self) -> int:
        """Of replies that were not looked at yet: one at most of each replica for each piece of its work."""
        return sum(len(data) for _, data in self._arrived.values())

    @property
    def bound_bytes(self) -> int:
        """What is held at most: of each micro-batch one message each way for each boundary between stages."""
        config, at = self._form.config, Point(0, 0)
        ways = [
            self._boundary_of(Work(0, stage, way), at) for stage in range(config.num_stages) for way in (False, True)
        ]
        of_one = sum(boundary.message_bytes for boundary in ways if boundary is not None)
        return (config.num_micro_batches + config.heldout_passes) * of_one

    async def run(self) -> group.GroupState:
        """From the group's beginning to its end."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._perform_all(self._begun.orders)
            nursery.start_soon(self._take_replies)
            await self._tick()
            with trio.move_on_after(GOODBYE_WITHIN_S):
                while self._lines:
                    await trio.sleep(TICK_S)
            nursery.cancel_scope.cancel()
        self._nursery = None
        return self.state

    async def _tick(self) -> None:
        ticked_s = trio.current_time()
        while not self._over.is_set():
            for peer, stage in self._spares():
                if peer not in self.state.members:
                    self._feed(group.Came(peer, stage))
            self._feed(group.Ticked(max(0.0, trio.current_time() - ticked_s - 2 * TICK_S)))
            ticked_s = trio.current_time()
            with trio.move_on_after(TICK_S):
                await self._over.wait()

    # --- what replicas say ---

    def hear(self, sender: PeerId, message: Said) -> None:
        """A replica's word.

        Raises:
            RemoteProtocolError: it is no replica of this group, or says what replicas do not say.
        """
        member = self.state.members.get(sender)
        if member is None:
            raise RemoteProtocolError(f"{short(sender)} about group {self.number}", "a replica of it")
        match message:
            case synced_msg.SyncedReady():
                self._feed(group.Ready(sender, message.at, message.weights_hash))
            case synced_msg.SyncedSummed():
                numbers = frozenset(message.numbers)
                self._feed(group.InStep(message.at, synced.SumDelivered(sender, numbers)))
            case synced_msg.SyncedNotSummed():
                self._feed(group.InStep(message.at, synced.ReplicaLost(sender)))
                self._feed(group.InStep(message.at, synced.ReplicaJoined(sender, member.stage)))
            case lane_msg.LaneSquare():
                self._feed(group.Squared(sender, message.at, message.square))
            case lane_msg.LaneLeave():
                self._hang_up(sender)
                self._feed(group.Lost(sender))
            case lane_msg.LaneHere():
                self._feed(group.Heard(sender))
            case _:
                raise RemoteProtocolError(f"{type(message).__name__} from a replica", "a replica's word")

    def await_reply(self, sender: PeerId, reply: synced_msg.SyncedReply) -> bool:
        """Before what came of work is taken: whose word it is, of which work, how long what follows has to be, and whether that is
        wanted. It is not where it is late, is here already, or waits here of the same replica, whatever else that says of it.

        Raises:
            RemoteProtocolError: it is no replica of that stage, or no reply to work of a step.
        """
        member, config = self.state.members.get(sender), self._form.config
        if member is None or member.stage != reply.stage:
            raise RemoteProtocolError(f"{short(sender)}'s reply for stage {reply.stage}", "a replica of it")
        if reply.number >= config.num_micro_batches + (0 if reply.is_backward else config.heldout_passes):
            raise RemoteProtocolError(f"micro-batch {reply.number}", "one of a step")
        boundary = self._boundary_of(reply.work, reply.at)
        is_done = boundary is not None and not reply.declined and not reply.is_spoilt
        expected_bytes = boundary.message_bytes if boundary is not None and is_done else 0
        if reply.num_bytes != expected_bytes:
            self._feed(group.InStep(reply.at, synced.Declined(sender, reply.work)))
            raise RemoteProtocolError(f"{reply.num_bytes} bytes of a reply", f"{expected_bytes}")
        step = self.state.step
        if reply.at != self.state.at or step is None or (sender, reply.at, reply.work) in self._arrived:
            return False
        if is_done and not synced.is_due(step, reply.work):  # the machine says what becomes of it, and holds none of it
            self._feed(group.InStep(reply.at, synced.Finished(sender, reply.work, reply.loss_nats)))
            return False
        return True

    def take_reply(self, sender: PeerId, reply: synced_msg.SyncedReply, data: bytes) -> None:
        """What came of work, where it is wanted.

        Raises:
            RemoteProtocolError: as `await_reply`.
        """
        if self.await_reply(sender, reply):
            self._arrived[sender, reply.at, reply.work] = reply, data
            self._has_more.set()

    async def _take_replies(self) -> None:
        while True:
            while not self._arrived:
                self._has_more = trio.Event()
                await self._has_more.wait()
            key = next(iter(self._arrived))
            await self._take(key[0], *self._arrived[key])
            del self._arrived[key]

    async def _take(self, sender: PeerId, reply: synced_msg.SyncedReply, data: bytes) -> None:
        work, at = reply.work, reply.at
        if at != self.state.at:
            return
        if reply.declined:
            log.debug("synced_declined", by=short(sender), reason=reply.declined)
            self._feed(group.InStep(at, synced.Declined(sender, work)))
        elif reply.is_spoilt:
            self._feed(group.InStep(at, synced.Spoilt(work.number)))
        elif await self._is_sound(sender, reply, data) and at == self.state.at:
            if data:
                self._held.setdefault(work, data)
                self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
            self._feed(group.InStep(at, synced.Finished(sender, work, reply.loss_nats)))
            if work.number >= self._form.config.num_micro_batches and work.stage == self._form.config.num_stages - 1:
                self._let_go(work.number)

    def _let_go(self, number: int) -> None:
        """Held-out text that was measured goes nowhere any more."""
        for stage in range(self._form.config.num_stages):
            self._held.pop(Work(number, stage, False), None)

    async def _is_sound(self, sender: PeerId, reply: synced_msg.SyncedReply, data: bytes) -> bool:
        """Checked to the last value: what is held is given to others."""
        boundary = self._boundary_of(reply.work, reply.at)
        if boundary is None:
            return True
        try:
            await self._offload.run(partial(decode_boundary, data, boundary), cost_s=PASS_COST_S / 10)
        except RemoteProtocolError as error:
            log.warning("lane_refused", sender=short(sender), reason=error.one_line())
            self._feed(group.InStep(reply.at, synced.Declined(sender, reply.work)))
            return False
        return True

    def _boundary_of(self, work: Work, at: Point) -> Boundary | None:
        """What goes on from this work; None where nothing does."""
        towards = work.stage - 1 if work.is_backward else work.stage + 1
        if not 0 <= towards < self._form.config.num_stages:
            return None
        return self._form.boundary(self.number, towards, 0, at, Pass(work.number, work.is_backward))

    # --- what the machine orders ---

    def _feed(self, event: group.Event) -> None:
        done = group.step(self.state, event, trio.current_time())
        self.state = done.state
        if isinstance(event, group.Ticked) and done.waiting != self.waiting:
            self.waiting = done.waiting
            log.info("synced_waits", lane=self.number, reason=done.waiting)
        if done.remark:
            log.debug("synced_remark", lane=self.number, remark=done.remark)
        self._perform_all(done.orders)

    def _perform_all(self, orders: tuple[group.Order, ...]) -> None:
        for order in orders:
            self._perform(order)

    def _perform(self, order: group.Order) -> None:
        number = self.number
        match order:
            case group.Begin():
                self._tell(order.peer, synced_msg.SyncedBegin(number, order.at, order.stage, order.donors))
                self._tell(order.peer, lane_msg.LanePing(number, 0, 1))  # who is told much hears no other
            case group.Beside():
                for peer in order.peers:
                    self._tell(peer, synced_msg.SyncedBeside(number, order.peers))
                for peer in [peer for peer in self._lines if peer not in self.state.members]:
                    self._hang_up(peer)
            case group.OfStep():
                self._in_step(order.at, order.order)
            case group.TakeStep():
                self._held.clear()
                for peer in order.peers:
                    self._tell(peer, synced_msg.SyncedStep(number, order.at, order.whole_square, order.counted))
            case group.Bring():
                for peer, tokens in order.tokens:
                    self._tell(peer, synced_msg.SyncedBring(number, order.at, tokens))
            case group.End():
                log.info("synced_ends", lane=number, reason=order.reason, lost_tokens=order.lost_tokens)
                for peer in order.peers:
                    self._tell(peer, lane_msg.LaneEnd(number, 0, self.state.at, 0, (), order.reason[:200]))
                if self.state.phase == "over":
                    self._held.clear()
                    self._over.set()

    def _in_step(self, at: Point, order: synced.Order) -> None:
        number = self.number
        match order:
            case synced.Ask():
                self._ask(order.peer, at, order.work)
            case synced.Grant():
                self._tell(order.peer, synced_msg.SyncedGrant(number, at, order.number))
            case synced.Drop():
                self._tell(order.peer, synced_msg.SyncedDrop(number, at, order.number))
            case synced.StartAgain():
                self._tell(order.peer, synced_msg.SyncedAgain(number, at, order.reason[:200]))
            case synced.Sum():
                self._tell(order.peer, synced_msg.SyncedTellSum(number, at, synced_msg.as_numbers(order.numbers)))
            case synced.Commit():
                self._commit(at, order)
            case synced.Measured():
                log.info("synced_measured", lane=number, round=at.round, nats=order.nats)
                self._measured(at.round, order.nats)

    def _commit(self, at: Point, order: synced.Commit) -> None:
        self.commits = [*self.commits[-99:], order]
        if order.removed:
            log.warning("micro_batches_removed", lane=self.number, at=str(at), numbers=sorted(order.removed))
        for stage, sums in order.sums:
            parts = tuple(synced_msg.SyncedPart(peer, synced_msg.as_numbers(numbers)) for peer, numbers in sums)
            for peer in self.state.of_stage(stage, ready=True):
                self._tell(peer, synced_msg.SyncedCommit(self.number, at, parts))

    def _ask(self, peer: PeerId, at: Point, work: Work) -> None:
        forward = self._held.get(Work(work.number, work.stage - 1, False), b"")
        backward = self._held.get(Work(work.number, work.stage + 1, True), b"") if work.is_backward else b""
        parcel = synced_msg.SyncedAsk(
            self.number, at, work.stage, work.number, work.is_backward, len(forward), len(backward)
        )
        self._outbox(peer).put(parcel, forward + backward)

    # --- the ways to replicas ---

    def _tell(self, peer: PeerId, message: Said) -> None:
        line = self._lines.get(peer)
        if line is None and self._nursery is not None:
            line = self._lines[peer] = CallLine(
                self._network, peer, MEMBER_CHANNEL, partial(self._answered, peer),
                lambda: lane_msg.LanePing(self.number, 0, 1),
            )  # fmt: skip
            self._nursery.start_soon(self._run_line, peer, line)
        if line is not None:
            line.put(message)

    def _answered(self, peer: PeerId, message: Said, refused: str) -> None:
        if isinstance(message, lane_msg.LaneEnd):
            self._hang_up(peer)
        elif refused:
            log.info("synced_refused", lane=self.number, member=short(peer), reason=refused)
            self._hang_up(peer)
            self._feed(group.Lost(peer))
        else:
            self._feed(group.Heard(peer))

    async def _run_line(self, peer: PeerId, line: CallLine) -> None:
        try:
            await line.run()
        except PotluckError as error:
            log.info("synced_replica_lost", lane=self.number, member=short(peer), reason=error.one_line())
            if self._lines.get(peer) is line:
                self._hang_up(peer)
                self._feed(group.Lost(peer))

    def _hang_up(self, peer: PeerId) -> None:
        line, outbox = self._lines.pop(peer, None), self._outboxes.pop(peer, None)
        for way in (line, outbox):
            if way is not None:
                way.scope.cancel()

    def _outbox(self, peer: PeerId) -> Outbox:
        outbox = self._outboxes.get(peer)
        if outbox is None:
            outbox = self._outboxes[peer] = Outbox(self._network, peer, partial(self._refused, peer))
            if self._nursery is not None:
                self._nursery.start_soon(self._carry, peer, outbox)
        return outbox

    async def _carry(self, peer: PeerId, outbox: Outbox) -> None:
        try:
            await outbox.run()
        except PotluckError as error:
            log.info("synced_outbox_ended", to=short(peer), reason=error.one_line())
            if self._outboxes.get(peer) is outbox:
                del self._outboxes[peer]

    def _refused(self, peer: PeerId, parcel: Postable, reason: str) -> None:
        log.info("synced_refused", lane=self.number, member=short(peer), reason=reason)
        if (
            isinstance(parcel, synced_msg.SyncedAsk) and parcel.at == self.state.at
        ):  # what fits nobody here is not sent again
            self._hang_up(peer)
            self._feed(group.Lost(peer))
