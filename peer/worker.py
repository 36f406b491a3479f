"""The training process: `python -m peer.worker CHANNEL_FD MEMORY_FD`, started by peer/training/trainer.py.

It owns torch's computation, takes one training step after another, and obeys the daemon's commands at step boundaries. It exits
when the channel closes, which also happens when its parent dies. It does not import hivemind, trio or grpc.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Final

from averaging.gc_freeze import frozen_imports

with frozen_imports():
    from peer.machine.card_faults import card_fault
    from peer.machine.device import card_uuid, choose_device, held_by_others, is_out_of_memory
    from peer.pipeline.stage.stage_channel import FAREWELL, StageReply
    from peer.pipeline.stage.stage_worker import is_stage_plan, run_stage
    from peer.training.evaluation import EvaluationDoesNotFit
    from peer.training.local_training import LocalTrainer, card_at_work
    from peer.training.plan.plan_core import next_rung
    from peer.training.replica.compiler import one_line
    from peer.training.training_plan import TrainingPlan
    from peer.training.worker_channel import (
        Area,
        Command,
        Failed,
        OutOfMemory,
        Progress,
        Reply,
        SharedVectors,
        frame,
        read_message,
    )
    from peer.training.worker_process import TERMINAL_SIGNALS
    from protocol.errors import PotluckError

NICENESS: Final = 10
"""The volunteer's own programs take priority."""

EXIT_OUT_OF_MEMORY: Final = 3
EXIT_FAILED: Final = 4

STEPS_A_COLLECTION: Final = 100


