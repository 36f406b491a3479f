"""The real training process with a tiny model, and its deaths."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import structlog
import torch
import trio
import trio.testing

from averaging.arithmetic.genesis import genesis_anchor
from peer.training import training_process, worker_process
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.card_report import CardReport
from peer.training.plan.layout import Mesh, World
from peer.training.supervision import patience_core
from peer.training.trainer import WorkerTrainer, open_worker_trainer
from peer.training.training_process import TrainingProcess
from peer.training.worker_channel import Command, Failed, OutOfMemory, Progress, Reply, parse_event
from peer.training.worker_errors import DoesNotFit, LossNotFinite, WorkerDied
from peer.training.worker_notes import MOST_CARD_FAULTS
from protocol.tensors.model_config import model_schema
from tests.anchors import reads
from tests.forked import Forked, open_forked
from tests.peer.failing_worker import FAILS_VARIABLE
from tests.peer.training_world import MODEL, training_plan

BACK_WITHIN_S = 300.0
"""A busy machine gives little of its time. How fast a process is back is not judged."""


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    """The process from which training processes are forked: Python's start and the imports are most of the work of one."""
    with open_forked("peer.worker") as forked:
        yield forked


@pytest.fixture(autouse=True)
def _started_by_a_fork(forked: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_process, "start_worker", forked.start_worker)


async def _until_tokens(trainer: WorkerTrainer, at_least: int) -> None:
    with trio.fail_after(120):
        while trainer.progress().tokens_ready < at_least:
            await trio.sleep(0.02)


async def _back_after(trainer: WorkerTrainer, restarts: int) -> None:
    with trio.fail_after(BACK_WITHIN_S):
        while trainer.progress().restarts < restarts or trainer.progress().state not in ("training", "paused"):
            await trio.sleep(0.02)


