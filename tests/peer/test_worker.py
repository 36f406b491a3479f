"""The worker's loop in a thread of the test, and its process where the process is the point."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from peer import worker as worker_module
from peer.audits.audit_turns import NOT_KEPT
from peer.training import card_at_work, local_training
from peer.training.local_training import Counters, LocalTrainer
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.cards_core import Card
from peer.training.profiling.profile_summary import SUMMARY_FILE, ProfileSummary
from peer.training.ranks.rank_group import RankGroup
from peer.training.replica.bridge import Bridge
from peer.training.replica.replica import Replica
from peer.training.training_plan import MachinePlan, TrainingPlan
from peer.training.worker_channel import (
    Area,
    Command,
    Failed,
    Op,
    OutOfMemory,
    ProfileOrder,
    Progress,
    Redone,
    RedoOrder,
    Reply,
    SharedVectors,
    frame,
    mapping_bytes,
    parse_event,
    read_message,
)
from peer.worker import EXIT_FAILED, EXIT_OUT_OF_MEMORY, Worker
from protocol.errors import MachineError
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_units import model_units
from tests.benchmarks.timed_worker import (
    Trained,
    TrainingTimes,
    mean_step_s,
    read_times,
    trained_share,
    undisturbed,
)
from tests.peer.failing_worker import FAILS_VARIABLE
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan
from tests.peer.worker_world import stage_plan

ANCHOR_N = genesis_anchor(model_schema(MODEL), 1)
ENDS_WITHIN_S = 300.0


class Daemon:
    """The other end of a worker's channel."""

    def __init__(self, channel: socket.socket, vectors: SharedVectors) -> None:
        channel.settimeout(ENDS_WITHIN_S)
        self.channel = channel
        self.vectors = vectors
        self._number = 0

    def event(self) -> Progress | Reply | OutOfMemory | None:
        data = read_message(self.channel)
        return None if data is None else parse_event(data)

    def progress(self) -> Progress:
        event = self.event()
        assert isinstance(event, Progress)
        return event

    def order(self, command: Command) -> Reply:
        """Send a command; events before its reply are let go."""
        self._number += 1
        self.channel.sendall(frame(command.model_copy(update={"number": self._number})))
        while not isinstance(event := self.event(), Reply):
            assert event is not None
        assert event.number == self._number
        return event


@contextmanager
def _memory() -> Iterator[tuple[BinaryIO, SharedVectors]]:
    with tempfile.TemporaryFile() as file:
        os.ftruncate(file.fileno(), mapping_bytes(ANCHOR_N.numel()))
        vectors = SharedVectors(file.fileno(), ANCHOR_N.numel())
        vectors.write(Area.IN, ANCHOR_N)
        yield file, vectors


@contextmanager
def running(plan: TrainingPlan) -> Iterator[Daemon]:
    ours, theirs = socket.socketpair()
    with ours, theirs, _memory() as (_, vectors):
        loop = threading.Thread(target=Worker(theirs, LocalTrainer(plan), vectors).run)
        loop.start()
        try:
            yield Daemon(ours, vectors)
        finally:
            ours.shutdown(socket.SHUT_WR)
            loop.join(ENDS_WITHIN_S)
        assert not loop.is_alive()


@pytest.fixture
def plan(tmp_path: Path) -> TrainingPlan:
    return training_plan(tmp_path)