class Worker:
    """The loop: a step, then the commands that arrived during it."""

    def __init__(self, channel: socket.socket, trainer: LocalTrainer, vectors: SharedVectors) -> None:
        self._channel = channel
        self._trainer = trainer
        self._vectors = vectors
        self._slowdown = trainer.plan.slowdown
        self._is_paused = trainer.plan.is_paused or not trainer.plan.trains
        self._card = card_uuid(choose_device(trainer.plan.device))
        self._was_loaded = False
        self._still_until_s = 0.0
        self._leaving: Reply | None = None
        """The reply to a snapshot that is still being written."""

        self._early: deque[Command | None] = deque()
        """Commands that arrived during a step, to be obeyed after it; None is the end of the channel."""

    def run(self) -> None:
        """Run until a stop command or the end of the channel. Then keep what the next process continues from."""
        self._run()
        self._trainer.finish()

    def _run(self) -> None:
        if not self._trainer.micro_batch and not self._is_paused:
            self._trainer.find_micro_batch()
        if self._trainer.micro_batch and self._trainer.plan.trains:
            self._trainer.compile_layers()  # also if paused: no later order waits for a compiler then
        # Read the anchor last: the daemon may have written a newer one during the search for the micro-batch.
        self._trainer.load(self._vectors.view(Area.IN), self._trainer.plan.schedule_tokens)
        self._trainer.take_up_moments()
        self._vectors.put_down()
        self._tell_progress()
        while self._obey(wait_s=None if self._is_paused else 0.0):
            if not self._stand_still():
                return
            if self._is_paused:
                continue
            begin_s = time.perf_counter()
            if not self._trainer.micro_batch:
                self._trainer.find_micro_batch()  # it was started paused, when even that is too much
                self._trainer.compile_layers()
            self._trainer.step(self._goes_on)
            self._collect_garbage()
            self._tell_progress(time.perf_counter() - begin_s)
            if not self._idle((self._slowdown - 1.0) * (time.perf_counter() - begin_s)):
                return

    def _collect_garbage(self) -> None:
        """The collector runs between steps, because a pass through all objects within a step leaves a card without work."""
        gc.disable()
        if self._trainer.counters.step % STEPS_A_COLLECTION == 0:
            gc.collect(1)

    def _idle(self, idle_s: float) -> bool:
        """A slowed worker waits after each step, and still obeys. A step that a load discarded causes no wait."""
        until_s = time.perf_counter() + idle_s
        self._was_loaded = False
        while (left_s := until_s - time.perf_counter()) > 0 and not self._was_loaded:
            if not self._obey(wait_s=left_s):
                return False
        return True

    def _stand_still(self) -> bool:
        """Wait after a snapshot that asked for it, until a commit comes or the time is over. False at the end of the channel."""
        while (left_s := self._still_until_s - time.perf_counter()) > 0:
            if not self._obey(wait_s=left_s):
                return False
        return True

    def _obey(self, wait_s: float | None) -> bool:
        """Obey the pending commands; wait up to `wait_s` (None: without limit) for the first one. False at the end."""
        if self._leaving is not None:
            return self._wait_for_snapshot(wait_s)
        while self._early or select.select([self._channel], [], [], wait_s)[0]:
            command = self._early.popleft() if self._early else self._next_command()
            if command is None or command.op == "stop":
                return False
            reply = self._do(command)
            if self._trainer.bridge.is_sending:
                self._leaving = reply
                return True
            self._vectors.put_down()
            self._channel.sendall(frame(reply))
            wait_s = 0.0
        return True

    def _wait_for_snapshot(self, wait_s: float | None) -> bool:
        """Tell the daemon about a snapshot that was being written beside training, once it is done. The daemon gives no command
        before that; the end of the channel is seen after it.
        """
        with suppress(TimeoutError):
            self._trainer.bridge.wait_sent(wait_s)
            self._vectors.put_down()
            if self._leaving is not None:
                self._channel.sendall(frame(self._leaving))
            self._leaving = None
        return True

    def _next_command(self) -> Command | None:
        data = read_message(self._channel)
        return None if data is None else Command.model_validate_json(data)

    def _goes_on(self) -> bool:
        """Whether to continue the running step. Only a pause interrupts a long step; other commands wait for its end."""
        while select.select([self._channel], [], [], 0.0)[0]:
            command = self._next_command()
            self._early.append(command)
            if command is None:
                break
            if command.op in ("load", "shift"):
                self._trainer.bring(command.unit, self._vectors.part(Area.IN, self._trainer.units.spans[command.unit]))
        return all(command is not None and command.op not in ("pause", "stop") for command in self._early)

    def _do(self, command: Command) -> Reply:
        trainer, vectors, unit = self._trainer, self._vectors, command.unit
        span = trainer.units.spans[unit]
        if command.op in ("load", "shift"):
            self._still_until_s = 0.0
        match command.op:
            case "load":
                trainer.load_unit(unit, vectors.part(Area.IN, span), command.schedule_tokens)
                self._was_loaded = True
            case "shift":
                shift_N = vectors.part(Area.IN, span)
                trainer.keep(unit, command.kept)
                trainer.shift(shift_N, command.credited_tokens, command.schedule_tokens, unit)
            case "snapshot":
                trainer.send_theta(vectors.part(Area.OUT, span), unit)
                self._still_until_s = time.perf_counter() + command.still_s
                counters = trainer.counters
                return Reply(
                    number=command.number,
                    tokens=counters.ready[unit],
                    num_steps=trainer.steps_ready(unit),
                    step=counters.step,
                )
            case "evaluate" | "evaluate_prose":
                return self._evaluated(command)
            case "slow":
                self._slowdown = max(1.0, command.factor)
            case "pause":
                self._is_paused = True
                trainer.give_back_memory()
            case "resume":
                self._is_paused = not trainer.plan.trains
        self._tell_progress()
        return Reply(number=command.number)

    def _evaluated(self, command: Command) -> Reply:
        """An evaluation that does not fit into the card's memory is no reason to lose what was trained."""
        trainer, values_N = self._trainer, self._vectors.view(Area.IN)
        try:
            is_prose = command.op == "evaluate_prose"
            nats = trainer.evaluate_prose(values_N) if is_prose else trainer.evaluate(values_N, command.expert)
        except EvaluationDoesNotFit:
            return Reply(number=command.number, does_not_fit=True)
        return Reply(number=command.number, loss_nats=nats)

    def _tell_progress(self, busy_s: float = 0.0) -> None:
        counters = self._trainer.counters
        progress = Progress(
            step=counters.step,
            tokens_ready=counters.tokens_ready,
            others_ready=counters.ready[1:],
            tokens_trained=counters.tokens_trained,
            loss_nats=counters.loss_nats,
            micro_batch=self._trainer.micro_batch,
            busy_s=busy_s,
            card=self._card,
            compile_note=self._trainer.compile_note,
            skipped_steps=counters.skipped_steps,
            card_report=self._trainer.card.report(self._trainer.micro_batch),
        )
        self._channel.sendall(frame(progress))