@pytest.fixture
def fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file by which the training process is told that its next step runs out of memory."""
    monkeypatch.setattr(training_process, "start_worker", worker_process.start_worker)  # a fork is of the real module
    monkeypatch.setattr(worker_process, "WORKER_MODULE", "tests.peer.failing_worker")
    monkeypatch.setenv(FAILS_VARIABLE, str(tmp_path / "fails"))
    return tmp_path / "fails"


async def test_a_training_process_obeys_at_step_boundaries_and_comes_back_from_the_anchor(
    tmp_path: Path, fails: Path
) -> None:
    plan = training_plan(tmp_path)
    plan = plan.model_copy(update={"prose_shards": plan.heldout_shards})
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    async with open_worker_trainer(plan, anchor_N) as trainer:
        losses = await trainer.evaluate(reads(anchor_N))
        (before,) = losses.nats
        assert losses.prose_nats == before
        with pytest.raises(LossNotFinite):
            await trainer.evaluate(reads(anchor_N * float("inf")))
        await _until_tokens(trainer, 64 * 40)
        snapshot = await trainer.snapshot()
        assert snapshot.tokens == 64 * snapshot.num_steps >= 64 * 40
        trained_N = snapshot.theta_N.clone()

        # Adoption while training goes on: theta + (A' - theta_snapshot), and the credited tokens are gone.
        trained = trainer.progress().tokens_trained
        await trainer.set_anchor(anchor_N)
        await trainer.shift(
            anchor_N - snapshot.theta_N, credited_tokens=snapshot.tokens, schedule_tokens=snapshot.tokens
        )
        assert trainer.progress().tokens_ready <= trainer.progress().tokens_trained - snapshot.tokens
        assert trainer.progress().tokens_trained >= trained
        assert (await trainer.evaluate(reads(trained_N))).nats[0] < before - 0.2

        worker = trainer.worker_pid
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        await _back_after(trainer, 1)
        assert trainer.worker_pid != worker

        fails.touch()
        await _back_after(trainer, 2)
        assert trainer.micro_batch == 2
        await trainer.pause()
        assert trainer.progress().tokens_trained >= trained
        at_anchor = await trainer.snapshot()
        # Brought back from the anchor: whatever it is ahead of the anchor it has trained since.
        drift = float((at_anchor.theta_N - anchor_N).abs().max())
        assert drift == 0.0 or at_anchor.tokens > 0
        await trainer.load(anchor_N, schedule_tokens=0)
        loaded = await trainer.snapshot()
        assert loaded.tokens == 0
        assert torch.equal(loaded.theta_N, anchor_N)
        last = trainer.worker_pid
    assert last is not None
    assert not psutil.pid_exists(last)


async def _kill(trainer: WorkerTrainer, restarts: int) -> None:
    """Kill the worker and wait until it is back."""
    assert trainer.worker_pid is not None
    os.kill(trainer.worker_pid, signal.SIGKILL)
    await _back_after(trainer, restarts)


async def test_a_commit_after_a_death_loads_the_anchor_instead_of_the_shift(tmp_path: Path) -> None:
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    async with open_worker_trainer(training_plan(tmp_path), anchor_N) as trainer:
        assert not trainer.progress().has_theta
        await _until_tokens(trainer, 64 * 20)
        snapshot = await trainer.snapshot()
        theta_N = snapshot.theta_N.clone()
        assert trainer.progress().has_theta
        await trainer.pause()
        await _kill(trainer, 1)
        progress = trainer.progress()
        assert (progress.state, progress.tokens_ready, progress.has_theta) == ("paused", 0, False)
        # The commit counted this peer alone, so A' is its snapshot and the shift is zero; the new worker's theta is not there.
        await trainer.set_anchor(theta_N)
        await trainer.shift(
            torch.zeros_like(anchor_N), credited_tokens=snapshot.tokens, schedule_tokens=snapshot.tokens
        )
        assert trainer.progress().has_theta
        after = await trainer.snapshot()
        assert torch.equal(after.theta_N, theta_N)
        assert after.tokens == 0
        # From here on theta is known again, and a shift is a shift.
        await trainer.shift(torch.ones_like(anchor_N), credited_tokens=0, schedule_tokens=snapshot.tokens)
        assert torch.equal((await trainer.snapshot()).theta_N, theta_N + 1.0)
        await trainer.resume()
        await _until_tokens(trainer, 64)
        assert trainer.progress().state == "training"


async def test_one_that_is_brought_back_keeps_its_learning_rate_and_its_slowdown(tmp_path: Path) -> None:
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    plan = training_plan(tmp_path)
    plan = plan.model_copy(update={"inner": plan.inner.model_copy(update={"warmup_tokens": 1_000_000})})
    async with open_worker_trainer(plan, anchor_N) as trainer:
        await trainer.load(anchor_N, schedule_tokens=2_000_000)
        await trainer.set_slowdown(1e6)
        await _kill(trainer, 1)
        await _until_tokens(trainer, 64)
        snapshot = await trainer.snapshot()
        assert snapshot.num_steps == 1
        # AdamW's first step is as long as the rate in nearly every coordinate; in the warm-up it would be a millionth of that.
        assert float((snapshot.theta_N - anchor_N).abs().median()) > 0.5 * plan.inner.learning_rate


async def test_a_frozen_worker_is_killed_so_that_no_commit_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingProcess, "stopped", lambda process: [])  # it hangs, and the system does not know
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    async with open_worker_trainer(training_plan(tmp_path), anchor_N) as trainer:
        await _until_tokens(trainer, 64 * 20)
        frozen = trainer.worker_pid
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        with monkeypatch.context() as impatient:  # with this one alone: the next may have to wait for a processor
            impatient.setattr(patience_core, "LEAST_PATIENCE_S", 1.0)
            impatient.setattr(patience_core, "SECOND_LOOK_S", 0.2)
            with trio.fail_after(BACK_WITHIN_S), pytest.raises(WorkerDied):
                await trainer.snapshot()
        await _back_after(trainer, 1)
        assert trainer.worker_pid != frozen
        with trio.fail_after(BACK_WITHIN_S):
            await trainer.shift(torch.zeros_like(anchor_N), credited_tokens=0, schedule_tokens=0)


async def test_a_worker_that_other_programs_leave_little_or_no_time_is_waited_for_as_long_as_it_wants_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    async with open_worker_trainer(training_plan(tmp_path), anchor_N) as trainer:
        await _until_tokens(trainer, 64 * 20)
        slow = trainer.worker_pid
        assert slow is not None
        looks = itertools.count()

        def runnable_s(process: TrainingProcess) -> float:
            look = next(looks)
            if look == 3:  # after three waits in vain
                os.kill(slow, signal.SIGCONT)
            return look * patience_core.LEAST_WORK_S

        monkeypatch.setattr(TrainingProcess, "runnable_s", runnable_s)
        monkeypatch.setattr(TrainingProcess, "stopped", lambda process: [])
        os.kill(slow, signal.SIGSTOP)
        with monkeypatch.context() as impatient:
            impatient.setattr(patience_core, "LEAST_PATIENCE_S", 0.2)
            impatient.setattr(patience_core, "PATIENCE_STEPS", 0.0)
            with trio.fail_after(BACK_WITHIN_S):
                assert (await trainer.snapshot()).num_steps >= 20
        assert next(looks) >= 4
        assert (trainer.worker_pid, trainer.progress().restarts) == (slow, 0)


async def test_what_its_owner_holds_back_is_kept_and_told_as_such(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    trainer = WorkerTrainer(training_plan(tmp_path), genesis_anchor(model_schema(MODEL), 1))
    try:
        trainer.hold(True)
        assert trainer.progress().state == "held"
        assert "its owner" in trainer.progress().reason
        trainer.hold(True, "there is no state of the run to train on")
        assert trainer.progress().reason == "there is no state of the run to train on"
        trainer.hold(False)
        assert trainer.progress().state == "starting"
    finally:
        trainer.close()


async def test_a_model_that_does_not_fit_into_the_cards_share_is_held_and_not_started_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Path
) -> None:
    def on_a_card(data: bytes) -> Progress | Reply | OutOfMemory:
        event = parse_event(data)
        return event.model_copy(update={"is_final": True}) if isinstance(event, OutOfMemory) else event

    monkeypatch.setattr(training_process, "parse_event", on_a_card)
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    plan = training_plan(tmp_path, micro_batch=1, max_gpu_memory_bytes=1_500_000_000)
    async with open_worker_trainer(plan, anchor_N) as trainer:
        await trainer.set_slowdown(1.0)  # answered once the process has started, however long that takes
        fails.touch()
        await _until_held(trainer, restarts=1)
        assert trainer.progress().reason.startswith("the model does not fit into 1.5 GB of the card")
        await trainer.resume()
        assert trainer.progress().state == "held"
        with pytest.raises(DoesNotFit, match=r"1\.5 GB"):
            await trainer.evaluate(reads(anchor_N))
        # Its rounds go on: it adopts what others have trained.
        await trainer.load(anchor_N * 2, schedule_tokens=64)
        snapshot = await trainer.snapshot()
        assert (snapshot.tokens, trainer.progress().restarts) == (0, 1)
        assert torch.equal(snapshot.theta_N, anchor_N * 2)
        # After any death of its process, the next one does not try the card again.
        assert (trainer._next_plan().trains, trainer._next_plan().device) == (False, "cpu")


async def _until_held(trainer: WorkerTrainer, restarts: int) -> None:
    with trio.fail_after(BACK_WITHIN_S):
        while (trainer.progress().restarts, trainer.progress().state) != (restarts, "held"):
            await trio.sleep(0.02)


async def test_memory_that_ran_out_before_the_micro_batch_was_found_leaves_it_to_be_found(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    trainer = WorkerTrainer(training_plan(tmp_path, micro_batch=0), genesis_anchor(model_schema(MODEL), 1))
    try:
        for micro_batch, then in ((0, 0), (8, 4), (1, 1)):
            trainer._note_death(OutOfMemory(micro_batch=micro_batch))
            assert trainer._next_plan().micro_batch == then
    finally:
        trainer.close()


GONE = Failed(reason="the card is lost (the GPU is lost)", is_of_card=True, is_gone=True)
FAULT = Failed(reason="a kernel on the card failed", is_of_card=True)


async def test_the_reason_of_an_end_is_that_of_the_process_in_one_line(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    with _unstarted(tmp_path, device="cuda") as trainer:
        trainer._note_death(Failed(reason="KeyError: 'weights'"))
        assert trainer.progress().reason == "KeyError: 'weights'; restarting it"
        trainer._note_death(OutOfMemory(micro_batch=8, others_bytes=9_100_000_000))
        expected = "out of memory: the micro-batch is now 4; other programs hold 9.1 GB of the card"
        assert trainer.progress().reason == expected
        for _ in range(MOST_CARD_FAULTS + 1):
            trainer._note_death(FAULT)
        assert trainer._next_plan().device == "cuda", "its owner chose it"


async def test_after_a_card_that_is_lost_training_goes_on_on_the_cpu_and_says_so(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    with _unstarted(tmp_path, device="auto", card_plan=CardPlan(precision="bf16")) as trainer:
        on_card = trainer._begun(5, 4).model_copy(update={"card": "GPU-1", "busy_s": 1.0})
        trainer._take(on_card)
        trainer._note_death(GONE)
        assert (trainer._next_plan().device, trainer._next_plan().micro_batch) == ("auto", 0)
        trainer._take(trainer._begun(5, 1).model_copy(update={"card": ""}))
        assert trainer.progress().state == "training"
        assert trainer.progress().reason == "on the CPU: the card is lost (the GPU is lost)"
        # one that answers again, as after a driver's reset
        trainer._note_death(None)
        trainer._take(on_card)
        assert trainer.progress().reason == ""


async def test_a_card_that_fails_at_each_start_is_left_for_the_cpu(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    with _unstarted(tmp_path, device="auto", card_plan=CardPlan(precision="bf16")) as trainer:
        started = trainer._begun(0, 4).model_copy(update={"card": "GPU-1"})
        for _ in range(MOST_CARD_FAULTS):
            assert trainer._next_plan().device == "auto"
            trainer._take(started)
            trainer._note_death(FAULT)
        assert (trainer._next_plan().device, trainer._next_plan().card_plan) == ("cpu", None)
        trainer._take(trainer._begun(0, 1).model_copy(update={"card": ""}))
        assert trainer.progress().reason == "on the CPU: a kernel on the card failed"


@pytest.mark.parametrize(("cause", "lives"), [(GONE, 1), (FAULT, MOST_CARD_FAULTS)])
async def test_a_card_that_a_replica_lost_for_good_is_left_out_and_the_others_go_on(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, cause: Failed, lives: int
) -> None:
    plan = training_plan(tmp_path, mesh=Mesh(shard=3), device="cuda:0", card_plan=CardPlan(precision="bf16"))
    devices = ("cuda:0", "cuda:1", "cuda:2")
    trainer = WorkerTrainer(plan, genesis_anchor(model_schema(MODEL), 1), devices=devices)
    worlds = {
        ("cuda:0", "cuda:2"): World(devices=("cuda:0", "cuda:2"), mesh=Mesh(shard=2)),
        ("cuda:2",): World(devices=("cuda:2",)),
        (): World(devices=("cpu",)),
    }
    trainer.without = worlds.get
    steps = (1, 0, 0)  # the place of the card that is lost, of those that are left
    then = [("cuda:0", 2), ("cuda:2", 1), ("cpu", 1)]
    try:
        for rank, (device, num_ranks) in zip(steps, then, strict=True):
            before = trainer._next_plan().mesh
            for life in range(lives):
                assert trainer._next_plan().mesh == before, f"after {life} lives"
                trainer._take(trainer._begun(5, 4).model_copy(update={"card": "GPU-0"}))
                trainer._note_death(cause, rank)
            found = trainer._next_plan()
            assert (found.device, found.mesh.num_ranks, found.micro_batch) == (device, num_ranks, 0)
            assert "going on without it on" in trainer.progress().reason
        assert [bool(card.left_out) for card in trainer.cards] == [True] * 3
        trainer._take(trainer._begun(5, 1).model_copy(update={"card": ""}))
        assert trainer.progress().reason == f"on the CPU: {cause.reason}"
    finally:
        trainer.close()


async def test_steps_that_were_not_taken_are_counted_over_lives_and_told_ever_more_rarely(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    with _unstarted(tmp_path) as trainer, structlog.testing.capture_logs() as logs:
        for skipped in (1, 2, 3):
            trainer._take(trainer._begun(skipped, 4).model_copy(update={"skipped_steps": skipped}))
        trainer._note_death(None)
        trainer._take(trainer._begun(3, 4).model_copy(update={"skipped_steps": 1, "compile_note": "not compiled, why"}))
        assert (trainer.notes.skipped_steps, trainer.notes.compile_note) == (4, "not compiled, why")
        report = CardReport(plan=CardPlan(), kind="cpu")
        told = trainer.notes.added_to(report)
        assert told == report.model_copy(update={"skipped_steps": 4, "compile_note": "not compiled, why"})
    assert [line["skipped"] for line in logs if line["event"] == "step_skipped"] == [1, 2, 4]
    assert [line["reason"] for line in logs if line["event"] == "layers_not_compiled"] == ["not compiled, why"]


class _Piecewise:
    """A stream of which each byte is written once the one before it was read."""

    def __init__(self) -> None:
        self._ours, self.theirs = trio.testing.lockstep_stream_pair()

    async def send_all(self, data: bytes) -> None:
        for place in range(len(data)):
            await self._ours.send_all(data[place : place + 1])


@pytest.mark.parametrize("num_read", [1, 4, 40])
async def test_a_command_that_is_given_up_while_it_is_sent_is_sent_to_its_end(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, num_read: int
) -> None:
    stream = _Piecewise()
    with _unstarted(tmp_path) as trainer:
        trainer._process.stream = stream  # type: ignore[assignment]
        trainer._take(trainer._begun(0, 4))
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def give_up() -> None:
                with trio.move_on_after(1.0):
                    await trainer.set_slowdown(3.0)

            data = bytearray()
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
                if len(data) == num_read:
                    await trio.sleep(2.0)
                with trio.fail_after(5.0):
                    data += await stream.theirs.receive_some()
        assert Command.model_validate_json(data[4:]).factor == 3.0


async def test_a_process_that_reads_only_half_of_a_command_is_killed(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    stream = _Piecewise()
    with _unstarted(tmp_path) as trainer:
        trainer._process.stream = stream  # type: ignore[assignment]
        trainer._take(trainer._begun(0, 4))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.set_slowdown, 3.0)
            await stream.theirs.receive_some()
        assert trainer._kill_reason == "the training process takes no commands"


@contextmanager
def _unstarted(folder: Path, **changes: object) -> Iterator[WorkerTrainer]:
    """Without a process: what it would do at messages and deaths."""
    trainer = WorkerTrainer(training_plan(folder, **changes), genesis_anchor(model_schema(MODEL), 1))
    try:
        yield trainer
    finally:
        trainer.close()


async def test_after_running_out_with_one_sequence_the_next_plan_is_taken_and_told(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    plain = CardPlan(precision="bf16", is_compiled=True)
    trainer = WorkerTrainer(training_plan(tmp_path, micro_batch=0), genesis_anchor(model_schema(MODEL), 1))

    def ran_out(plan: CardPlan, micro_batch: int) -> tuple[CardPlan | None, int, str]:
        report = CardReport(plan=plan, kind="cuda")
        trainer._note_death(OutOfMemory(micro_batch=micro_batch, card_report=report))
        then = trainer._next_plan()
        return then.card_plan, then.micro_batch, trainer.progress().reason

    try:
        assert ran_out(plain, 8) == (plain, 4, "out of memory: the micro-batch is now 4")
        selective = plain.model_copy(update={"checkpointing": "selective"})
        told = (
            "out of memory: now with bf16, compiled, activations partly computed again; the micro-batch is to be found"
        )
        assert ran_out(plain, 1) == (selective, 0, told)
        last = CardPlan(precision="bf16", checkpointing="full", offload="all")
        assert ran_out(last, 1) == (last, 1, "out of memory: the micro-batch is now 1")
    finally:
        trainer.close()


async def test_a_model_that_fits_by_no_plan_says_how_much_is_missing_and_is_held_plainly_on_the_processor(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    plan = training_plan(tmp_path, max_gpu_memory_bytes=1_500_000_000)
    trainer = WorkerTrainer(plan, genesis_anchor(model_schema(MODEL), 1))
    last = CardPlan(precision="bf16", checkpointing="full", offload="all")
    report = CardReport(plan=last, kind="cuda", expected_bytes=4_700_000_000)
    try:
        trainer._note_death(OutOfMemory(micro_batch=1, is_final=True, card_report=report))
        assert (
            "into 1.5 GB of the card, not even with one sequence at a time: about 3.2 GB are missing"
            in trainer.progress().reason
        )
        assert (trainer._next_plan().device, trainer._next_plan().card_plan) == ("cpu", None)
    finally:
        trainer.close()
