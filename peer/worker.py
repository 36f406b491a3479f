"""The training process: `python -m peer.worker CHANNEL_FD MEMORY_FD`, started by peer/training/trainer.py.

It owns torch's computation, takes one training step after another, and obeys the daemon's commands at step boundaries. It exits
when the channel closes, which also happens when its parent dies. It does not import hivemind, trio or grpc.

Several of these processes may hold one replica together. Rank 0 obeys the daemon, and shares each action with the others before it
does it: a step, a command, the end. So all do the same in the same order.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.gc_freeze import collect_between_steps, frozen_imports

with frozen_imports():
    from peer.audits.audit_turns import AuditTurns
    from peer.machine.card_faults import card_fault
    from peer.machine.device import card_uuid, choose_device, held_by_others, is_out_of_memory
    from peer.pipeline.stage.stage_channel import StagePlan
    from peer.pipeline.stage.stage_worker import is_stage_plan, run_stage
    from peer.training.evaluation import EvaluationDoesNotFit, EvaluationRanOut
    from peer.training.local_training import LocalTrainer, card_at_work
    from peer.training.ranks.echoes import is_echo
    from peer.training.ranks.rank_group import RankGroup, alone, meet
    from peer.training.replica.compiler import one_line
    from peer.training.supervision.actions import (
        END,
        STEP,
        asks_if_written,
        boundary_word,
        leave_after_daemon,
        read_boundary,
        timeout_of,
        written_within,
    )
    from peer.training.supervision.wires import prepare_wires
    from peer.training.training_plan import MachinePlan, TrainingPlan
    from peer.training.worker_channel import (
        Area,
        Command,
        Failed,
        OutOfMemory,
        ProfileOrder,
        Progress,
        Redone,
        Reply,
        SharedVectors,
        frame,
        is_readable,
        read_message,
    )
    from peer.training.worker_process import NICENESS, TERMINAL_SIGNALS
    from protocol.errors import PotluckError

if TYPE_CHECKING:
    from peer.training.profiling.step_profile import StepProfile

EXIT_OUT_OF_MEMORY: Final = 3
EXIT_FAILED: Final = 4


class Worker:
    """The loop: a step, then the commands that arrived during it.

    Args:
        group: the ranks that hold the trainer's replica together; None for this process alone.
        wire_note: why values go a slow way between their cards, in one line.
    """

    def __init__(
        self,
        channel: socket.socket,
        trainer: LocalTrainer,
        vectors: SharedVectors,
        group: RankGroup | None = None,
        wire_note: str = "",
    ) -> None:
        self._group = group if group is not None else alone()
        self._wire_note = wire_note
        self._channel = channel
        self._trainer = trainer
        self._vectors = vectors
        self._slowdown = trainer.plan.slowdown
        self._is_paused = trainer.plan.is_paused or not trainer.plan.trains
        self._card = card_uuid(choose_device(trainer.plan.device))
        self._was_loaded = False
        self._still_until_s = 0.0
        self._profile: StepProfile | None = None
        self._audits = AuditTurns(trainer)
        self._leaving: Reply | None = None
        """The reply to a snapshot that is still being written."""

        self._early: deque[Command | None] = deque()
        """Commands that arrived during a step, to be obeyed after it; None is the end of the channel."""

    def run(self) -> None:
        """Run until a stop command or the end of the channel. Then keep what the next process continues from.

        Raises:
            RankGone: another process of the replica ended.
        """
        self._begin()
        if self._group.is_first:
            self._lead()
            self._group.share(END)
        else:
            self._follow()
        self._trainer.finish()

    def _begin(self) -> None:
        if not self._trainer.micro_batch and not self._is_paused:
            # Passes are timed on the anchor. A fresh network's gradients are denormal numbers, which a CPU computes far more slowly.
            self._load()
            self._trainer.find_micro_batch()
        if self._trainer.micro_batch and self._trainer.plan.trains:
            self._trainer.compile_layers()  # also if paused: no later order waits for a compiler then
        # Read the anchor last: the daemon may have written a newer one during the search for the micro-batch.
        self._load()
        self._trainer.take_up_moments()
        self._group.wait()  # the daemon frees the anchor's memory once it hears of the first
        self._tell_progress()

    def _load(self) -> None:
        self._trainer.load(self._vectors.view(Area.IN), self._trainer.plan.schedule_tokens)
        self._vectors.put_down()

    def _lead(self) -> None:
        while self._obey(wait_s=None if self._is_paused else 0.0):
            if not self._stand_still():
                return
            if self._is_paused:
                continue
            begin_s = time.perf_counter()
            self._group.share(STEP)
            self._step()
            if not self._idle((self._slowdown - 1.0) * (time.perf_counter() - begin_s)):
                return

    def _follow(self) -> None:
        """Do what rank 0 does, as it tells it."""
        while (action := self._group.share()) != END:
            if action == STEP:
                self._step()
            elif asks_if_written(action):
                self._is_written(timeout_of(action))
            else:
                self._do(Command.model_validate_json(action))
                self._is_done()

    def _step(self) -> None:
        begin_s = time.perf_counter()
        if not self._trainer.micro_batch:
            self._trainer.find_micro_batch()  # it was started paused, when even that is too much
            self._trainer.compile_layers()
        before = self._trainer.counters.tokens_trained
        tokens = self._trainer.step(self._goes_on).tokens_trained - before
        collect_between_steps(self._trainer.counters.step // self._trainer.plan.stride)
        busy_s = time.perf_counter() - begin_s
        self._audits.stepped(busy_s)
        self._tell_progress(busy_s)
        if self._profile is not None and self._profile.stepped(busy_s, tokens):
            self._profile = None

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
        while self._early or is_readable(self._channel, wait_s):
            command = self._early.popleft() if self._early else self._next_command()
            if command is None or command.op == "stop":
                return False
            self._group.share(command.model_dump_json().encode())
            reply = self._do(command)
            if not self._is_done():
                self._leaving = reply
                return True
            self._channel.sendall(frame(reply))
            wait_s = 0.0
        return True

    def _wait_for_snapshot(self, wait_s: float | None) -> bool:
        """Tell the daemon about a snapshot that was being written beside training, once all ranks have written their part. The
        daemon gives no command before that; the end of the channel is seen after it.
        """
        with suppress(TimeoutError):
            self._trainer.bridge.wait_sent(wait_s)  # the others are asked once the own part is written
            self._group.share(written_within(wait_s))
            if self._is_written(wait_s) and self._leaving is not None:
                self._channel.sendall(frame(self._leaving))
                self._leaving = None
        return True

    def _is_done(self) -> bool:
        """Whether every rank has done the command, and no snapshot is still being written."""
        return self._is_written(0.0)

    def _is_written(self, wait_s: float | None) -> bool:
        """Whether every rank has written its part of the snapshot within this time. The shared memory is not needed then. Raises what
        its copy raised.
        """
        is_done = False
        with suppress(TimeoutError):
            self._trainer.bridge.wait_sent(wait_s)
            is_done = True
        is_done_by_all = self._group.all(is_done)
        if is_done_by_all:
            self._vectors.put_down()
        return is_done_by_all

    def _next_command(self) -> Command | None:
        data = read_message(self._channel)
        return None if data is None else Command.model_validate_json(data)

    def _goes_on(self) -> bool:
        """Whether to continue the running step. Only a pause interrupts a long step; other commands wait for its end. Every rank
        hears the same from rank 0.
        """
        word = boundary_word(*self._looked()) if self._group.is_first else b""
        goes_on, units = read_boundary(self._group.share(word))
        for unit, area in units:
            self._trainer.bring(unit, self._vectors.part(Area(area), self._trainer.units.spans[unit]))
        return goes_on

    def _looked(self) -> tuple[bool, list[tuple[int, int]]]:
        """Look into the channel, on rank 0: whether to continue the step, and the units whose values came, with their areas."""
        units: list[tuple[int, int]] = []
        while is_readable(self._channel, 0.0):
            command = self._next_command()
            self._early.append(command)
            if command is None:
                break
            if command.op in ("load", "shift"):
                units.append((command.unit, command.area))
        return all(command is not None and command.op not in ("pause", "stop") for command in self._early), units

    def _do(self, command: Command) -> Reply:
        trainer, vectors, unit = self._trainer, self._vectors, command.unit
        span = trainer.units.spans[unit]
        if command.op in ("load", "shift"):
            self._still_until_s = time.perf_counter() + command.still_s
        match command.op:
            case "load":
                trainer.load_unit(unit, vectors.part(command.area, span), command.schedule_tokens)
                self._was_loaded = True
                self._audits.note_load()
            case "shift":
                shift_N = vectors.part(command.area, span)
                trainer.keep(unit, command.kept)
                trainer.shift(shift_N, command.credited_tokens, command.schedule_tokens, unit)
                self._audits.note_shift(shift_N, command.credited_tokens)
            case "snapshot":
                self._audits.note_snapshot()
                trainer.send_theta(vectors.part(Area.OUT, span), unit)
                self._still_until_s = time.perf_counter() + command.still_s
                counters = trainer.counters
                return Reply(
                    number=command.number,
                    tokens=counters.ready[unit],
                    num_steps=trainer.steps_ready(unit),
                    step=counters.step,
                )
            case "evaluate" | "evaluate_prose" | "score":
                return self._evaluated(command)
            case "audit_keep" | "audit_redo" | "audit_forget":
                return Reply(number=command.number, redone=self._audited(command))
            case "slow":
                self._slowdown = max(1.0, command.factor)
            case "pause":
                self._is_paused = True
                trainer.give_back_memory()
                if self._profile is not None:
                    self._profile.give_up("training was paused")
                    self._profile = None
            case "profile":
                self._begin_profile(command.profile)
            case "resume":
                self._is_paused = not trainer.plan.trains
        self._tell_progress()
        return Reply(number=command.number)

    def _audited(self, command: Command) -> Redone:
        if command.op == "audit_keep":
            return self._audits.keep_next()
        if command.redo is not None:
            return self._audits.redo(command.redo)
        self._audits.forget()
        return Redone()

    def _begin_profile(self, order: ProfileOrder | None) -> None:
        """Record the next steps, on the first rank alone. A recording that is under way goes on, and the answer says so."""
        if order is None or not self._group.is_first:
            return
        from peer.training.profiling.step_profile import StepProfile, subject_of  # nobody else needs torch's profiler

        recording = StepProfile(subject_of(self._trainer), Path(order.folder), order.num_steps, order.request)
        if self._profile is not None:
            recording.give_up("another recording is under way")
        elif self._is_paused:
            recording.give_up("training is paused")
        elif recording.begin():
            self._profile = recording

    def _evaluated(self, command: Command) -> Reply:
        """An evaluation that does not fit into the card's memory is no reason to lose what was trained."""
        trainer, spans = self._trainer, self._trainer.units.spans
        areas = command.areas or (Area.IN,) * len(spans)
        anchors = [self._vectors.part(area, span) for area, span in zip(areas, spans, strict=True)]
        try:
            if command.score is not None:
                return Reply(number=command.number, scored=trainer.scored(anchors, command.score))
            is_prose = command.op == "evaluate_prose"
            nats = trainer.evaluate_prose(anchors) if is_prose else trainer.evaluate(anchors, command.expert)
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
            wire_note=self._wire_note,
            skipped_steps=counters.skipped_steps,
            source_tokens=counters.source_tokens,
            card_report=self._trainer.card.report(self._trainer.micro_batch),
        )
        with suppress(BrokenPipeError, ConnectionResetError):  # the next look at the channel finds its end
            self._channel.sendall(frame(progress))