@contextmanager
def process(plan: TrainingPlan, module: str = "peer.worker") -> Iterator[tuple[Daemon, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    with ours, _memory() as (file, vectors):
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(file.fileno())]
        child = subprocess.Popen(command, pass_fds=(theirs.fileno(), file.fileno()), stderr=subprocess.PIPE)
        theirs.close()
        try:
            ours.sendall(frame(plan))
            yield Daemon(ours, vectors), child
        finally:
            child.kill()
            child.communicate()


def test_it_begins_at_the_anchor_and_tells_each_step(plan: TrainingPlan) -> None:
    with running(plan) as daemon:
        first, second = daemon.progress(), daemon.progress()
    assert (first.step, first.tokens_ready, first.loss_nats) == (0, 0, None)
    assert (second.step, second.tokens_ready, second.micro_batch) == (1, BATCH_TOKENS, 4)
    assert first.card == second.card == "", "no NVIDIA card trains here"
    assert second.loss_nats is not None


def test_the_search_for_the_micro_batch_times_passes_over_the_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[torch.Tensor] = []

    def find_micro_batch(trainer: LocalTrainer) -> int:
        timed.append(trainer.theta())
        trainer.micro_batch = 4
        return 4

    monkeypatch.setattr(LocalTrainer, "find_micro_batch", find_micro_batch)
    with running(training_plan(tmp_path, micro_batch=0)) as daemon:
        assert daemon.progress().step == 0
    assert [torch.equal(theta_N, ANCHOR_N) for theta_N in timed] == [True]


def test_one_that_is_brought_back_goes_on_in_the_data_and_in_the_schedule(tmp_path: Path) -> None:
    inner = training_plan(tmp_path).inner.model_copy(update={"warmup_tokens": 1_000_000})
    moved = {}
    for schedule_tokens in (0, 2_000_000):
        plan = training_plan(tmp_path, inner=inner, schedule_tokens=schedule_tokens, first_step=9, slowdown=1e9)
        with running(plan) as daemon:
            assert daemon.progress().step == 9
            assert daemon.progress().step == 10
            daemon.order(Command(number=0, op="snapshot"))
            moved[schedule_tokens] = float((daemon.vectors.read(Area.OUT) - ANCHOR_N).norm())
    assert moved[2_000_000] > 1000 * moved[0] > 0


def test_orders_are_carried_out_between_steps(plan: TrainingPlan) -> None:
    with running(plan) as daemon:
        while daemon.progress().step < 3:
            pass
        daemon.order(Command(number=0, op="pause"))
        snapshot = daemon.order(Command(number=0, op="snapshot"))
        theta_N = daemon.vectors.read(Area.OUT)
        assert snapshot.tokens == BATCH_TOKENS * snapshot.num_steps > 0
        daemon.vectors.write(Area.IN, ANCHOR_N - theta_N)
        daemon.order(Command(number=0, op="shift", credited_tokens=snapshot.tokens))
        shifted = daemon.order(Command(number=0, op="snapshot"))
        assert (shifted.tokens, shifted.num_steps) == (0, 0)
        assert torch.equal(daemon.vectors.read(Area.OUT), theta_N + (ANCHOR_N - theta_N))
        daemon.vectors.write(Area.IN, ANCHOR_N)
        loss = daemon.order(Command(number=0, op="evaluate")).loss_nats
        assert loss is not None
        assert 4.0 < loss < 7.0
        daemon.order(Command(number=0, op="load"))
        daemon.order(Command(number=0, op="snapshot"))
        assert torch.equal(daemon.vectors.read(Area.OUT), ANCHOR_N)


def test_after_a_snapshot_that_asks_for_it_no_step_is_taken_until_a_commit_comes(plan: TrainingPlan) -> None:
    with running(plan) as daemon:
        daemon.progress()
        first = daemon.order(Command(number=0, op="snapshot", still_s=100.0))
        assert daemon.order(Command(number=0, op="evaluate")).loss_nats is not None
        assert daemon.order(Command(number=0, op="snapshot", still_s=100.0)).step == first.step
        daemon.vectors.write(Area.IN, torch.zeros_like(ANCHOR_N))
        daemon.order(Command(number=0, op="shift", credited_tokens=first.tokens))
        while daemon.progress().step <= first.step:
            pass


def test_a_unit_is_snapshot_and_moved_in_its_own_part_of_the_areas(tmp_path: Path) -> None:
    with running(training_plan(tmp_path, num_fragments=1)) as daemon:
        (begin, stop) = model_units(MODEL, 1).spans[1]
        assert daemon.progress().others_ready == (0,)
        daemon.order(Command(number=0, op="pause"))
        whole = daemon.order(Command(number=0, op="snapshot", unit=1))
        before_n = daemon.vectors.read(Area.OUT)[begin:stop]
        daemon.vectors.write(Area.IN, torch.ones_like(ANCHOR_N))
        kept = ((0, stop - begin, 0.5),)
        daemon.order(Command(number=0, op="shift", unit=1, credited_tokens=whole.tokens, kept=kept))
        assert daemon.order(Command(number=0, op="snapshot", unit=1)).tokens == 0
        assert torch.equal(daemon.vectors.read(Area.OUT)[begin:stop], before_n * 0.5 + 1.0)
        assert daemon.order(Command(number=0, op="snapshot", unit=0)).tokens == whole.tokens


def test_a_snapshot_whose_copy_fails_at_once_is_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(bridge: Bridge, _parts: object) -> None:
        bridge._leaving = Future()
        bridge._leaving.set_exception(RuntimeError("the copy failed"))

    monkeypatch.setattr(Bridge, "send", failed)
    ours, theirs = socket.socketpair()
    with ours, theirs, _memory() as (_, vectors):
        worker = Worker(theirs, LocalTrainer(training_plan(tmp_path)), vectors)
        ours.sendall(frame(Command(op="snapshot", number=1)))
        with pytest.raises(RuntimeError, match="the copy failed"):
            worker._obey(ENDS_WITHIN_S)
        theirs.close()
        assert read_message(ours) is None, "no reply"


def test_a_snapshot_that_is_written_beside_training_is_told_when_it_is_whole(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.training.replica.bridge.is_on_card", lambda _device: True)
    with running(plan) as daemon:
        daemon.order(Command(number=0, op="pause"))
        daemon.vectors.write(Area.IN, ANCHOR_N)
        daemon.order(Command(number=0, op="load"))
        daemon.order(Command(number=0, op="snapshot"))
        assert torch.equal(daemon.vectors.read(Area.OUT), ANCHOR_N)
        daemon.order(Command(number=0, op="resume"))
        shift_N = torch.full_like(ANCHOR_N, 0.5)
        daemon.vectors.write(Area.IN, shift_N)
        daemon.order(Command(number=0, op="shift"))
        daemon.order(Command(number=0, op="snapshot"))
        assert not torch.equal(daemon.vectors.read(Area.OUT), ANCHOR_N)
        assert daemon.progress().step > 0


def test_a_loss_without_a_number_is_answered_too(plan: TrainingPlan) -> None:
    with running(plan) as daemon:
        daemon.vectors.write(Area.IN, ANCHOR_N * float("inf"))
        assert daemon.order(Command(number=0, op="evaluate")).loss_nats is None


@pytest.mark.parametrize("op", ["evaluate", "evaluate_prose"])
def test_an_evaluation_that_does_not_fit_on_the_card_is_answered_and_ends_no_training(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch, op: Op
) -> None:
    def full(*_args: object, **_options: object) -> float:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Replica, "standing_in", full)
    with running(plan.model_copy(update={"prose_shards": plan.heldout_shards, "micro_batch": 1})) as daemon:
        reply = daemon.order(Command(number=0, op=op))
        assert (reply.does_not_fit, reply.loss_nats) == (True, None)
        assert daemon.progress().step > 0


def test_a_paused_worker_still_obeys_and_trains_on_when_told(plan: TrainingPlan) -> None:
    with running(plan) as daemon:
        daemon.order(Command(number=0, op="pause"))
        first = daemon.order(Command(number=0, op="snapshot"))
        assert daemon.order(Command(number=0, op="snapshot")).num_steps == first.num_steps
        daemon.order(Command(number=0, op="resume"))
        while daemon.progress().step <= first.num_steps:
            pass


def test_a_worker_records_its_next_steps_and_trains_on(plan: TrainingPlan, tmp_path: Path) -> None:
    order = ProfileOrder(num_steps=2, folder=str(tmp_path), request="r")
    with running(plan) as daemon:
        daemon.order(Command(op="profile", profile=order))
        while not (tmp_path / SUMMARY_FILE).exists():
            daemon.progress()
    summary = ProfileSummary.model_validate_json((tmp_path / SUMMARY_FILE).read_bytes())
    assert (summary.request, summary.num_steps, summary.tokens) == ("r", 2, 2 * BATCH_TOKENS)


def test_an_order_for_a_profile_while_another_is_recorded_is_answered_and_the_recording_goes_on(
    plan: TrainingPlan, tmp_path: Path
) -> None:
    def summary() -> ProfileSummary:
        return ProfileSummary.model_validate_json((tmp_path / SUMMARY_FILE).read_bytes())

    order = ProfileOrder(num_steps=50, folder=str(tmp_path), request="r")
    with running(plan) as daemon:
        daemon.order(Command(op="profile", profile=order))
        daemon.order(Command(op="profile", profile=order.model_copy(update={"request": "other"})))
        assert (summary().request, summary().problem) == ("other", "another recording is under way")
        daemon.order(Command(op="pause"))
        assert (summary().request, summary().problem) == ("r", "training was paused"), "it went on until then"


def test_a_worker_keeps_the_beginning_of_a_round_and_takes_anothers_steps_from_it_in_turns(plan: TrainingPlan) -> None:
    order = RedoOrder(schedule_tokens=640, peer="other", first_step=7, num_steps=3, turn_steps=2, spans=((0, 5),))
    redo = Command(op="audit_redo", redo=order)

    def redone_by(daemon: Daemon) -> Redone:
        answer = daemon.order(redo).redone
        assert answer is not None
        assert answer.took_s >= 0.0
        return answer.model_copy(update={"took_s": 0.0})

    with running(plan) as daemon:
        while not daemon.progress().tokens_trained:
            pass
        assert daemon.order(Command(op="audit_keep")).redone == Redone()
        assert redone_by(daemon) == Redone(problem=NOT_KEPT)
        daemon.order(Command(op="load", schedule_tokens=640))
        first, last = (redone_by(daemon) for _ in range(2))
        assert first == Redone(num_left=1)
        assert len(last.delta) == 5 * 4
        daemon.order(Command(op="audit_forget"))
        assert redone_by(daemon) == Redone(problem=NOT_KEPT)
        before = daemon.progress().step
        while daemon.progress().step <= before:
            pass


def test_a_paused_worker_records_nothing_and_a_pause_ends_a_recording(plan: TrainingPlan, tmp_path: Path) -> None:
    order = ProfileOrder(num_steps=50, folder=str(tmp_path), request="r")
    with running(plan) as daemon:
        daemon.order(Command(op="profile", profile=order))
        daemon.order(Command(op="pause"))
        problem = ProfileSummary.model_validate_json((tmp_path / SUMMARY_FILE).read_bytes()).problem
        daemon.order(Command(op="profile", profile=order.model_copy(update={"request": "next"})))
        second = ProfileSummary.model_validate_json((tmp_path / SUMMARY_FILE).read_bytes())
    assert problem == "training was paused"
    assert (second.request, second.problem) == ("next", "training is paused")


def test_one_that_is_brought_back_paused_trains_no_step(tmp_path: Path) -> None:
    with running(training_plan(tmp_path, is_paused=True)) as daemon:
        daemon.progress()
        assert daemon.order(Command(number=0, op="snapshot")).num_steps == 0


def test_a_slowed_worker_does_not_wait_for_a_step_that_a_load_threw_away(tmp_path: Path) -> None:
    with running(training_plan(tmp_path, slowdown=1e6)) as daemon:
        while daemon.progress().step < 1:
            pass
        daemon.order(Command(number=0, op="load"))
        while daemon.progress().step < 2:
            pass


def test_the_process_imports_nothing_of_the_network_and_trains_without_torchs_compiler() -> None:
    """The compiler alone is a second or two of each start."""
    story = """
import sys, torch
from peer.training.optimizers.adamw import AdamW, ParameterGroup
from peer.training.optimizers.muon import Muon
from peer import worker
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = AdamW((ParameterGroup((parameter,), 0.1),), beta1=0.9, beta2=0.95)
matrix = torch.nn.Parameter(torch.ones(2, 2))
torch.autograd.backward((parameter * parameter).sum() + (matrix * matrix).sum())
torch.nn.utils.clip_grad_norm_([parameter], 1.0)
optimizer.step(0.1)
optimizer.zero_grad()
Muon([matrix], momentum=0.9, weight_decay=0.1).step(0.1)
print([m for m in ("hivemind", "trio", "grpc", "rich", "starlette", "torch._dynamo") if m in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", story], capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_process_leaves_the_terminals_interrupt_to_the_daemon_and_ends_with_the_channel(plan: TrainingPlan) -> None:
    with process(plan) as (daemon, child):
        daemon.progress()
        child.send_signal(signal.SIGINT)
        daemon.order(Command(number=0, op="snapshot"))
        assert os.getpriority(os.PRIO_PROCESS, child.pid) >= 10
        daemon.channel.close()
        assert child.wait(ENDS_WITHIN_S) == 0


class _LeftAlone(LocalTrainer):
    """The daemon closes the channel in the middle of the second step."""

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> Counters:
        if self.counters.step == 1:
            self.ours.close()
        return super().step()

    ours: socket.socket


def test_moments_are_kept_if_the_daemon_leaves_in_the_middle_of_a_step(plan: TrainingPlan, tmp_path: Path) -> None:
    trainer = _LeftAlone(plan.model_copy(update={"moments_file": tmp_path / "moments"}))
    trainer.ours, theirs = socket.socketpair()
    with theirs, _memory() as (_, vectors):
        Worker(theirs, trainer, vectors).run()
    assert (tmp_path / "moments").exists()


def test_the_process_says_that_memory_ran_out_and_at_which_micro_batch(
    plan: TrainingPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAILS_VARIABLE, str(tmp_path / "fails"))
    with process(plan, "tests.peer.failing_worker") as (daemon, child):
        (tmp_path / "fails").touch()
        while isinstance(event := daemon.event(), Progress):
            pass
        assert isinstance(event, OutOfMemory)
        assert (event.micro_batch, event.is_final) == (4, False)
        assert child.wait(ENDS_WITHIN_S) == EXIT_OUT_OF_MEMORY


class _LongSteps(LocalTrainer):
    """Each step is sixteen micro-batches; before the third one of the first step an order comes."""

    comes: Command | None = None

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> Counters:
        asked = 0

        def ask() -> bool:
            nonlocal asked
            asked += 1
            if asked == 2 and self.comes is not None:
                self.ours.sendall(frame(self.comes))
                self.comes = None
            return goes_on()

        return super().step(ask)

    ours: socket.socket


@pytest.mark.parametrize(("op", "steps"), [("pause", 0), ("slow", 1)])
def test_a_pause_gives_up_the_step_that_is_under_way_and_other_orders_wait_for_its_end(
    plan: TrainingPlan, op: Literal["pause", "slow"], steps: int
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, _memory() as (_, vectors):
        trainer = _LongSteps(plan.model_copy(update={"micro_batch": 1}))
        trainer.comes, trainer.ours = Command(number=1, op=op), ours
        loop = threading.Thread(target=Worker(theirs, trainer, vectors).run)
        loop.start()
        daemon = Daemon(ours, vectors)
        seen: list[Progress] = []
        while not isinstance(event := daemon.event(), Reply):
            assert isinstance(event, Progress)
            seen.append(event)
        assert seen[-1].step == steps
        daemon.order(Command(number=2, op="pause"))
        paused = daemon.order(Command(number=3, op="snapshot"))
        assert paused.tokens == paused.num_steps * BATCH_TOKENS
        ours.shutdown(socket.SHUT_WR)
        loop.join(ENDS_WITHIN_S)
        assert not loop.is_alive()


def test_a_pause_gives_back_what_steps_held_of_the_accelerators_memory(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(local_training, "give_back_memory", lambda device: given.append(device.type))
    ours, theirs = socket.socketpair()
    with ours, theirs, _memory() as (_, vectors):
        trainer = LocalTrainer(plan.model_copy(update={"micro_batch": 1}))
        loop = threading.Thread(target=Worker(theirs, trainer, vectors).run)
        loop.start()
        daemon = Daemon(ours, vectors)
        daemon.order(Command(number=1, op="slow", factor=1.0))
        assert given == []
        daemon.order(Command(number=2, op="pause"))
        assert given == ["cpu"]
        ours.shutdown(socket.SHUT_WR)
        loop.join(ENDS_WITHIN_S)
        assert not loop.is_alive()


def test_a_worker_that_starts_paused_measures_no_micro_batch_until_it_is_resumed(plan: TrainingPlan) -> None:
    with running(plan.model_copy(update={"micro_batch": 0, "is_paused": True})) as daemon:
        assert daemon.progress().micro_batch == 0
        assert daemon.order(Command(number=1, op="snapshot")).tokens == 0
        daemon.order(Command(number=2, op="resume"))
        assert daemon.progress().micro_batch > 0


def test_a_worker_that_only_holds_the_state_obeys_and_takes_no_step_even_when_resumed(plan: TrainingPlan) -> None:
    with running(plan.model_copy(update={"trains": False})) as daemon:
        daemon.progress()
        daemon.order(Command(number=1, op="resume"))
        daemon.vectors.write(Area.IN, ANCHOR_N * 2)
        daemon.order(Command(number=2, op="load"))
        snapshot = daemon.order(Command(number=3, op="snapshot"))
        assert (snapshot.tokens, snapshot.step) == (0, 0)
        assert torch.equal(daemon.vectors.read(Area.OUT), ANCHOR_N * 2)


SMALLEST = CardPlan(precision="bf16", checkpointing="full", offload="all")
PLAIN = CardPlan(precision="bf16")


@pytest.mark.parametrize(
    ("most_bytes", "device", "micro_batch", "card_plan", "is_final"),
    [
        (10**9, "cuda", 2, SMALLEST, False),
        (10**9, "cuda", 1, SMALLEST, True),
        (10**9, "cuda", 0, SMALLEST, True),
        (10**9, "cuda", 1, PLAIN, False),
        (0, "cuda", 1, SMALLEST, False),
        (10**9, "cpu", 1, CardPlan(checkpointing="full"), False),
    ],
)
def test_only_a_single_sequence_that_does_not_fit_below_a_limit_of_the_card_by_the_last_plan_is_final(
    plan: TrainingPlan,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int,
    device: Literal["cuda", "cpu"],
    micro_batch: int,
    card_plan: CardPlan,
    is_final: bool,
) -> None:
    monkeypatch.setattr(worker_module, "choose_device", torch.device)
    monkeypatch.setattr(card_at_work, "read_card", lambda of: Card(of.type, "NVIDIA H100", 80 << 30, (9, 0)))
    monkeypatch.setattr(card_at_work, "most_used_bytes", lambda _of: 0)
    changes = {"max_gpu_memory_bytes": most_bytes, "device": device, "card_plan": card_plan}
    told = worker_module._ran_out(plan.model_copy(update=changes), micro_batch)
    assert (told.micro_batch, told.is_final) == (micro_batch, is_final)
    assert told.card_report is not None
    assert (told.card_report.plan, told.card_report.kind) == (card_plan, device)


def test_a_model_that_does_not_fit_at_all_is_told_as_out_of_memory_too(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    with _ending(plan, monkeypatch, error) as ours:
        assert worker_module.main() == EXIT_OUT_OF_MEMORY
        data = read_message(ours)
    assert data is not None
    told = parse_event(data)
    assert isinstance(told, OutOfMemory)
    assert (told.micro_batch, told.is_final, told.card_report is not None) == (0, False, True)


@contextmanager
def _ending(plan: MachinePlan, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Iterator[socket.socket]:
    """`main` finds a daemon at the other end of its channel, and this error when it begins."""

    def fails(_plan: TrainingPlan, group: RankGroup) -> LocalTrainer:
        raise error

    monkeypatch.setattr(worker_module, "LocalTrainer", fails)
    monkeypatch.setattr(os, "nice", lambda _by: 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        monkeypatch.setattr(sys, "argv", ["worker", str(theirs.fileno()), "0"])
        monkeypatch.setattr(socket, "socket", lambda fileno: theirs)
        ours.sendall(frame(plan))
        yield ours


@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (
            RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be"),
            Failed(
                reason="a kernel on the card stopped itself (device-side assert) (CUDA error: device-side assert triggered)",
                is_of_card=True,
            ),
            EXIT_FAILED,
        ),
        (
            RuntimeError("CUDA error: the GPU is lost"),
            Failed(reason="the card is lost (CUDA error: the GPU is lost)", is_of_card=True, is_gone=True),
            EXIT_FAILED,
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            OutOfMemory(micro_batch=0),
            EXIT_OUT_OF_MEMORY,
        ),
        (
            MachineError("device cuda is not available", "one of: cpu"),
            Failed(reason="device cuda is not available; expected one of: cpu"),
            EXIT_FAILED,
        ),
    ],
)
def test_the_end_of_a_process_is_told_in_one_line(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch, error: Exception, told: Failed | OutOfMemory, code: int
) -> None:
    with _ending(plan, monkeypatch, error) as ours:
        assert worker_module.main() == code
        data = read_message(ours)
    assert data is not None
    found = parse_event(data)
    assert (found.model_copy(update={"card_report": None}) if isinstance(found, OutOfMemory) else found) == told


def test_a_process_of_a_stage_says_why_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> None:
        raise RuntimeError("CUDA error: the GPU is lost")

    monkeypatch.setattr(worker_module, "run_stage", fails)
    with _ending(stage_plan(tmp_path, 0), monkeypatch, KeyError()) as ours:
        assert worker_module.main() == EXIT_FAILED
        data = read_message(ours)
    assert data is not None
    assert parse_event(data) == Failed(
        reason="the card is lost (CUDA error: the GPU is lost)", is_of_card=True, is_gone=True
    )


def test_an_error_that_nobody_expected_is_told_too_and_leaves_its_trace(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _ending(plan, monkeypatch, KeyError("weights")) as ours:
        with pytest.raises(KeyError):
            worker_module.main()
        data = read_message(ours)
    assert data is not None
    assert parse_event(data) == Failed(reason="KeyError: 'weights'")


def test_a_gradient_that_is_not_finite_is_no_step_and_is_counted(plan: TrainingPlan) -> None:
    trainer = LocalTrainer(plan)
    trainer.load(ANCHOR_N, 0)
    before_N = trainer.theta()
    trainer.parameters[0].register_hook(lambda grad: grad * float("nan"))
    counters = trainer.step()
    assert torch.equal(trainer.theta(), before_N)
    assert (counters.step, counters.tokens_ready, counters.skipped_steps) == (1, 0, 1)


def test_timed_it_trains_in_its_steps_and_in_the_waits_that_its_slowdown_asks_for(tmp_path: Path) -> None:
    now_s, times = [0.0], TrainingTimes(tmp_path / "times", lambda: now_s[0])

    def passes(seconds: float) -> bool:
        now_s[0] += seconds
        return True

    for step_s, wait_s, asked_s in ((2.0, 6.0, 6.0), (2.0, 7.0, 6.0), (1.0, 0.5, 0.0)):
        times.step(lambda step_s=step_s: passes(step_s))  # type: ignore[misc]
        assert times.idle(lambda wait_s=wait_s: passes(wait_s), asked_s)  # type: ignore[misc]
        passes(1.0)
    assert [one.trained_s for one in read_times(tmp_path / "times")] == [8.0, 16.0, 17.0]
    reported = [Trained(100.0, 8.0), Trained(110.0, 17.0), Trained(111.0, 18.0)]
    assert trained_share(reported, 99.0, 110.5) == 0.9
    assert trained_share(reported, 105.0, 110.5) is None
    assert mean_step_s(reported, 99.0, 111.0) == 5.5
    assert mean_step_s(reported, 105.0, 110.5) is None
    assert read_times(tmp_path / "none") == []


def test_timed_it_tells_steps_between_which_it_obeyed_nothing(tmp_path: Path) -> None:
    times = TrainingTimes(tmp_path / "times", lambda: 0.0)
    for _ in range(2):
        times.idle(lambda: True, 0.0)
    times.order(lambda: Reply(number=1))
    times.idle(lambda: True, 0.0)
    assert [one.num_orders for one in read_times(tmp_path / "times")] == [0, 0, 1]
    reported = [Trained(100.0, 8.0, 3), Trained(110.0, 17.0, 3), Trained(111.0, 18.0, 4)]
    assert [one.unix_s for one in undisturbed(reported, 99.0, 110.5)] == [100.0, 110.0]
    assert undisturbed(reported, 99.0, 111.5) == undisturbed(reported, 112.0, 113.0) == []
