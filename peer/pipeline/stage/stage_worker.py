"""A training process that holds one stage of a pipeline run. It carries out one order after another and does nothing by itself.

It starts like every training process (peer/worker.py); its first message says that it holds a stage. It reads the run's text if
its stage is the first, which needs the tokens, or the last, which needs the next ones. On several cards there is one on each. The
first obeys the daemon, and passes on each order that the others have a part in.
"""

from __future__ import annotations

import json
import math
import socket
import time
from functools import partial
from typing import Final

import torch

from averaging.data.assignment import heldout_windows, step_windows
from averaging.data.token_reader import TokenReader
from peer.machine.device import card_uuid, choose_device, is_out_of_memory, limit_memory
from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.lane_compute import ComputeContext, LaneShape, LaneWork, Targets
from peer.pipeline.stage.stage_channel import STAGE_KIND, STATE, StageOrder, StagePlan, StageReply
from peer.pipeline.stage.stage_ranks import RanksApart, StageRanks
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.card_at_work import CardAtWork
from peer.training.optimizers.learning_rate import learning_rate_at
from peer.training.plan.card_memory_core import stage_load
from peer.training.ranks.agreed_plan import agreed_plan
from peer.training.ranks.rank_group import RankGone, RankGroup, alone, meet
from peer.training.replica.compiler import Compiler
from peer.training.replica.moments import KeptMoments
from peer.training.replica.text_batches import TextBatch, text_batch
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
_OF_THE_FIRST: Final = ("slow", "theta", "snapshot")
"""Orders that only the first card obeys."""

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
        self._ranks = StageRanks(group or alone())
        self._stages, self._lanes = plan.stages, plan.lanes
        self._device = choose_device(plan.device)
        self._card = card_uuid(self._device)
        if plan.max_gpu_memory_bytes:
            limit_memory(self._device, plan.max_gpu_memory_bytes)
        num_elements = stage_schema(self._stages, plan.stage).num_elements
        self._vectors = SharedVectors(memory_fd, num_elements)
        self._train, self._heldout = (
            TokenReader(shards, plan.token_bytes, has_counts=plan.has_counts, spans=spans if shards else ())
            for shards, spans in (
                (plan.train_shards, plan.train_spans),
                (plan.heldout_shards, plan.heldout_spans),
            )
        )
        sequences = plan.inner.batch_tokens // plan.model.context_tokens
        self._shape = (sequences // plan.pipeline.micro_batches, plan.model.context_tokens)
        self._sequences = sequences
        self._own_shape = (self._shape[0] // self._ranks.group.size, self._shape[1])
        self.card = CardAtWork(
            self._device,
            stage_load(self._stages, plan.stage, 1 if plan.pipeline.recomputes else self._most_kept),
            plan.inner,
            plan.wishes,
            most_bytes=plan.max_gpu_memory_bytes,
            given=plan.card_plan,
            micro_batch=self._own_shape[0],
            num_replicas=self._ranks.group.size,
        )
        self._compiler = Compiler(plan.compile_folder, process=f"{self._device}-{self._ranks.group.rank}")
        self.card.plan, note = self._compiler.prepared(self.card.plan, plan.model, self._device)
        self.card.plan = agreed_plan(self.card.plan, self._ranks.group)
        self._why_eager = note or self.card.why_eager
        self._schedule_tokens = 0
        self._slowdown = plan.slowdown
        self._work: LaneWork | None = None
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
            reply, left = self._answer(order, blob)
            self._vectors.put_down()
            if order.op in _SLOWED:
                time.sleep((self._slowdown - 1.0) * (time.perf_counter() - begin_s))
            busy_s = time.perf_counter() - begin_s
            for piece in with_bytes(frame(reply.model_copy(update=self._of_machine(busy_s))), left):
                self._channel.sendall(piece)

    def _pass_on(self, order: StageOrder, data: bytes, blob: bytes) -> None:
        """Give the other cards an order, with what arrived from another stage; the first one reads snapshots alone."""
        group = self._ranks.group
        if group.size > 1 and order.op not in _OF_THE_FIRST:
            group.share(data)
            if order.op == "arrived":
                group.share_all(blob)

    def _follow(self) -> None:
        """Do what the first card does, as it passes it on."""
        group = self._ranks.group
        while (data := group.share()) != END:
            order = StageOrder.model_validate_json(data)
            self._answer(order, group.share_all() if order.op == "arrived" else b"")
            if order.op in _TOLD:
                self._channel.sendall(frame(StageReply(number=STATE).model_copy(update=self._of_machine(0.0))))

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
                return done.model_copy(update={"counts": counts, "loss_nats": self._loss_of(work)}), b""
            case "snapshot":
                data = work.snapshot()
                return done.model_copy(update={"num_bytes": len(data)}), data
            case "restore":
                work.restore(blob)
            case "theta":
                self._vectors.write(Area.OUT, work.theta())
            case "adopt":
                self._schedule_tokens = order.schedule_tokens
                work.adopt(self._anchor())
                if self._moments is not None:
                    self._moments.note_commit(self._schedule_tokens)
            case _:
                raise LocalProtocolError(f"order {order.op}", "one that is known")
        return done, b""

    def _anchor(self) -> torch.Tensor:
        """(N,) that came with the order, on the first card; the others get the values from it."""
        return self._vectors.read(Area.IN) if self._ranks.is_first else torch.empty(0)

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
        targets_of = self._targets_of if plan.has_counts else None
        trainer_of = partial(self._trainer, self._anchor())
        tools = ComputeContext(form, trainer_of, self._tokens_of, self._learning_rate, targets_of, self._ranks)
        before, self._work = self._work, LaneWork(tools, order.lane, plan.stage)
        self._work.open()
        self._continue(self._work, before)

    def _continue(self, work: LaneWork, before: LaneWork | None) -> None:
        """Give the stage the moments of its last lane or, in the first lane of this process, those of the last process."""
        replica, earlier = work.replica, before.replica if before is not None else None
        if replica is None or not self._ranks.is_first:
            return
        plan = self._plan
        self._moments = KeptMoments(plan.moments_file, replica, plan.inner, plan.moments_within_tokens)
        if earlier is None:
            self._moments.take_up(self._schedule_tokens)
        else:
            replica.optimizer.load_moments(earlier.optimizer.moments())

    def _trainer(self, anchor_N: torch.Tensor, stage: int) -> StageTrainer:
        plan = self._plan
        trainer = StageTrainer(
            StageDecoder(self._stages, stage),
            plan.inner,
            most_kept=self._most_kept,
            recomputes=plan.pipeline.recomputes,
            plan=self.card.plan,
            device=self._device,
            counts_some=plan.has_counts,
        )
        self._ranks.led(lambda: trainer.load(anchor_N), trainer.replica.parameters)
        passes = trainer.passes.trial_passes(self._own_shape, self._device)
        self._compile_note = trainer.replica.compile(passes, self._compiler) or self._why_eager
        return trainer

    def _learning_rate(self, at: Point) -> float:
        plan = self._plan
        tokens = self._schedule_tokens + at.step * plan.inner.batch_tokens
        return learning_rate_at(plan.inner, plan.total_tokens, tokens)

    def _tokens_of(self, lane: int, at: Point, number: int) -> torch.Tensor:
        """(B, T + 1) int64 of one micro-batch. Any peer can compute them again from the run's seed, the lane and the step."""
        return self._text_of(lane, at, number)[0].tokens_BT

    def _targets_of(self, lane: int, at: Point, number: int) -> Targets:
        """The targets of one micro-batch, and their weight among those of its step, or of the held-out text."""
        batch, num_counted = self._text_of(lane, at, number)
        targets_BT = batch.tokens_BT[:, 1:] if batch.targets_BT is None else batch.targets_BT
        weight = float((targets_BT >= 0).sum())
        return Targets(targets_BT, weight, weight / max(1, num_counted))

    def _text_of(self, lane: int, at: Point, number: int) -> tuple[TextBatch, int]:
        """The text of one micro-batch, and how many tokens count in all micro-batches of its step."""
        plan, window = self._plan, self._plan.model.context_tokens + 1
        step = at.round * self._lanes.inner_steps + at.step
        rows, reader = self._shape[0], self._train
        if number >= self._lanes.num_micro_batches:
            number, reader = number - self._lanes.num_micro_batches, self._heldout
            starts = heldout_windows(rows * self._lanes.heldout_passes, reader.spans, window)
        else:
            starts = step_windows(plan.seed, f"lane {lane}", step, self._sequences, reader.spans, window).starts
        part = starts[number * rows : (number + 1) * rows]
        return text_batch(reader, part, window), reader.num_counted(starts, window) if reader.is_marked else 0


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
    from peer.training.ranks.process_group import open_process_group  # imports torch.distributed

    group, device = meet(plan.mesh, plan.rank, plan.meeting), choose_device(plan.device)
    note = prepare_wires(group, device)
    open_process_group(group, device, plan.meeting)
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
            channel.sendall(frame(OutOfMemory(micro_batch=1, card_report=worker.card.report(0))))
        raise
