"""A training process that holds one stage of a pipeline run. It carries out one order after another and does nothing by itself.

It starts like every training process (peer/worker.py); its first message says that it holds a stage. A thread writes its snapshots
while it obeys later orders. It reads the run's text if its stage is the first, which needs the tokens, or the last, which needs the
next ones. On several cards there is one on each. The first obeys the daemon, and passes on each order that the others have a part in.
"""

from __future__ import annotations

import json
import math
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Final, cast

import torch

from averaging.gc_freeze import collect_between_steps
from peer.machine.device import card_uuid, choose_device, is_out_of_memory, limit_memory
from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.lane_compute import ComputeContext, LaneShape, LaneWork
from peer.pipeline.stage.snapshot_room import SnapshotRoom
from peer.pipeline.stage.stage_channel import STAGE_KIND, STATE, StageOrder, StagePlan, StageReply
from peer.pipeline.stage.stage_ranks import RanksApart, StageRanks
from peer.pipeline.stage.stage_shards import StageShards, sharded_replica
from peer.pipeline.stage.stage_texts import StageTexts
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.card_at_work import CardAtWork
from peer.training.optimizers.learning_rate import learning_rate_at
from peer.training.plan.card_memory_core import stage_load
from peer.training.plan.rank_memory_core import ALONE
from peer.training.ranks.agreed_plan import agreed_plan
from peer.training.ranks.rank_files import moments_path
from peer.training.ranks.rank_group import RankGone, RankGroup, alone, meet
from peer.training.replica.compiler import Compiler
from peer.training.replica.moments import KeptMoments
from peer.training.supervision.actions import END
from peer.training.supervision.wires import prepare_wires
from peer.training.worker_channel import (
    Area,
    OutOfMemory,
    SharedVectors,
    frame,
    read_exactly,
    read_message,
    with_bytes,
)
from protocol.errors import LocalProtocolError, PotluckError, RemoteProtocolError
from protocol.ids import RunId
from protocol.pipeline.schedule import most_in_flight
from protocol.pipeline.stage_machine import Point
from protocol.tensors.stage_schema import stage_schema

_SLOWED: Final = ("run_pass", "take_step")
_TOLD: Final = ("open", "take_step")
"""Orders after which every card says how it trains."""


def is_stage_plan(first: bytes) -> bool:
    """Whether the first message to a training process is a stage's plan."""
    values = json.loads(first)
    return isinstance(values, dict) and values.get("kind") == STAGE_KIND


def warm_up() -> None:
    """Import now what torch imports at its first backward pass from a given gradient. Otherwise a lane waits for these imports
    when a spare takes a seat.
    """
    value = torch.zeros(1, requires_grad=True)
    torch.autograd.backward(value * 1.0, torch.ones(1))