def _ran_out(plan: TrainingPlan, micro_batch: int) -> OutOfMemory:
    """The report to the daemon. Without a memory limit the next try may succeed, since another program may have held the memory."""
    device = choose_device(plan.device)
    report = card_at_work(plan, device).report(micro_batch)
    is_last = report.next_rung(micro_batch) is None
    is_limited = plan.max_gpu_memory_bytes > 0 and device.type != "cpu"
    others_bytes = held_by_others(device)
    return OutOfMemory(
        micro_batch=micro_batch, is_final=is_limited and is_last, others_bytes=others_bytes, card_report=report
    )


def _report(plan: TrainingPlan, micro_batch: int, error: Exception) -> OutOfMemory | Failed:
    """The daemon's part of the end of this process: what happened, in one line."""
    if is_out_of_memory(error):
        found = _ran_out(plan, micro_batch)
        is_other = isinstance(error, EvaluationRanOut)
        return found.model_copy(update={"in_evaluation": True, "is_final": False}) if is_other else found
    return _failed(plan, error)


def _failed(plan: MachinePlan, error: Exception) -> Failed:
    fault = card_fault(error)
    is_gone = fault is not None and fault.is_gone
    return Failed(reason=_in_words(error), is_of_card=fault is not None, is_gone=is_gone, is_echo=_is_echo(error, plan))


