"""The training process of a pipeline peer, as its daemon sees it: kept alive, and given one order after another.

If it dies, for any reason, all its open orders fail, the seat in its lane is given back, and another process is started. Its
state is lost; the lane goes back to a snapshot. Several cards may hold the stage, with a process on each: the first gets the orders,
and the end of any of them is the end of all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import structlog
import torch
import trio

from peer.pipeline.stage.process_snapshots import ProcessSnapshots
from peer.pipeline.stage.snapshot_room import SnapshotRoom, rooms_bytes
from peer.pipeline.stage.stage_channel import STATE, StageOp, StageOrder, StagePlan, StageReply, parse_reply
from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.plan.layout import Mesh, World
from peer.training.plan.plan_core import plan_words
from peer.training.supervision.regrouping import Regrouping
from peer.training.supervision.replica_cards import ReplicaCards, Without
from peer.training.training_process import (
    SLOW_RESTART_S,
    Ended,
    MessageReader,
    Said,
    TrainingProcess,
    no_process,
    restart_pause_s,
)
from peer.training.worker_channel import Area, Failed, OutOfMemory, frame, with_bytes
from peer.training.worker_errors import smaller_plan
from peer.training.worker_process import EarlyWorker
from protocol.errors import LocalProtocolError, RemoteProtocolError, TemporaryError
from protocol.tensors.stage_schema import stage_schema

log = structlog.get_logger()

ANSWER_WITHIN_S: Final = 300.0
"""A process that neither answers nor dies is killed after this time. It covers a pass of the largest stage, or the imports at the
start, on a slow machine.
"""

NO_FIELDS: Final[Mapping[str, object]] = MappingProxyType({})


class StageProcessDied(TemporaryError):
    """The process ended before it answered an order. Another one is being started."""


@dataclass(eq=False)
class _Pending:
    """An order, and how many processes are still to answer it."""

    missing: int = 1
    reply: StageReply | None = None
    left: bytes = b""
    answered: trio.Event = field(default_factory=trio.Event)

    def take(self, reply: StageReply, left: bytes = b"") -> None:
        """One has answered. A failure is the answer of all."""
        self.missing -= 1
        if self.reply is None and (self.missing <= 0 or reply.failed):
            self.reply, self.left = reply, left
            self.answered.set()


class StageProcess:
    """A training process that holds one stage, or one on each of several cards. Made by `open_stage_process`.

    Args:
        devices: torch's names, one for each rank of the plan's mesh; the plan's device if there is one rank.
        without: chooses the cards to go on with when one of several is lost for good.
    """

    def __init__(
        self,
        plan: StagePlan,
        early: EarlyWorker | None = None,
        devices: Sequence[str] = (),
        without: Without = lambda left: None,
    ) -> None:
        self.restarts = 0
        self.card: str | None = None
        """UUID of the NVIDIA card that trains, empty for another device; None before the process has answered."""

        self.card_report: CardReport | None = None
        """How the card trains, and why; None before the process has answered."""

        self.started_in_s: float | None = None
        """Start-up time of the first process; None before that."""

        self.compile_note = ""
        """Why layers run eagerly although the plan compiles them, in one line."""

        self.failed_because = ""
        """Why the last process ended, and how another one goes on; empty if it said nothing."""

        self.wire_note = ""
        """Why values go a slow way between the stage's cards, in one line."""

        self._made_s = trio.current_time()
        self._plan, self._without = plan, without
        self._cards = ReplicaCards(devices or (plan.device,) * plan.mesh.num_ranks)
        schema = stage_schema(plan.stages, plan.stage)
        self._process = TrainingProcess(schema.num_elements, early, more_bytes=rooms_bytes(schema))
        self.snapshots = ProcessSnapshots(self.ask, SnapshotRoom(self._process.memory_fd, schema))
        self._sending, self._regrouping, self._begun = trio.Lock(), Regrouping(), trio.Event()
        self._pending: dict[int, _Pending] = {}
        self._number = 0

    @property
    def pid(self) -> int | None:
        """Process id, or None while there is no process."""
        return self._process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids by rank; none while there are none."""
        return self._process.pids

    def cards(self, tokens_per_s: float, tokens_trained: int) -> tuple[CardState, ...]:
        """The known facts of each card that holds the stage, also of one that is left out, when all together do so much."""
        return self._cards.states(tokens_per_s, tokens_trained)

    @property
    def is_ready(self) -> bool:
        """Whether it takes orders now."""
        return self._process.stream is not None

    @property
    def is_to_begin_anew(self) -> bool:
        """Whether other cards are to hold the stage, as soon as a round is over here."""
        return self._regrouping.is_wanted

    def regroup(self, world: World, *, now: bool) -> None:
        """Hold the stage on these cards from now on, or once a seat has brought its share of the round."""
        self._regrouping.want(world)
        if now:
            self.begin_anew()

    def begin_anew(self) -> None:
        """End the processes if other cards are to hold the stage. The optimizer's moments are kept."""
        if self._regrouping.end_life():
            self._await_next()

    def _await_next(self) -> None:
        """The processes are over. Somebody who already waits for the next ones goes on waiting for them."""
        if self._begun.is_set():
            self._begun = trio.Event()

    async def until_begun(self) -> None:
        """Wait until there is a process that takes orders."""
        await self._begun.wait()

    async def ask(
        self,
        op: StageOp,
        fields: Mapping[str, object] = NO_FIELDS,
        *,
        blob: bytes = b"",
        vector_N: torch.Tensor | None = None,
        num_answers: int = 1,
    ) -> tuple[StageReply, bytes]:
        """Give an order. Returns its result and the bytes that follow it.

        Args:
            fields: of the order, as in `StageOrder`.
            vector_N: (N,), for the process to read with this order.
            num_answers: processes on several cards that answer it.

        Raises:
            StageProcessDied: there is no process, or it ended before it answered.
            RemoteProtocolError: data from another peer is refused.
            LocalProtocolError: the stage cannot do it.
        """
        self._number += 1
        number, pending = self._number, _Pending(num_answers)
        order = StageOrder.model_validate({"number": number, "op": op, "num_bytes": len(blob), **fields})
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                async with self._sending:
                    stream = self._process.stream
                    if stream is None:
                        raise process_died(op)
                    self._pending[number] = pending
                    if vector_N is not None:
                        await trio.to_thread.run_sync(self._process.vectors.write, Area.IN, vector_N)
                    # send a started order to its end, or the next one would be read as the rest of it
                    with trio.fail_after(ANSWER_WITHIN_S) as sending:
                        sending.shield = True
                        for piece in with_bytes(frame(order), blob):
                            await stream.send_all(piece)
                await pending.answered.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise process_died(op) from error
        except trio.TooSlowError as error:
            self.kill()
            raise process_died(op) from error
        finally:
            self._pending.pop(number, None)
        if pending.reply is None:
            raise process_died(op)
        _check(pending.reply)
        return pending.reply, pending.left

    async def theta(self) -> torch.Tensor:
        """(N,), a copy of the parameters that the process wrote last."""
        return await trio.to_thread.run_sync(self._process.vectors.read, Area.OUT)

    def kill(self) -> None:
        """Kill the process. Another one is started."""
        self._process.kill()

    # --- supervision ---

    async def supervise(self) -> None:
        """Start the process and restart it whenever it ends, until cancelled.

        Raises:
            MachineError: the first process cannot be started.
        """
        quick_deaths = 0
        while True:
            began_s = trio.current_time()
            self.failed_because = ""
            with self._regrouping.life():
                await self._live()
            if (world := self._regrouping.taken()) is not None:
                self._hold_on(world)
                continue
            self._await_next()
            quick_deaths = quick_deaths + 1 if trio.current_time() - began_s < SLOW_RESTART_S else 0
            self.restarts += 1
            log.warning("stage_process_died", restarts=self.restarts, reason=self.failed_because or "it died")
            await trio.sleep(restart_pause_s(quick_deaths))

    def _hold_on(self, world: World) -> None:
        """Hold the stage on these cards, with a plan chosen anew."""
        self._cards.come_back(world)
        self._plan = self._plan.model_copy(update={"device": world.devices[0], "mesh": world.mesh, "card_plan": None})
        self.restarts += 1
        log.info("cards_regrouped", devices=", ".join(world.devices))

    async def _live(self) -> None:
        try:
            devices = self._cards.devices if self._plan.mesh.num_ranks > 1 else (self._plan.device,)
            ended = await self._process.live_together(self._plan, devices, self._listen)
        except OSError as error:
            if not self.restarts:
                raise no_process(error) from error
            log.warning("stage_process_not_started", reason=str(error))
        except LocalProtocolError as error:
            log.warning("stage_process_unreadable", reason=error.one_line())
        else:
            self._note_end(ended)
        finally:
            self._give_up_orders()  # also those that were sent to a process that nobody listened to any more

    def _give_up_orders(self) -> None:
        """Nobody answers the open orders."""
        for pending in self._pending.values():
            pending.answered.set()

    async def _listen(self, rank: int, incoming: MessageReader) -> Said:
        if rank:
            return await self._listen_beside(rank, incoming)
        if self.started_in_s is None:
            self.started_in_s = trio.current_time() - self._made_s
        self._begun.set()
        try:
            while (data := await incoming.message()) is not None:
                reply = parse_reply(data)
                if isinstance(reply, OutOfMemory | Failed):
                    return reply
                self._note(reply)
                left = await incoming.exactly(reply.num_bytes) if reply.num_bytes else b""
                if left is None:
                    return None
                self._answered(reply, left)
            return None
        finally:
            self._give_up_orders()

    async def _listen_beside(self, rank: int, incoming: MessageReader) -> Said:
        """Note the words of a card beside the first one, until its end."""
        while (data := await incoming.message()) is not None:
            reply = parse_reply(data)
            if isinstance(reply, OutOfMemory | Failed):
                return reply
            if reply.number == STATE:
                self._cards.take(rank, reply.card, reply.card_report)
            else:
                self._answered(reply)
        return None

    def _answered(self, reply: StageReply, left: bytes = b"") -> None:
        pending = self._pending.get(reply.number)
        if pending is not None:
            pending.take(reply, left)

    def _note(self, reply: StageReply) -> None:
        if reply.card_report is None:  # of a thread that writes a snapshot
            return
        self.card, self.card_report = reply.card, reply.card_report
        self._cards.take(0, reply.card, reply.card_report)
        if reply.compile_note not in ("", self.compile_note):
            self.compile_note = reply.compile_note
            log.info("layers_not_compiled", reason=self.compile_note)
        if reply.wire_note not in ("", self.wire_note):
            self.wire_note = reply.wire_note
            log.info("cards_linked_slowly", reason=self.wire_note)

    def _note_end(self, ended: Ended) -> None:
        if isinstance(ended.said, OutOfMemory):
            self._go_down(ended.rank, ended.said)
        elif isinstance(ended.said, Failed):
            self.failed_because = self._cards.named(ended.rank, ended.said.reason)
            if ended.said.is_gone and len(self._cards.devices) > 1:
                self._go_on(ended.rank, ended.said.reason)
        elif len(self._cards.devices) > 1:
            self.failed_because = self._cards.named(ended.rank, "the training process died")

    def _go_down(self, rank: int, cause: OutOfMemory) -> None:
        """The next process takes the next plan of the ladder: the run fixes the micro-batch of a stage. After the last one, cards that
        had all of the stage each have rows of it.
        """
        card_plan, _ = smaller_plan(cause)
        copies, report = self._plan.mesh.copies, cause.card_report
        if copies > 1 and report is not None and card_plan == report.plan:
            changes: dict[str, object] = {"mesh": Mesh(shard=copies), "card_plan": None}
            now_with = "rows of the stage on each card"
        else:
            changes = {"card_plan": card_plan or self._plan.card_plan}
            now_with = plan_words(card_plan) if card_plan is not None else "the same plan"
        self._plan = self._plan.model_copy(update=changes)
        self.failed_because = self._cards.named(rank, f"out of memory; going on with {now_with}")
        log.warning("stage_out_of_memory", now_with=now_with)

    def _go_on(self, rank: int, reason: str) -> None:
        """Leave a card out that is lost, and choose the next plan anew: each of the others has more to compute."""
        world = self._cards.go_on(rank, reason, self._without)
        if world is not None:
            on_them = {"device": world.devices[0], "mesh": world.mesh, "card_plan": None}
            self._plan = self._plan.model_copy(update=on_them)
            log.warning("card_left_out", reason=self.failed_because, going_on_with=", ".join(world.devices))

    def close(self) -> None:
        """Release the shared memory."""
        self._process.close()


def process_died(op: str) -> StageProcessDied:
    """The process ended at this order."""
    return StageProcessDied(f"the training process ended at {op}", "an answer", "it is being brought back")


def _check(reply: StageReply) -> None:
    if reply.refused:
        raise RemoteProtocolError(reply.refused, reply.expected)
    if reply.failed:
        raise LocalProtocolError(reply.failed, reply.expected)


@asynccontextmanager
async def open_stage_process(
    plan: StagePlan,
    early: EarlyWorker | None = None,
    devices: Sequence[str] = (),
    without: Without = lambda left: None,
) -> AsyncIterator[StageProcess]:
    """A running training process of one stage, or one on each card. It ends with the context. All as of `StageProcess`."""
    process = StageProcess(plan, early, devices, without)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process.supervise)
            yield process
            nursery.cancel_scope.cancel()
    finally:
        process.close()