class StageWorker:
    """One stage, and the lane that it works in.

    Args:
        group: the processes on several cards, whose process group is open; None for this one alone.
        wire_note: why values go a slow way between their cards, in one line.
    """

    def __init__(
        self,
        channel: socket.socket,
        plan: StagePlan,
        memory_fd: int,
        group: RankGroup | None = None,
        wire_note: str = "",
    ) -> None:
        if plan.num_threads:
            torch.set_num_threads(plan.num_threads)
        self._channel = channel
        self._plan, self._wire_note = plan, wire_note
        self._ranks = _ranks_of(group or alone())
        self._stages, self._lanes = plan.stages, plan.lanes
        self._device = choose_device(plan.device)
        self._card = card_uuid(self._device)
        if plan.max_gpu_memory_bytes:
            limit_memory(self._device, plan.max_gpu_memory_bytes)
        schema = stage_schema(self._stages, plan.stage)
        self._vectors, self._room = SharedVectors(memory_fd, schema.num_elements), SnapshotRoom(memory_fd, schema)
        self._speaking = threading.Lock()
        self._texts = StageTexts(plan, self._device)
        sequences = plan.inner.batch_tokens // plan.model.context_tokens
        self._shape = (sequences // plan.pipeline.micro_batches, plan.model.context_tokens)
        self._own_shape = (self._shape[0] // self._ranks.group.size, self._shape[1])
        self.card = CardAtWork(
            self._device,
            stage_load(self._stages, plan.stage, plan.pipeline.most_kept(self._stages, plan.stage)),
            plan.inner,
            plan.wishes,
            most_bytes=plan.max_gpu_memory_bytes,
            given=plan.card_plan,
            micro_batch=self._own_shape[0],
            mesh=plan.mesh if plan.mesh.shard > 1 else ALONE,
            num_replicas=plan.mesh.copies,
        )
        self._compiler = Compiler(plan.compile_folder, process=f"{self._device}-{self._ranks.group.rank}")
        self.card.plan, note = self._compiler.prepared(self.card.plan, plan.model, self._device)
        self.card.plan = agreed_plan(self.card.plan, self._ranks.group)
        self._why_eager = note or self.card.why_eager
        self._schedule_tokens = 0
        self._slowdown = plan.slowdown
        self._work: LaneWork | None = None
        self._trainer: StageTrainer | None = None
        self._moments: KeptMoments | None = None
        self._compile_note = self._why_eager

    def run(self) -> None:
        """Carry out orders until the channel ends. Then keep what the next process continues from.

        Raises:
            RankGone: the process of another card ended.
            RanksApart: the cards have different states.
        """
        if self._ranks.is_first:
            self._lead()
            self._ranks.group.share(END)
        else:
            self._follow()
        if self._moments is not None:
            self._moments.finish(self._schedule_tokens)

    def _lead(self) -> None:
        while (data := read_message(self._channel)) is not None:
            order = StageOrder.model_validate_json(data)
            blob = read_exactly(self._channel, order.num_bytes) if order.num_bytes else b""
            if blob is None:
                return
            begin_s = time.perf_counter()
            self._pass_on(order, data, blob)
            if order.op == "written":
                self._tell_when_written(order.number)
                continue
            reply, left = self._answer(order, blob)
            self._put_down()
            if order.op in _SLOWED:
                time.sleep((self._slowdown - 1.0) * (time.perf_counter() - begin_s))
            busy_s = time.perf_counter() - begin_s
            self.say(reply.model_copy(update=self._of_machine(busy_s)), left)

    def say(self, message: StageReply | OutOfMemory, left: bytes = b"") -> None:
        """Tell the daemon, and send the bytes that follow. The thread that writes snapshots speaks, too."""
        with self._speaking:
            for piece in with_bytes(frame(message), left):
                self._channel.sendall(piece)

    def _tell_when_written(self, number: int) -> None:
        """Answer the order of this number once this process's rows of the last snapshot are written."""
        if self._work is None:
            self.say(StageReply(number=number, failed="no snapshot of a lane", expected="one that was taken"))
        else:
            self._work.when_written(partial(self._tell_written, number))

    def _tell_written(self, number: int, error: BaseException | None) -> None:
        self._room.put_down()
        why = {} if error is None else {"failed": f"a snapshot was not written: {error}", "expected": "all of its rows"}
        with suppress(OSError):  # the daemon is gone
            self.say(StageReply(number=number).model_copy(update=why))

    def _put_down(self) -> None:
        self._vectors.put_down()
        self._room.put_down()

    def _pass_on(self, order: StageOrder, data: bytes, blob: bytes) -> None:
        """Give the other cards an order, with what arrived from another stage."""
        group = self._ranks.group
        if group.size > 1 and order.op not in self._ranks.of_the_first:
            group.share(data)
            if order.op == "arrived":
                group.share_all(blob)

    def _follow(self) -> None:
        """Do what the first card does, as it passes it on."""
        group = self._ranks.group
        while (data := group.share()) != END:
            order = StageOrder.model_validate_json(data)
            if order.op == "written":
                self._tell_when_written(order.number)
                continue
            self._answer(order, group.share_all() if order.op == "arrived" else b"")
            self._put_down()
            if order.op in _TOLD:
                self.say(StageReply(number=STATE).model_copy(update=self._of_machine(0.0)))

    def _of_machine(self, busy_s: float) -> dict[str, object]:
        return {
            "busy_s": busy_s,
            "card": self._card,
            "compile_note": self._compile_note,
            "wire_note": self._wire_note,
            "card_report": self.card.report(self._own_shape[0]),
        }

    @property
    def _most_kept(self) -> int:
        plan, pipeline = self._plan, self._plan.pipeline
        return most_in_flight(pipeline.schedule, plan.stage, self._stages.num_stages, pipeline.micro_batches)

    def _answer(self, order: StageOrder, blob: bytes) -> tuple[StageReply, bytes]:
        try:
            return self._do(order, blob)
        except (RankGone, RanksApart):
            raise
        except RemoteProtocolError as error:
            return StageReply(number=order.number, refused=error.found, expected=error.expected), b""
        except PotluckError as error:
            return StageReply(number=order.number, failed=error.found, expected=error.expected), b""

    def _do(self, order: StageOrder, blob: bytes) -> tuple[StageReply, bytes]:
        done = StageReply(number=order.number)
        if order.op == "slow":
            self._slowdown = max(1.0, order.factor)
            return done, b""
        if order.op == "open":
            self._open(order)
            return done, b""
        work = self._work
        if work is None:
            raise LocalProtocolError(f"{order.op} without a lane", "open it first")
        match order.op:
            case "arrived":
                work.arrived(blob, order.epoch, order.at, order.work)
            case "run_pass":
                work.heldout_nats = None
                left = work.run_pass(order.epoch, order.at, order.work) or b""
                nats = _per_byte(work.heldout_nats, self._plan.heldout_bytes_per_token)
                return done.model_copy(update={"num_bytes": len(left), "heldout_nats": nats}), left
            case "square":
                return done.model_copy(update={"square": work.square().hex()}), b""
            case "take_step":
                counts = work.take_step(order.at, float.fromhex(order.whole_square))
                collect_between_steps(order.at.round * self._lanes.inner_steps + order.at.step)
                return done.model_copy(update={"counts": counts, "loss_nats": self._loss_of(work)}), b""
            case "snapshot":
                taken = {"snapshot_bytes": work.snapshot(self._room.out), "num_writers": self._ranks.num_writers}
                return done.model_copy(update=taken), b""
            case "restore":
                work.restore(self._room.back[: order.snapshot_bytes])
            case "theta":
                work.write_theta(self._vectors.view(Area.OUT))
            case "adopt":
                self._schedule_tokens = order.schedule_tokens
                work.adopt(self._anchor())
                if self._moments is not None:
                    self._moments.note_commit(self._schedule_tokens)
            case _:
                raise LocalProtocolError(f"order {order.op}", "one that is known")
        return done, b""

    def _anchor(self) -> torch.Tensor:
        """(N,) that came with the order, in the memory shared with the daemon."""
        return self._vectors.view(Area.IN)

    def _loss_of(self, work: LaneWork) -> float | None:
        return _per_byte(work.loss_nats, self._plan.train_bytes_per_token)

    def _open(self, order: StageOrder) -> None:
        plan = self._plan
        self._schedule_tokens = order.schedule_tokens
        form = LaneShape(
            RunId(bytes.fromhex(plan.run_id)),
            self._lanes,
            self._stages,
            self._shape,
            plan.pipeline.forward_codec,
            plan.pipeline.backward_codec,
        )
        targets_of = self._texts.targets_of if plan.has_counts else None
        tools = ComputeContext(form, self._loaded, self._texts.tokens_of, self._learning_rate, targets_of, self._ranks)
        self._work = LaneWork(tools, order.lane, plan.stage)
        self._work.open()

    def _loaded(self, stage: int) -> StageTrainer:
        """The stage's trainer at the order's parameters. The optimizer's moments outlive a lane. The first lane of a process begins
        with those of the last process.
        """
        is_new, trainer = self._trainer is None, self._trainer or self._made()
        self._ranks.load(trainer, self._anchor())
        if is_new:
            passes = trainer.passes.trial_passes(self._own_shape, self._device)
            self._compile_note = trainer.replica.compile(passes, self._compiler) or self._why_eager
        if is_new and self._ranks.takes_steps:
            self._moments = self._kept(trainer)
            self._moments.take_up(self._schedule_tokens, self._ranks.same_moments)
        self._trainer = trainer
        return trainer

    def _made(self) -> StageTrainer:
        plan, group, replica = self._plan, self._ranks.group, None
        if group.mesh.shard > 1:
            replica = sharded_replica(
                self._stages, plan.stage, plan.inner, self.card.plan, self._device, group, plan.meeting
            )
        return StageTrainer(
            StageDecoder(self._stages, plan.stage) if replica is None else cast(StageDecoder, replica.model),
            plan.inner,
            most_kept=self._most_kept,
            recomputes=plan.pipeline.recomputes,
            plan=self.card.plan,
            device=self._device,
            counts_some=plan.has_counts,
            replica=replica,
        )

    def _kept(self, trainer: StageTrainer) -> KeptMoments:
        plan, path = self._plan, self._plan.moments_file
        if path is not None and self._ranks.group.mesh.shard > 1:
            path = moments_path(path, self._ranks.group)
        return KeptMoments(path, trainer.replica, plan.inner, plan.moments_within_tokens)

    def _learning_rate(self, at: Point) -> float:
        plan = self._plan
        tokens = self._schedule_tokens + at.step * plan.inner.batch_tokens
        return learning_rate_at(plan.inner, plan.total_tokens, tokens)


def _ranks_of(group: RankGroup) -> StageRanks:
    """The cards of a stage: each has all of it, or some rows."""
    return StageShards(group) if group.mesh.shard > 1 else StageRanks(group)


def _per_byte(nats: float | None, bytes_per_token: float) -> float | None:
    """Convert to nats per byte. None if not finite, since JSON has no such numbers."""
    return None if nats is None or not math.isfinite(nats) else nats / bytes_per_token


def stage_group(plan: StagePlan) -> tuple[RankGroup, str]:
    """Meet the processes on the stage's other cards, and open torch's process group with them. Returns why values go a slow way
    between the cards, in one line.

    Raises:
        RankGone: they do not come in time.
        LocalProtocolError: a plan of several cards without a folder to meet in.
    """
    if plan.mesh.num_ranks == 1:
        return alone(), ""
    if plan.meeting is None:
        raise LocalProtocolError(f"{plan.mesh.num_ranks} cards of a stage without a folder to meet in", "the folder")
    from peer.training.ranks.process_group import join_process_group  # imports torch.distributed

    group, device = meet(plan.mesh, plan.rank, plan.meeting), choose_device(plan.device)
    note = prepare_wires(group, device)
    join_process_group(group, device, plan.meeting)
    return group, note


def run_stage(channel: socket.socket, plan: StagePlan, memory_fd: int) -> None:
    """Work by this plan, until the channel ends. The first pass takes as long as any other. The daemon is told why it ends.

    Raises:
        PotluckError: it cannot begin.
        MemoryError, RuntimeError: the machine's or the card's memory is not enough.
    """
    worker: StageWorker | None = None
    try:
        worker = StageWorker(channel, plan, memory_fd, *stage_group(plan))
        warm_up()
        worker.run()
    except (MemoryError, RuntimeError) as error:
        if worker is not None and is_out_of_memory(error):
            worker.say(OutOfMemory(micro_batch=1, card_report=worker.card.report(0)))
        raise