def _in_words(error: Exception) -> str:
    """The error as a part of a sentence."""
    if is_out_of_memory(error):
        return "out of memory"
    fault = card_fault(error)
    if fault is not None:
        return fault.reason
    return error.one_line() if isinstance(error, PotluckError) else one_line(error)


def _is_understood(error: Exception, plan: MachinePlan) -> bool:
    """Whether a line says everything of the error, so that no traceback is needed."""
    is_others = _is_echo(error, plan)
    return is_others or is_out_of_memory(error) or card_fault(error) is not None or isinstance(error, PotluckError)


def _is_echo(error: Exception, plan: MachinePlan) -> bool:
    """Whether another rank is most likely the reason."""
    return plan.mesh.num_ranks > 1 and card_fault(error) is None and is_echo(type(error).__name__, str(error))


def _run_stage(channel: socket.socket, plan: StagePlan) -> int:
    try:
        run_stage(channel, plan, int(sys.argv[2]))
    except (BrokenPipeError, ConnectionResetError):
        pass
    except Exception as error:
        with suppress(OSError):
            channel.sendall(frame(_failed(plan, error)))
        if not _is_understood(error, plan):
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
    work, num_ranks = _work_of(channel, first)
    if num_ranks == 1:
        return work()
    leave_after_daemon(channel, EXIT_FAILED)
    code = EXIT_FAILED
    try:
        code = work()
    except Exception:  # noqa: BLE001 - this process ends here
        traceback.print_exc()
    finally:
        _leave(code)
    return code


