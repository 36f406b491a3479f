"""One peer's seat in a lane. The stage machine decides (protocol/pipeline/stage_machine.py), and the seat carries out its orders.

Activations and gradients go to the adjacent stages, snapshots to the neighbour that keeps a second copy, and reports to the
keeper. A seat lasts until its keeper ends the lane, is gone, or gives the seat to another peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Stream
from peer.pipeline.seats.held_snapshots import HeldSnapshots
from peer.pipeline.stage.stage_snapshot import Written, check_snapshot, most_snapshot_bytes, theta_of
from peer.pipeline.transport.lane_calls import KEEPER_CHANNEL, CallLine, until_silent
from peer.pipeline.transport.lane_outbox import (
    Outbox,
    Postable,
    fetch_copy,
    receive_bytes,
    receive_memory,
    send_parcel,
)
from peer.pipeline.transport.lane_work import PASS_COST_S, LaneContext, LaneShare
from protocol.errors import PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline import stage_machine as lane_stage
from protocol.pipeline.lanes.lane_machine import neighbour
from protocol.pipeline.messages import lane_messages as msg
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.tensors.stage_schema import stage_schema

log = structlog.get_logger()

KEEPER_SILENT_S: Final = 8.0
"""Silence after which the keeper is taken to be gone, or to have given this seat to another peer."""

_STEPS_REMEMBERED: Final = 2
_FETCH_TRIES: Final = 3


class LaneSeat:
    """One stage of one lane at this peer. `run` lasts as long as the seat.

    Args:
        members: of the lane, by stage.
        begun: how the stage begins (`lane_stage.begin` or `lane_stage.join`).
    """

    def __init__(
        self,
        tools: LaneContext,
        lane: int,
        keeper: PeerId,
        members: tuple[PeerId, ...],
        begun: lane_stage.StageTransition,
    ) -> None:
        self.lane = lane
        self.keeper = keeper
        self.members = members
        self.state = begun.state
        self.reason = ""
        """Why the seat is over."""

        self._tools = tools
        self._work = tools.work_of(lane, begun.state.stage)
        self._line = CallLine(tools.network, keeper, KEEPER_CHANNEL, self._answered)
        self._orders = deque((begun.state.epoch, order) for order in begun.orders)
        self._has_more = trio.Event()
        self._early = trio.Event()
        self._working = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._heard_s = trio.current_time()
        self._outboxes: dict[tuple[PeerId, bool], Outbox] = {}
        self._serving: dict[int, trio.CancelScope] = {}
        self._taken = set[tuple[Point, Pass]]()
        self.snapshots = HeldSnapshots()
        self._ended: msg.LaneEnd | None = None

    @property
    def stage(self) -> int:
        """The stage served."""
        return self.state.stage

    @property
    def epoch(self) -> int:
        """Epoch of the lane's current timeline."""
        return self.state.epoch

    @property
    def _neighbour(self) -> PeerId:
        """The neighbour that keeps the second copy of our snapshots."""
        return self.members[neighbour(self.stage, len(self.members))]

    @property
    def _copied_stage(self) -> int:
        """The stage whose second copy is kept here."""
        return (self.stage - 1) % len(self.members)

    async def run(self) -> tuple[LaneShare, ...]:
        """Serve until the seat is over. Returns the shares to contribute in the lane's name: usually none."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._report_to_keeper)
            nursery.start_soon(self._watch_keeper)
            nursery.start_soon(self.snapshots.keep_freeing, self._tools.offload)
            self._open_ways()
            nursery.start_soon(self._fetch_early)
            await self._begin()
            while self.state.phase != "over":
                await self._next_order()
            nursery.cancel_scope.cancel()
        self._nursery = None
        self._close_streams()
        shares = await self._shares()
        self.snapshots.forget_all()
        await self.snapshots.free(self._tools.offload)
        return shares

    # --- messages from the keeper ---

    def hear(self, message: msg.LaneMessage) -> None:
        """Handle a keeper's message. The stage machine ignores messages of an earlier epoch."""
        self._heard_s = trio.current_time()
        match message:
            case msg.LaneStep():
                self._feed(lane_stage.StepAgreed(message.epoch, message.at, message.whole_square))
            case msg.LaneKeep():
                self._keep_from(message)
            case msg.LaneResume():
                self._feed(lane_stage.Resumed(message.epoch))
            case msg.LaneBack():
                self._go_back(message)
            case msg.LaneEnd():
                self._ended = message
                self.finish(f"the lane is dissolved: {message.reason}")
            case msg.LaneBegin() | msg.LanePing():
                pass

    def leave(self, reason: str) -> None:
        """Say goodbye to the keeper. The seat is over when the keeper has answered."""
        log.info("lane_left", lane=self.lane, stage=self.stage, reason=reason)
        self._line.put(msg.LaneLeave(self.lane, self.state.epoch, reason[:200]))

    def finish(self, reason: str) -> None:
        """End the seat."""
        self.reason = self.reason or reason
        self._feed(lane_stage.LaneDissolved())
        self._working.cancel()
        self._has_more.set()

    def _keep_from(self, message: msg.LaneKeep) -> None:
        if message.epoch == self.state.epoch:
            self.snapshots.forget_before(message.at)
        self._feed(lane_stage.SnapshotWhole(message.epoch, message.at))

    def _go_back(self, message: msg.LaneBack) -> None:
        if message.epoch <= self.state.epoch:
            return
        self.members = message.members
        self._close_streams()
        self._taken.clear()
        self.snapshots.forget_after(message.at)
        self._working.cancel()
        self._open_ways()
        self._feed(lane_stage.WentBack(message.epoch, message.at, message.counted))

    def _open_ways(self) -> None:
        """Connect to the adjacent stages while snapshots still load, so that the first micro-batch waits for no connection."""
        for stage in (self.stage - 1, self.stage + 1):
            if self._nursery is not None and 0 <= stage < len(self.members):
                self._outbox(self.members[stage], is_copy=False)

    def _close_streams(self) -> None:
        for outbox in self._outboxes.values():
            outbox.scope.cancel()
        self._outboxes.clear()
        for scope in self._serving.values():
            scope.cancel()

    # --- messages to the keeper ---

    def _answered(self, message: msg.LaneMessage, refused: str) -> None:
        if not isinstance(message, msg.LaneHere):  # the keeper lives, but must still call us by itself
            self._heard_s = trio.current_time()
        if isinstance(message, msg.LaneLeave):
            self.finish(message.reason)
        elif refused:
            self.finish(f"the lane's keeper refuses what this stage says: {refused}")

    async def _report_to_keeper(self) -> None:
        try:
            await self._line.run()
        except PotluckError as error:
            self.finish(f"the lane's keeper is gone: {error.one_line()}")

    async def _watch_keeper(self) -> None:
        await until_silent(
            self._line, lambda: msg.LaneHere(self.lane, self.epoch), lambda: self._heard_s, KEEPER_SILENT_S
        )
        self.finish(f"the lane's keeper was not heard for {KEEPER_SILENT_S:g} s")

    # --- orders of the stage machine ---

    def _feed(self, event: lane_stage.Event) -> str:
        done = lane_stage.step(self.state, event)
        self.state = done.state
        self._orders.extend((done.state.epoch, order) for order in done.orders)
        if done.orders:
            self._has_more.set()
        if done.remark:
            log.debug("lane_remark", lane=self.lane, stage=self.stage, remark=done.remark)
        return done.remark

    async def _next_order(self) -> None:
        while not self._orders:
            self._has_more = trio.Event()
            if self.state.phase == "over":
                return
            await self._has_more.wait()
        epoch, order = self._orders.popleft()
        if epoch != self.state.epoch or self.state.phase == "over":
            return
        with trio.CancelScope() as self._working:
            try:
                await self._perform(epoch, order)
            except PotluckError as error:
                if isinstance(order, lane_stage.LoadSnapshot):
                    self._line.put(msg.LaneLoadFailed(self.lane, epoch, error.one_line()[:200]))
                else:
                    self.leave(error.one_line())

    async def _perform(self, epoch: int, order: lane_stage.Order) -> None:
        match order:
            case lane_stage.RunPass():
                await self._run_pass(epoch, order)
            case lane_stage.TellSquare():
                square = await self._work.square()
                self._line.put(msg.LaneSquare(self.lane, epoch, order.at, square))
            case lane_stage.TakeStep():
                counts = await self._work.take_step(order.at, order.whole_square)
                self._feed(lane_stage.StepTaken(epoch, order.at, counts))
            case lane_stage.TakeSnapshot():
                if self._nursery is not None:
                    hold = partial(self._hold, epoch, order.at)
                    await self.snapshots.take(self._nursery, self._work.snapshot, hold)
                self._feed(lane_stage.SnapshotTaken(epoch, order.at))
            case lane_stage.LoadSnapshot():
                await self._load(epoch, order.at)
            case lane_stage.Contribute():
                theta_N = await self._work.theta()
                share = LaneShare(self.lane, self.stage, order.round, order.tokens, theta_N)
                anchor_N = await self._tools.average(share)
                await self._work.adopt(anchor_N)
                self._feed(lane_stage.Adopted(epoch, order.round))

    async def _begin(self) -> None:
        """Make the stage. If that fails, give the seat back."""
        try:
            await self._work.open()
        except PotluckError as error:
            self.leave(error.one_line())

    async def _run_pass(self, epoch: int, order: lane_stage.RunPass) -> None:
        at, work = order.at, order.work
        message = await self._work.run_pass(epoch, at, work)
        if message is not None:
            to = self.members[self.stage - 1 if work.is_backward else self.stage + 1]
            passed = msg.LanePassed(self.lane, epoch, at, work.number, work.is_backward, len(message))
            self._outbox(to, is_copy=False).put(passed, message)
        self._feed(lane_stage.PassDone(epoch, at, work))

    async def _hold(self, epoch: int, at: Point, written: Written) -> None:
        """Write a snapshot, copy it to the neighbour and report it, beside the next passes. Nothing is kept if the lane goes back."""
        try:
            with self.until_it_goes_back():
                data = await written()
                if epoch == self.state.epoch:
                    self.snapshots.own[at] = data
                    await self._copy_to_neighbour(epoch, at)
                    self._line.put(msg.LaneCopied(self.lane, epoch, at))
        except PotluckError as error:
            if epoch == self.state.epoch:
                self.leave(error.one_line())

    async def _copy_to_neighbour(self, epoch: int, at: Point) -> None:
        """Returns once the neighbour holds our snapshot of this point."""
        if self._neighbour != self.members[self.stage] and self.snapshots.copied_to.get(at) != self._neighbour:
            holder, data = self._neighbour, self.snapshots.own[at]
            copy = msg.LaneCopy(self.lane, epoch, at, self.stage, len(data))
            if await self._outbox(holder, is_copy=True).put(copy, data).wait() is None:
                raise PeerUnreachable(f"{short(holder)} has no copy of stage {self.stage}", "a neighbour that takes it")
            self.snapshots.copied_to[at] = holder

    async def _load(self, epoch: int, at: Point) -> None:
        """Load the snapshot of this point. A spare fetches it from the neighbour; other members have it, and copy it to a
        neighbour that is new.
        """
        await self._early.wait()
        if at not in self.snapshots.own:
            await self._fetch(epoch, at)
        await self._work.restore(self.snapshots.own[at])
        await self._copy_to_neighbour(epoch, at)
        self._feed(lane_stage.SnapshotLoaded(epoch))
        self._line.put(msg.LaneLoaded(self.lane, epoch))

    async def _fetch(self, epoch: int, at: Point) -> None:
        holder, wanted = self._neighbour, msg.LaneFetch(self.lane, epoch, at, self.stage)
        most_bytes = most_snapshot_bytes(stage_schema(self._tools.stages, self.stage))
        self.snapshots.own[at] = await fetch_copy(self._tools.network, holder, wanted, most_bytes, tries=_FETCH_TRIES)
        self.snapshots.copied_to[at] = holder

    async def _fetch_early(self) -> None:
        """Fetch a spare's snapshot while its stage is being made: the lane waits for both."""
        epoch, order = self._orders[0] if self._orders else (self.state.epoch, None)
        try:
            if isinstance(order, lane_stage.LoadSnapshot):
                await self._fetch(epoch, order.at)
        except PotluckError as error:  # fetched again when it is to be loaded
            log.debug("snapshot_not_fetched_early", lane=self.lane, stage=self.stage, reason=error.one_line())
        finally:
            self._early.set()

    def _outbox(self, peer: PeerId, *, is_copy: bool) -> Outbox:
        """The outbox to a peer: one for passes, another for snapshots, because these are long and would delay the passes."""
        outbox = self._outboxes.get((peer, is_copy))
        if outbox is None:
            outbox = self._outboxes[peer, is_copy] = Outbox(
                self._tools.network, peer, self._refused, is_early=not is_copy
            )
            if self._nursery is not None:
                self._nursery.start_soon(self._bring, outbox)
        return outbox

    async def _bring(self, outbox: Outbox) -> None:
        try:
            await outbox.run()
        except PotluckError as error:
            self.leave(error.one_line())

    def _refused(self, parcel: Postable, reason: str) -> None:
        if parcel.epoch == self.state.epoch and self.state.phase != "over":
            self.leave(f"what this stage sends is refused: {reason}")

    # --- parcels and requests of other members ---

    @contextmanager
    def until_it_goes_back(self) -> Iterator[None]:
        """Waits in this context end when the lane goes back or is over."""
        with trio.CancelScope() as scope:
            self._serving[id(scope)] = scope
            try:
                yield
            finally:
                del self._serving[id(scope)]

    async def serve(self, sender: PeerId, parcel: msg.LaneParcel, stream: Stream) -> bool:
        """Take what a member sends in this epoch, or give what it asks for. Returns whether to answer.

        Raises:
            RemoteProtocolError: why it is refused. Nothing was computed and nothing counts.
        """
        match parcel:
            case msg.LanePassed():
                await self._take_passed(sender, parcel, stream)
            case msg.LaneCopy():
                await self._take_copy(sender, parcel, stream)
            case msg.LaneFetch():
                await self._give_copy(sender, parcel, stream)
                return False
            case _:
                raise RemoteProtocolError("an answer to nothing", "a parcel")
        return True

    async def _take_passed(self, sender: PeerId, parcel: msg.LanePassed, stream: Stream) -> None:
        place = self.stage + 1 if parcel.is_backward else self.stage - 1
        self._require_member(sender, place, f"{'gradients' if parcel.is_backward else 'activations'}")
        key, event = (parcel.at, parcel.work), lane_stage.Arrived(parcel.epoch, parcel.at, parcel.work)
        is_again = key in self._taken
        remark = "" if is_again else lane_stage.step(self.state, event).remark
        form = self._tools.form
        expected_bytes = form.boundary(self.lane, self.stage, parcel.epoch, parcel.at, parcel.work).message_bytes
        if remark or parcel.num_bytes != expected_bytes:
            raise RemoteProtocolError(
                remark or f"{parcel.num_bytes} bytes for a pass", f"{expected_bytes} of this step"
            )
        message = await receive_bytes(stream, parcel.num_bytes)
        if is_again:
            return
        await self._work.arrived(message, parcel.epoch, parcel.at, parcel.work)
        if parcel.epoch != self.state.epoch or key in self._taken:
            return
        remark = self._feed(event)
        if remark:
            raise RemoteProtocolError(remark, "work of this step")
        self._remember(key)

    def _remember(self, key: tuple[Point, Pass]) -> None:
        """Remember what was taken for as long as it may be sent again."""
        self._taken.add(key)
        inner_steps, now = self._tools.config.inner_steps, self.state.at
        now_step = now.round * inner_steps + now.step
        self._taken = {
            (at, work) for at, work in self._taken if now_step - (at.round * inner_steps + at.step) <= _STEPS_REMEMBERED
        }

    async def _take_copy(self, sender: PeerId, parcel: msg.LaneCopy, stream: Stream) -> None:
        self._require_member(sender, self._copied_stage, "a snapshot")
        most_bytes = most_snapshot_bytes(stage_schema(self._tools.stages, self._copied_stage))
        if parcel.stage != self._copied_stage or parcel.num_bytes > most_bytes:
            raise RemoteProtocolError(f"{parcel}", f"stage {self._copied_stage}, at most {most_bytes} bytes")
        data = await receive_memory(stream, parcel.num_bytes)
        schema = stage_schema(self._tools.stages, self._copied_stage)
        await self._tools.offload.run(partial(check_snapshot, data, schema), cost_s=PASS_COST_S)
        if parcel.epoch == self.state.epoch:
            self.snapshots.copies[parcel.at] = data

    async def _give_copy(self, sender: PeerId, parcel: msg.LaneFetch, stream: Stream) -> None:
        self._require_member(sender, self._copied_stage, "a request for a snapshot")
        data = self.snapshots.copies.get(parcel.at)
        if data is None or parcel.stage != self._copied_stage:
            raise RemoteProtocolError(f"stage {parcel.stage} at {parcel.at}", "a snapshot that is here")
        await send_parcel(stream, msg.LaneCopy(self.lane, parcel.epoch, parcel.at, parcel.stage, len(data)), data)

    def _require_member(self, sender: PeerId, stage: int, what: str) -> None:
        is_there = 0 <= stage < len(self.members)
        if not is_there or self.members[stage] != sender:
            whose = f"stage {stage}'s member" if is_there else "nobody"
            raise RemoteProtocolError(f"{what} from {short(sender)}", f"{whose} of lane {self.lane}")

    # --- the end ---

    async def _shares(self) -> tuple[LaneShare, ...]:
        end = self._ended
        if end is None:
            return ()
        me, shares = self._tools.network.peer_id, []
        for stage in (stage for stage, holder in enumerate(end.holders) if holder == me):
            data = (self.snapshots.own if stage == self.stage else self.snapshots.copies).get(end.at)
            if data is not None:
                schema = stage_schema(self._tools.stages, stage)
                theta_N = await self._tools.offload.run(partial(theta_of, data, schema), cost_s=PASS_COST_S)
                shares.append(LaneShare(self.lane, stage, end.at.round, end.tokens, theta_N, self.members[stage]))
        return tuple(shares)
