"""Training processes of one stage: a plan with a tiny model and text, the worker's loop in a thread, and that in a process's place."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.pipeline.stage.snapshot_room import SnapshotRoom, rooms_bytes
from peer.pipeline.stage.stage_channel import StageOp, StageOrder, StagePlan, StageReply, parse_reply
from peer.pipeline.stage.stage_worker import StageWorker, run_stage
from peer.training.ranks.rank_group import RankGroup
from peer.training.worker_channel import SharedVectors, frame, mapping_bytes, read_exactly, read_message
from peer.training.worker_process import WorkerProcess
from protocol.run.pipeline_section import PipelineSection
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import stage_schema
from tests.at_once import stage_units
from tests.peer.training_world import training_plan

ENDS_WITHIN_S = 300.0
MODEL = LlamaConfig(dim=16, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16, is_tied=False)
PIPELINE = PipelineSection(layers="1, 1", inner_steps=2, micro_batches=2, forward_codec="fp32", backward_codec="fp32")
STEP_TOKENS = 64


def stage_plan(folder: Path, stage: int, **changes: object) -> StagePlan:
    """Of one of two stages of MODEL, on one core."""
    whole = training_plan(folder)
    plan = StagePlan(
        run_id="ab" * 32,
        model=MODEL,
        pipeline=PIPELINE,
        inner=whole.inner,
        stage=stage,
        seed=1,
        total_tokens=1_000_000,
        train_shards=whole.train_shards,
        heldout_shards=whole.heldout_shards,
        device="cpu",
        num_threads=1,
    )
    return plan.model_copy(update=changes)


def anchor(plan: StagePlan) -> torch.Tensor:
    """(N,) of the plan's stage."""
    begin, stop = stage_units(plan.stages).spans[plan.stage]
    return genesis_anchor(model_schema(MODEL), 1)[begin:stop].clone()


@dataclass
class Asker:
    """The daemon's end of a stage's training process."""

    channel: socket.socket
    vectors: SharedVectors
    room: SnapshotRoom
    number: int = 0

    def ask(self, op: StageOp, blob: bytes = b"", **fields: object) -> tuple[StageReply, bytes]:
        """The result of an order."""
        self.number += 1
        order = StageOrder.model_validate({"number": self.number, "op": op, "num_bytes": len(blob), **fields})
        self.channel.sendall(frame(order) + blob)
        data = read_message(self.channel)
        assert data is not None
        reply = parse_reply(data)
        assert reply.number == self.number
        left = read_exactly(self.channel, reply.num_bytes) if reply.num_bytes else b""
        assert left is not None
        return reply, left

    def snapshot(self) -> bytes:
        """A snapshot, once it is written."""
        reply, _ = self.ask("snapshot")
        self.ask("written")
        self.ask("theta")  # of rows on several cards, which all have written theirs then
        return bytes(self.room.take(reply.snapshot_bytes))

    def restore(self, data: bytes) -> StageReply:
        """The reply to an order to continue from this snapshot."""
        self.room.give(data)
        reply, _ = self.ask("restore", snapshot_bytes=len(data))
        self.room.forget(len(data))
        return reply


def forward(first: Asker, last: Asker, number: int, *, step: int = 0) -> StageReply:
    """A micro-batch goes forward through both stages. Returns the last one's reply."""
    there = {"step": step, "micro_batch": number, "is_backward": False}
    last.ask("arrived", first.ask("run_pass", **there)[1], **there)
    return last.ask("run_pass", **there)[0]


def one_step(first: Asker, last: Asker, *, step: int = 0, together: bool = False) -> tuple[float, float]:
    """An inner step of both stages with all its micro-batches, one after the other or with all of them between their passes. Returns
    its squared norm and its mean loss.
    """
    numbers = range(PIPELINE.micro_batches)
    for batches in [numbers] if together else [[number] for number in numbers]:
        for number in batches:
            forward(first, last, number, step=step)
        for number in batches:
            back = {"step": step, "micro_batch": number, "is_backward": True}
            first.ask("arrived", last.ask("run_pass", **back)[1], **back)
            first.ask("run_pass", **back)
    square = sum(float.fromhex(asker.ask("square")[0].square) for asker in (first, last))
    losses = [asker.ask("take_step", step=step, whole_square=square.hex())[0].loss_nats for asker in (first, last)]
    return square, losses[1] or 0.0


def opened(memory: Path) -> IO[bytes]:
    """A file in place of shared memory, which is made if it is not there. Writes go where they are meant to, not to its end."""
    memory.touch()
    return memory.open("r+b")


@contextmanager
def stage_worker(plan: StagePlan, group: RankGroup | None = None, memory: Path | None = None) -> Iterator[Asker]:
    """The worker's loop in a thread of the test; with `group` that of the first of several cards, which share the file `memory`."""
    ours, theirs = socket.socketpair()
    schema = stage_schema(plan.stages, plan.stage)
    with ours, theirs, opened(memory) if memory is not None else tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), mapping_bytes(schema.num_elements) + rooms_bytes(schema))
        loop = threading.Thread(target=StageWorker(theirs, plan, file.fileno(), group).run)
        loop.start()
        ours.settimeout(ENDS_WITHIN_S)
        try:
            yield Asker(ours, SharedVectors(file.fileno(), schema.num_elements), SnapshotRoom(file.fileno(), schema))
        finally:
            ours.shutdown(socket.SHUT_WR)
            loop.join(ENDS_WITHIN_S)
            gc.enable()  # a training process takes it in its own hands
        assert not loop.is_alive()


@dataclass
class ThreadedProcess:
    """In the place of a training process: a thread that works as one, and can be killed as one."""

    channel: socket.socket
    memory_fd: int
    pid: int
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Wait for the plan, and work by it."""
        try:
            first = read_message(self.channel)
            if first is not None:
                run_stage(self.channel, StagePlan.model_validate_json(first), self.memory_fd)
        except (OSError, MemoryError):
            pass  # killed in the middle of a message, or out of memory, which it has told
        finally:
            self.channel.close()
            os.close(self.memory_fd)
            gc.enable()  # a training process takes it in its own hands
            self.over.set()

    def poll(self) -> int | None:
        """As of subprocess.Popen, each of these."""
        return 0 if self.over.is_set() else None

    def kill(self) -> None:
        """As `poll`."""
        if not self.over.is_set():
            self.channel.shutdown(socket.SHUT_RDWR)
            self.over.set()  # also where the thread sleeps on

    def wait(self) -> int:
        """As `poll`."""
        self.over.wait(ENDS_WITHIN_S)
        return 0


@dataclass
class Starts:
    """Starts threads instead of processes (peer/training/worker_process.py's `start_worker`)."""

    started: list[ThreadedProcess] = field(default_factory=list)
    refusals: int = 0
    """So many of the next starts fail."""

    def __call__(self, memory_fd: int) -> WorkerProcess:
        """As `start_worker`."""
        if self.refusals:
            self.refusals -= 1
            raise OSError("no process is left")
        ours, theirs = socket.socketpair()
        one = ThreadedProcess(theirs, os.dup(memory_fd), 1000 + len(self.started))
        self.started.append(one)
        threading.Thread(target=one.run, daemon=True).start()
        return WorkerProcess(cast("subprocess.Popen[bytes]", one), ours)