def _work_of(channel: socket.socket, first: bytes) -> tuple[Callable[[], int], int]:
    """The work that the plan in the first message asks for, and how many processes share it."""
    if is_stage_plan(first):
        of_stage = StagePlan.model_validate_json(first)
        return partial(_run_stage, channel, of_stage), of_stage.mesh.num_ranks
    plan = TrainingPlan.model_validate_json(first)
    return partial(_train, channel, plan), plan.mesh.num_ranks


def _leave(code: int) -> None:
    """End without torch's own goodbye, in which ranks wait for each other."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _train(channel: socket.socket, plan: TrainingPlan) -> int:
    trainer: LocalTrainer | None = None
    try:
        group = meet(plan.mesh, plan.rank, plan.meeting) if plan.meeting is not None else alone()
        wire_note = prepare_wires(group, choose_device(plan.device)) if group.size > 1 else ""
        trainer = LocalTrainer(plan, group)
        vectors = SharedVectors(int(sys.argv[2]), trainer.schema.num_elements)
        Worker(channel, trainer, vectors, group, wire_note).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the daemon is gone, so nothing can be reported
    except Exception as error:
        with suppress(OSError):
            channel.sendall(frame(_report(plan, trainer.micro_batch if trainer is not None else 0, error)))
        if not _is_understood(error, plan):
            raise
        return EXIT_OUT_OF_MEMORY if is_out_of_memory(error) else EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
