"""A stage's training process as the daemon sees it: asked, refused, killed, brought back. A thread is in the process's place."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
import torch
import trio
import trio.testing

from peer.pipeline.stage import stage_process
from peer.pipeline.stage.process_work import ProcessWork
from peer.pipeline.stage.stage_channel import StageReply
from peer.pipeline.stage.stage_process import StageProcess, StageProcessDied, open_stage_process
from peer.pipeline.stage.stage_worker import StageWorker
from peer.training import training_process
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.card_report import CardReport
from peer.training.plan.layout import Mesh, World
from peer.training.replica.replica import Replica
from peer.training.training_process import Ended, TrainingProcess
from peer.training.worker_channel import Failed, OutOfMemory, frame
from protocol.errors import LocalProtocolError, MachineError, RemoteProtocolError
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from tests.peer.worker_world import PIPELINE, Starts, anchor, stage_plan

WITHIN_S = 300.0
START = Point(0, 0)


class _Reported:
    """The process's reports about its work."""

    def __init__(self) -> None:
        self.steps = 0
        self.passes = list[Pass]()
        self.busy_s = 0.0

    def stepped(self, reply: StageReply) -> None:
        """An inner step was taken."""
        self.steps += 1

    def passed(self, at: Point, work: Pass, reply: StageReply) -> None:
        """A pass was computed."""
        self.passes.append(work)

    def worked(self, work: Pass | None, busy_s: float) -> None:
        """For how long."""
        self.busy_s += busy_s


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    found = Starts()
    monkeypatch.setattr(training_process, "start_worker", found)
    return found


async def _ready(process: StageProcess, restarts: int = 0) -> None:
    with trio.fail_after(WITHIN_S):
        while not process.is_ready or process.restarts < restarts:
            await trio.sleep(0.01)


def _work(process: StageProcess, reported: _Reported, folder: Path) -> ProcessWork:
    return ProcessWork(process, 7, lambda: (anchor(stage_plan(folder, 0)), 0), reported)


async def _work_for_ever(work: ProcessWork) -> None:
    while True:
        await work.run_pass(0, START, Pass(0, False))


async def test_a_seat_computes_its_passes_steps_and_snapshots_in_the_process(tmp_path: Path, starts: Starts) -> None:
    plan, reported = stage_plan(tmp_path, 0), _Reported()
    async with open_stage_process(plan) as process:
        await _ready(process)
        assert process.pid == starts.started[0].pid
        assert process.started_in_s is not None
        assert 0.0 < process.started_in_s <= WITHIN_S
        work = _work(process, reported, tmp_path)
        await work.open()
        message = await work.run_pass(0, START, Pass(0, False))
        assert message
        assert reported.passes == [Pass(0, False)]
        assert reported.busy_s > 0.0
        snapshot = await (await work.snapshot())()
        await work.adopt(torch.zeros_like(anchor(plan)))
        assert not (await work.theta()).any()
        await work.restore(snapshot)
        assert torch.equal(await work.theta(), anchor(plan))
    assert starts.started[0].over.is_set()
    assert process.pid is None


async def test_what_others_sent_is_refused_as_theirs_and_what_the_stage_cannot_do_as_its_own(
    tmp_path: Path, starts: Starts
) -> None:
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        await _ready(process)
        with pytest.raises(LocalProtocolError, match="without a lane"):
            await process.ask("square")
        work = _work(process, _Reported(), tmp_path)
        await work.open()
        with pytest.raises(RemoteProtocolError):
            await work.arrived(b"no boundary message", 0, START, Pass(0, True))
        assert await work.run_pass(0, START, Pass(1, False)), "it goes on"
        assert PIPELINE.micro_batches == 2


async def test_a_process_that_dies_fails_what_it_is_asked_is_brought_back_and_serves_no_seat_of_before(
    tmp_path: Path, starts: Starts
) -> None:
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        await _ready(process)
        work = _work(process, _Reported(), tmp_path)
        await work.open()
        process.kill()
        with pytest.raises(StageProcessDied):
            await _work_for_ever(work)
        await _ready(process, restarts=1)
        assert len(starts.started) == 2
        with pytest.raises(StageProcessDied):  # what this seat had is gone, also where the process is back
            await work.square()
        again = _work(process, _Reported(), tmp_path)
        await again.open()
        assert await again.run_pass(0, START, Pass(0, False))


async def test_a_process_that_reads_only_half_of_an_order_is_killed(
    autojump_clock: trio.testing.MockClock, tmp_path: Path, starts: Starts
) -> None:
    process = StageProcess(stage_plan(tmp_path, 0))
    killed = list[float]()
    process._process.kill = lambda: killed.append(trio.current_time())  # type: ignore[method-assign]
    ours, _theirs = trio.testing.lockstep_stream_pair()
    try:
        process._process.stream = ours  # type: ignore[assignment]
        with pytest.raises(StageProcessDied):
            await process.ask("square")
        assert killed == [stage_process.ANSWER_WITHIN_S]
    finally:
        process.close()


async def test_what_a_process_says_of_its_end_is_told_in_one_line(tmp_path: Path, starts: Starts) -> None:
    with structlog.testing.capture_logs() as logs:
        async with open_stage_process(stage_plan(tmp_path, 0)) as process:
            await _ready(process)
            starts.started[0].channel.sendall(frame(Failed(reason="the card is lost")))
            with trio.fail_after(WITHIN_S):
                while not process.failed_because:
                    await trio.sleep(0.01)
            process.kill()
            await _ready(process, restarts=1)
            assert process.failed_because == ""
    told = [(line["restarts"], line["reason"]) for line in logs if line["event"] == "stage_process_died"]
    assert told == [(1, "the card is lost")]