def _ran_out(plan: TrainingPlan, micro_batch: int) -> OutOfMemory:
    """The report to the daemon. Without a memory limit the next try may succeed, since another program may have held the memory."""
    device = choose_device(plan.device)
    report = card_at_work(plan, device).report(micro_batch)
    is_last = next_rung(report.plan, micro_batch, report.kind, may_be_int8=report.may_be_int8) is None
    is_limited = plan.max_gpu_memory_bytes > 0 and device.type != "cpu"
    others_bytes = held_by_others(device)
    return OutOfMemory(
        micro_batch=micro_batch, is_final=is_limited and is_last, others_bytes=others_bytes, card_report=report
    )


def _report(plan: TrainingPlan, micro_batch: int, error: Exception) -> OutOfMemory | Failed:
    """The daemon's part of the end of this process: what happened, in one line."""
    if is_out_of_memory(error):
        return _ran_out(plan, micro_batch)
    fault = card_fault(error)
    is_gone = fault is not None and fault.is_gone
    return Failed(reason=_in_words(error), is_of_card=fault is not None, is_gone=is_gone)


def _in_words(error: Exception) -> str:
    """The error as a part of a sentence."""
    if is_out_of_memory(error):
        return "out of memory"
    fault = card_fault(error)
    if fault is not None:
        return fault.reason
    return error.one_line() if isinstance(error, PotluckError) else one_line(error)


def _is_understood(error: Exception) -> bool:
    """Whether a line says everything of the error, so that no traceback is needed."""
    return is_out_of_memory(error) or card_fault(error) is not None or isinstance(error, PotluckError)


def _run_stage(channel: socket.socket, first: bytes) -> int:
    try:
        run_stage(channel, first, int(sys.argv[2]))
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        with suppress(OSError):
            channel.sendall(frame(StageReply(number=FAREWELL, failed=_in_words(error))))
        if not _is_understood(error):
            raise
        return EXIT_OUT_OF_MEMORY if is_out_of_memory(error) else EXIT_FAILED
    return 0


def main() -> int:
    """Exit code 3 after running out of memory, 4 after another failure that was reported."""
    os.nice(NICENESS)
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the daemon handles them, and ends this process
    channel = socket.socket(fileno=int(sys.argv[1]))
    first = read_message(channel)
    if first is None:
        return 0
    if is_stage_plan(first):
        return _run_stage(channel, first)
    plan = TrainingPlan.model_validate_json(first)
    trainer: LocalTrainer | None = None
    try:
        trainer = LocalTrainer(plan)
        vectors = SharedVectors(int(sys.argv[2]), trainer.schema.num_elements)
        Worker(channel, trainer, vectors).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the daemon is gone, so nothing can be reported
    except Exception as error:
        with suppress(OSError):
            channel.sendall(frame(_report(plan, trainer.micro_batch if trainer is not None else 0, error)))
        if not _is_understood(error):
            raise
        return EXIT_OUT_OF_MEMORY if is_out_of_memory(error) else EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
