"""A replica's part in synced steps: the machine decides (protocol/pipeline/synced/synced_replica.py), this computes and carries.

Work comes from the owner with all bytes that it needs, and what comes of it goes back there. Whatever is to be done here is done one
after another, in the order in which it was decided; sums go to the other replicas of the stage beside that. A seat lasts until the
owner ends the group or is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import Stream
from peer.pipeline.seats.gradient_sums import StepSums, SumRole
from peer.pipeline.seats.lane_seat import KEEPER_SILENT_S
from peer.pipeline.stage.stage_snapshot import decode_sum, most_snapshot_bytes, most_sum_bytes
from peer.pipeline.stage.synced_compute import Served
from peer.pipeline.transport.lane_calls import KEEPER_CHANNEL, CallLine, until_silent
from peer.pipeline.transport.lane_outbox import (
    Outbox,
    Postable,
    WrongContent,
    answer,
    fetch_copy,
    receive_bytes,
    send_parcel,
)
from peer.pipeline.transport.lane_work import PASS_COST_S, LaneContext, LaneShare
from protocol.errors import LocalProtocolError, PotluckError, RemoteProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline.messages import lane_messages as lane_msg
from protocol.pipeline.messages import synced_messages as synced_msg
from protocol.pipeline.messages.lane_wire import Parcel, Said
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.pipeline.synced import synced_replica as replica
from protocol.pipeline.synced_routing import Work
from protocol.tensors.stage_schema import stage_schema

log = structlog.get_logger()

# Work of the next step may be here before the owner's word that the last one is to be taken, or before that is done.
STEP_WITHIN_S: Final = 4.0

GIVEN_WITHIN_S: Final = 20.0  # for work that is to be done here before a snapshot of the stage is given


class SyncedSeat:
    """One stage's replica at this peer; `run` lasts as long as the seat does."""

    epoch: Final = 0  # a group has one time line

    def __init__(self, tools: LaneContext, keeper: PeerId, begun: synced_msg.SyncedBegin) -> None:
        self.lane = begun.lane
        self.keeper = keeper
        self.stage = begun.stage
        self.at = begun.at
        # Whether the group ended because its owner was heard no more: nobody else says what is lost with it.
        self.has_lost_owner = False
        self.reason = ""  # why it is over

        self._tools = tools
        self._schema = stage_schema(tools.stages, begun.stage)
        self._me = tools.network.peer_id
        if tools.synced_of is None:
            raise LocalProtocolError("synced steps in a run of lanes", 'pipeline.mode = "synced"')
        self._work = tools.synced_of(begun.lane, begun.stage)
        self._line = CallLine(tools.network, keeper, KEEPER_CHANNEL, self._answered)
        self.state = replica.ReplicaState(begun.stage, self._weights(begun.at))
        self._is_ready = False
        self._is_open = False
        self._to_do = deque[Callable[[], Awaitable[None]]]()
        self._changed = trio.Event()
        self._over = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._heard_s = trio.current_time()
        self._outboxes: dict[PeerId, Outbox] = {}
        self._serving: dict[int, trio.CancelScope] = {}
        self._given: dict[Work, tuple[bytes, bytes]] = {}
        self._left: dict[Work, Served] = {}
        self._sums = StepSums(SumRole(self._me, self._outbox, self._say_summed))
        self._forgotten = 0
        self._do_later(partial(self._begin, begun))

    def _weights(self, at: Point) -> int:
        """Every point of the run has weights of its own, a round's end and the next one's beginning, too."""
        return at.round * (self._tools.config.inner_steps + 1) + at.step

    @property
    def held_bytes(self) -> int:
        """Of this step: work that is still to be done, what came of the rest, and sums."""
        given = sum(len(part) for parts in self._given.values() for part in parts)
        return given + sum(len(served.left) for served in self._left.values()) + self._sums.held_bytes

    async def run(self) -> tuple[LaneShare, ...]:
        """Until the seat is over; nothing is left to bring anywhere."""
        with self._over:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._tell_owner)
                nursery.start_soon(self._watch_owner)
                while True:
                    await self._until(lambda: bool(self._to_do))
                    await self._do(self._to_do.popleft())
        self._nursery = None
        for scope in list(self._serving.values()):
            scope.cancel()
        return ()

    async def _do(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except PotluckError as error:
            self.leave(error.one_line())
        self._change()

    def _do_later(self, task: Callable[[], Awaitable[None]]) -> None:
        self._to_do.append(task)
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await self._changed.wait()

    # --- the owner ---

    def hear(self, message: Said) -> None:
        """The owner's word; what is of another step the machine passes over."""
        self._heard_s = trio.current_time()
        match message:
            case synced_msg.SyncedBegin():
                self._begin_again(message)
            case synced_msg.SyncedBeside():
                self._sums.served_by(message.peers)
                self._change()
            case synced_msg.SyncedGrant():
                self._feed(replica.Granted(self._weights(message.at), message.number))
            case synced_msg.SyncedDrop():
                self._feed(replica.Dropped(self._weights(message.at), message.number))
            case synced_msg.SyncedAgain():
                self._feed(replica.ToldToStartAgain(self._weights(message.at)))
            case synced_msg.SyncedTellSum():
                self._feed(replica.ToldToSum(self._weights(message.at), frozenset(message.numbers)))
            case synced_msg.SyncedCommit():
                self._do_later(partial(self._total, message))
            case synced_msg.SyncedStep():
                self._do_later(partial(self._step, message))
            case synced_msg.SyncedBring():
                self._do_later(partial(self._bring, message))
            case lane_msg.LaneEnd():
                self.finish(message.reason)
            case _:
                pass

    def leave(self, reason: str) -> None:
        """Say goodbye to the owner; the seat is over when it has heard it."""
        log.info("synced_left", lane=self.lane, stage=self.stage, reason=reason)
        self._line.put(lane_msg.LaneLeave(self.lane, 0, _cut(reason)))

    def finish(self, reason: str) -> None:
        """The seat is over."""
        self.reason = self.reason or reason
        self._over.cancel()

    def _answered(self, message: Said, refused: str) -> None:
        if isinstance(message, lane_msg.LaneHere):  # it lives, and is to call us all the same
            self.has_lost_owner = bool(refused)
        else:
            self._heard_s = trio.current_time()
        if isinstance(message, lane_msg.LaneLeave):
            self.finish(message.reason)
        elif refused:
            self.finish(f"the owner refuses what this replica says: {refused}")

    async def _tell_owner(self) -> None:
        try:
            await self._line.run()
        except PotluckError as error:
            self.has_lost_owner = True
            self.finish(f"the owner is gone: {error.one_line()}")

    async def _watch_owner(self) -> None:
        await until_silent(
            self._line, lambda: lane_msg.LaneHere(self.lane, self.epoch), lambda: self._heard_s, KEEPER_SILENT_S
        )
        self.has_lost_owner = True
        self.finish(f"the owner was not heard for {KEEPER_SILENT_S:g} s")

    # --- beginning, steps, rounds ---

    def _begin_again(self, begun: synced_msg.SyncedBegin) -> None:
        if begun.stage != self.stage:
            raise RemoteProtocolError(f"stage {begun.stage} in the same group", f"stage {self.stage}")
        self._is_ready = False
        self._do_later(partial(self._begin, begun))

    async def _begin(self, begun: synced_msg.SyncedBegin) -> None:
        if not self._is_open:
            await self._work.open()
            self._is_open = True
        if begun.donors:
            await self._work.restore(await self._fetched(begun))
        await self._moved_to(begun.at)

    async def _fetched(self, begun: synced_msg.SyncedBegin) -> bytes:
        """The stage as the others hold it.

        Raises:
            PotluckError: nobody of them gives it.
        """
        most_bytes = most_snapshot_bytes(self._schema)
        wanted, reasons = lane_msg.LaneFetch(self.lane, 0, begun.at, self.stage), list[str]()
        for donor in begun.donors:
            try:
                return await fetch_copy(self._tools.network, donor, wanted, most_bytes)
            except PotluckError as error:
                reasons.append(error.one_line())
        raise LocalProtocolError(f"stage {self.stage} from nobody: {'; '.join(reasons)}", "a donor")

    async def _moved_to(self, at: Point) -> None:
        """Other weights are here: tell the owner, with their hash where a round begins."""
        await self._work.forget()
        self._clear()
        self.state = replica.ReplicaState(self.stage, self._weights(at))
        self.at, self._is_ready = at, True
        weights_hash = b""
        if at.step == 0:
            weights_hash = _hash_of(await self._work.theta())
        self._line.put(synced_msg.SyncedReady(self.lane, at, weights_hash))

    def _clear(self) -> None:
        self._forget_work_done()
        self._sums.clear()

    def _forget_work_done(self) -> None:
        """What is ours of this step."""
        self._forgotten += 1
        self._given.clear()
        self._left.clear()
        self._sums.forget_own()

    async def _total(self, message: synced_msg.SyncedCommit) -> None:
        if message.at != self.at or not self._is_ready:
            return
        try:
            sums = self._sums.of(message.parts)
        except LocalProtocolError:
            self._is_ready = False
            raise
        square = await self._work.total(sums)
        self._line.put(lane_msg.LaneSquare(self.lane, 0, self.at, square))

    async def _step(self, message: synced_msg.SyncedStep) -> None:
        if message.at != self.at or not self._is_ready:
            return
        await self._work.take_mean_step(self.at, message.whole_square, message.counted)
        if self.at.step == 0:  # whose end waits for the held-out text
            self._tools.measured(self.at.round, None)
        self.at = Point(self.at.round, self.at.step + 1)
        self._clear()
        self._feed(replica.Committed(self._weights(self.at)))

    async def _bring(self, message: synced_msg.SyncedBring) -> None:
        if message.at != self.at or not self._is_ready:
            return
        theta_N = await self._work.theta()
        share = LaneShare(self.lane, self.stage, self.at.round, message.tokens, theta_N)
        await self._work.adopt(await self._tools.average(share))
        await self._moved_to(Point(self.at.round + 1, 0))

    # --- what the machine orders ---

    def _feed(self, event: replica.Event) -> None:
        if not self._is_ready:
            return
        done = replica.step(self.state, event)
        self.state = done.state
        if done.remark:
            log.debug("synced_remark", lane=self.lane, stage=self.stage, remark=done.remark)
        for order in done.orders:
            self._perform(order)

    def _perform(self, order: replica.Order) -> None:
        match order:
            case replica.Compute():
                self._do_later(partial(self._compute, order.work, self._forgotten))
            case replica.Reply():
                self._reply(order.work, self._left[order.work])
                if not order.work.is_backward:  # which is computed once more where it is asked for again
                    del self._left[order.work]
            case replica.Decline():
                self._decline(order.work, order.reason)
            case replica.Fold():
                self._do_later(partial(self._work.grant, order.number))
            case replica.Discard():
                self._do_later(partial(self._work.drop, order.number))
            case replica.Forget():
                self._forget_work_done()
                self._do_later(self._work.forget)
            case replica.DeliverSum():
                self._do_later(partial(self._deliver, synced_msg.as_numbers(order.numbers), self._forgotten))
            case replica.RefuseSum():
                self._line.put(synced_msg.SyncedNotSummed(self.lane, self.at, _cut(order.reason)))

    async def _compute(self, work: Work, forgotten: int) -> None:
        given = self._given.pop(work, None)
        if given is None or forgotten != self._forgotten:
            return
        try:
            served = await self._work.serve(self.at, Pass(work.number, work.is_backward), *given)
        except RemoteProtocolError as error:
            log.warning("lane_refused", sender=short(self.keeper), reason=error.one_line())
            self._forget_work(work)
            self._decline(work, error.one_line())
            return
        if forgotten == self._forgotten:
            self._left[work] = served
            self._feed(replica.Computed(self.state.weights, work))

    def _forget_work(self, work: Work) -> None:
        self.state = replica.not_done(self.state, work)

    def _reply(self, work: Work, served: Served) -> None:
        at, is_spoilt, loss = self.at, served.is_spoilt, served.loss_nats
        reply = synced_msg.SyncedReply(
            self.lane, at, self.stage, work.number, work.is_backward, len(served.left), "", is_spoilt, loss
        )
        self._outbox(self.keeper).put(reply, served.left)

    def _decline(self, work: Work, reason: str) -> None:
        reply = synced_msg.SyncedReply(
            self.lane, self.at, self.stage, work.number, work.is_backward, 0, _cut(reason) or "no"
        )
        self._outbox(self.keeper).put(reply, b"")

    async def _deliver(self, numbers: tuple[int, ...], forgotten: int) -> None:
        if forgotten != self._forgotten:
            return
        if not self._sums.has_own(numbers):
            own = await self._work.own_sum()
            await self._judge_sum(
                self._me, own
            )  # as fellows do: what is no good is brought to nobody, and this seat is over
            if forgotten != self._forgotten:
                return
            self._sums.put_own(numbers, own)
        if self._nursery is not None:
            (own,) = self._sums.of((synced_msg.SyncedPart(self._me, numbers),))
            self._sums.deliver(synced_msg.SyncedSum(self.lane, self.at, numbers, len(own)), self._nursery)

    def _say_summed(self, numbers: tuple[int, ...]) -> None:
        self._line.put(synced_msg.SyncedSummed(self.lane, self.at, numbers))

    def _outbox(self, peer: PeerId) -> Outbox:
        outbox = self._outboxes.get(peer)
        if outbox is None:
            outbox = self._outboxes[peer] = Outbox(self._tools.network, peer, self._refused)
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

    def _refused(self, parcel: Postable, reason: str) -> None:
        log.info("synced_refused", lane=self.lane, parcel=type(parcel).__name__, reason=reason)

    # --- what arrives ---

    @contextmanager
    def until_it_goes_back(self) -> Iterator[None]:
        """Waits in here end when the seat is over."""
        with trio.CancelScope() as scope:
            self._serving[id(scope)] = scope
            try:
                yield
            finally:
                del self._serving[id(scope)]

    async def serve(self, sender: PeerId, parcel: Parcel, stream: Stream) -> bool:
        """Take what the owner or another replica brings, or give the stage to one that comes; whether it is to be answered.

        Raises:
            RemoteProtocolError: why it is refused; nothing was computed, nothing counts.
        """
        match parcel:
            case synced_msg.SyncedAsk():
                await self._take_work(sender, parcel, stream)
            case synced_msg.SyncedSum():
                if reason := await self._take_sum(sender, parcel, stream):
                    await answer(stream, reason, lane_msg.Refusal.NOT_YET)
                    return False
            case lane_msg.LaneFetch():
                await self._give(parcel, stream)
                return False
            case _:
                raise RemoteProtocolError(f"{type(parcel).__name__} to a replica of synced steps", "work, or a sum")
        return True

    async def _take_work(self, sender: PeerId, parcel: synced_msg.SyncedAsk, stream: Stream) -> None:
        expected = self._expected_bytes(parcel)
        if sender != self.keeper or (parcel.forward_bytes, parcel.backward_bytes) != expected:
            found = f"{parcel.forward_bytes} and {parcel.backward_bytes} bytes of work from {short(sender)}"
            raise RemoteProtocolError(found, f"{expected} from the owner {short(self.keeper)}")
        data = await receive_bytes(stream, parcel.forward_bytes + parcel.backward_bytes)
        forward, backward = data[: parcel.forward_bytes], data[parcel.forward_bytes :]
        await self._at(parcel.at)
        if parcel.at != self.at or not self._is_ready:
            work, why_not = parcel.work, f"it is at {self.at} here"
            declined = synced_msg.SyncedReply(
                parcel.lane, parcel.at, work.stage, work.number, work.is_backward, 0, why_not
            )
            self._outbox(self.keeper).put(declined, b"")
            return
        self._given[parcel.work] = forward, backward
        self._feed(replica.Asked(self.state.weights, parcel.work))

    async def _at(self, at: Point) -> None:
        with trio.move_on_after(STEP_WITHIN_S):
            await self._until(lambda: self.at >= at and (self._is_ready or self.at > at))

    def _expected_bytes(self, parcel: synced_msg.SyncedAsk) -> tuple[int, int]:
        """What this work needs of bytes; of another stage's work nothing fits."""
        form, stages = self._tools.form, self._tools.form.stages
        is_heldout = parcel.at.step == 0 and not parcel.is_backward
        most = form.config.num_micro_batches + (form.config.heldout_passes if is_heldout else 0)
        if parcel.stage != self.stage or parcel.number >= most:
            return (-1, -1)
        at, number = parcel.at, parcel.number
        forward = form.boundary(self.lane, self.stage, 0, at, Pass(number, False)).message_bytes
        backward = form.boundary(self.lane, self.stage, 0, at, Pass(number, True)).message_bytes
        is_fed_back = parcel.is_backward and not stages.is_last(self.stage)
        return (0 if stages.is_first(self.stage) else forward, backward if is_fed_back else 0)

    async def _take_sum(self, sender: PeerId, parcel: synced_msg.SyncedSum, stream: Stream) -> str:
        """Why it cannot be taken here now; empty where it is."""
        most_bytes = most_sum_bytes(self._schema, self._tools.form.dtype)
        with trio.move_on_after(STEP_WITHIN_S):  # who sums beside us is said to each of us by a call of its own
            await self._until(lambda: self._sums.is_fellow(sender))
        if not self._sums.is_fellow(sender):
            raise RemoteProtocolError(f"a sum from {short(sender)}", f"one of stage {self.stage}'s replicas")
        if parcel.num_bytes > most_bytes:  # which no replica of this stage has: brought again it is no better
            raise WrongContent(f"{short(sender)} brings a sum of {parcel.num_bytes} bytes", f"at most {most_bytes}")
        data = await receive_bytes(stream, parcel.num_bytes)
        await self._judge_sum(sender, data)
        await self._at(parcel.at)
        if parcel.at != self.at or not self._is_ready:
            return f"a sum at {parcel.at}; here it is {self.at}"
        self._sums.take(sender, parcel.numbers, data)
        return ""

    async def _judge_sum(self, sender: PeerId, data: bytes) -> None:
        """Raises WrongContent: nothing that this stage's sums can be."""
        judge = partial(decode_sum, data, self._schema, self._tools.form.dtype)
        try:
            await self._tools.offload.run(judge, cost_s=PASS_COST_S)
        except RemoteProtocolError as error:
            raise WrongContent(f"{short(sender)} brings {error.found}", error.expected) from error

    async def _give(self, parcel: lane_msg.LaneFetch, stream: Stream) -> None:
        if parcel.stage != self.stage:
            raise RemoteProtocolError(f"stage {parcel.stage}", f"stage {self.stage}, which is here")
        await self._at(parcel.at)
        found = list[bytes]()
        done = trio.Event()

        async def copy() -> None:
            try:
                if parcel.at == self.at and self._is_ready:
                    found.append(await self._work.snapshot())
            finally:
                done.set()

        self._do_later(copy)
        with trio.move_on_after(GIVEN_WITHIN_S):
            await done.wait()
        if not found:
            raise RemoteProtocolError(f"stage {parcel.stage} at {parcel.at}", f"what is here, at {self.at}")
        await send_parcel(stream, lane_msg.LaneCopy(self.lane, 0, parcel.at, self.stage, len(found[0])), found[0])


def _hash_of(theta_N: torch.Tensor) -> bytes:
    return sha256(theta_N.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()


def _cut(reason: str) -> str:
    return "".join(c if c.isprintable() else " " for c in reason[:200])