async def test_one_that_neither_answers_nor_dies_is_killed_and_brought_back(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        await _ready(process)
        work = _work(process, _Reported(), tmp_path)
        await work.open()
        await process.ask("slow", {"factor": 1e6})
        monkeypatch.setattr(stage_process, "ANSWER_WITHIN_S", 0.2)
        with pytest.raises(StageProcessDied):
            await work.run_pass(0, START, Pass(0, False))
        monkeypatch.setattr(stage_process, "ANSWER_WITHIN_S", WITHIN_S)
        await _ready(process, restarts=1)


async def test_an_order_that_is_sent_to_a_process_to_which_nobody_listens_any_more_fails_at_its_end(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def live(process: TrainingProcess, *_: object) -> Ended:
        ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
        async with ours, theirs:
            process.stream = ours
            await theirs.receive_some()
            process.stream = None
        return Ended(0, None)

    monkeypatch.setattr(TrainingProcess, "live_together", live)
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StageProcessDied):
            await process.ask("written")
    assert trio.current_time() < 1.0


async def test_no_first_process_is_the_machines_fault_and_a_later_one_is_tried_again(
    tmp_path: Path, starts: Starts
) -> None:
    starts.refusals = 1
    with pytest.raises(BaseExceptionGroup) as found:
        async with open_stage_process(stage_plan(tmp_path, 0)):
            await trio.sleep(WITHIN_S)
    assert found.group_contains(MachineError, match="cannot be started: no process is left")
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        await _ready(process)
        starts.refusals = 1
        process.kill()
        await _ready(process, restarts=2)


async def test_values_cross_in_the_memory_that_both_have(tmp_path: Path, starts: Starts) -> None:
    plan = stage_plan(tmp_path, 0)
    async with open_stage_process(plan) as process:
        await _ready(process)
        await process.ask("open", {"lane": 1}, vector_N=anchor(plan))
        await process.ask("theta")
        assert torch.equal(await process.theta(), anchor(plan))


async def test_after_running_out_of_memory_the_next_process_takes_the_next_plan(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object) -> None:
        raise MemoryError("injected")

    plan = stage_plan(tmp_path, 0)
    async with open_stage_process(plan) as process:
        await _ready(process)
        with monkeypatch.context() as at_first:
            at_first.setattr(StageWorker, "_open", full)
            with pytest.raises(StageProcessDied):
                await process.ask("open", {"lane": 7}, vector_N=anchor(plan))
        await _ready(process, restarts=1)
        await process.ask("open", {"lane": 7}, vector_N=anchor(plan))
        report = process.card_report
    assert report is not None
    assert (report.plan.checkpointing, report.kind) == ("selective", "cpu")


def test_a_card_that_is_lost_is_left_out_and_named_and_the_others_go_on_with_a_plan_of_their_own(
    tmp_path: Path,
) -> None:
    async def lose() -> None:
        plan = stage_plan(tmp_path, 0, mesh=Mesh(copies=2), card_plan=CardPlan(checkpointing="full"))
        process = StageProcess(plan, None, ("cuda:0", "cuda:1"), lambda left: World(devices=left))
        try:
            process._note_end(Ended(1, Failed(reason="a kernel stopped itself", is_of_card=True)))
            assert process.failed_because == "card 1: a kernel stopped itself"
            assert process._plan.mesh == Mesh(copies=2), "a new process may work"
            process._note_end(Ended(1, Failed(reason="the card is lost", is_of_card=True, is_gone=True)))
            assert (process._plan.mesh, process._plan.device, process._plan.card_plan) == (Mesh(), "cuda:0", None)
            assert [(card.device, card.left_out) for card in process.cards(8.0, 0)] == [
                ("cuda:0", ""),
                ("cuda:1", "the card is lost"),
            ]
        finally:
            process.close()

    trio.run(lose)


def test_a_stage_that_no_plan_fits_on_a_card_is_tried_in_rows_over_all_of_them(tmp_path: Path) -> None:
    async def run_out() -> None:
        plan = stage_plan(tmp_path, 0, mesh=Mesh(copies=2))
        process = StageProcess(plan, None, ("cuda:0", "cuda:1"))
        try:
            for expected in ("moments", "all"):
                report = CardReport(plan=process._plan.card_plan or CardPlan(checkpointing="full"), kind="cuda")
                process._note_end(Ended(1, OutOfMemory(micro_batch=1, card_report=report)))
                assert process._plan.card_plan is not None
                assert (process._plan.card_plan.offload, process._plan.mesh) == (expected, Mesh(copies=2))
            report = CardReport(plan=process._plan.card_plan, kind="cuda")
            process._note_end(Ended(1, OutOfMemory(micro_batch=1, card_report=report)))
            assert (process._plan.card_plan, process._plan.mesh) == (None, Mesh(shard=2))
        finally:
            process.close()

    trio.run(run_out)


async def test_why_layers_run_eagerly_is_told_with_the_first_answer(
    tmp_path: Path, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replica, "compile", lambda *_: "layers run eagerly: no compiler")
    async with open_stage_process(stage_plan(tmp_path, 0)) as process:
        await _ready(process)
        await _work(process, _Reported(), tmp_path).open()
        assert process.compile_note == "layers run eagerly: no compiler"
