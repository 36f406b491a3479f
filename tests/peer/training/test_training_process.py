"""One life of a training process after another, a thread in each one's place."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
import trio
import trio.testing

from peer.pipeline.stage.snapshot_room import rooms_bytes
from peer.pipeline.stage.stage_channel import StageOrder, parse_reply
from peer.training import training_process
from peer.training.plan.layout import Mesh
from peer.training.training_plan import TrainingPlan
from peer.training.training_process import (
    FROZEN,
    MAX_QUICK_DEATHS,
    RESTART_PAUSE_S,
    SLOW_RESTART_S,
    Ended,
    MessageReader,
    Said,
    TrainingProcess,
    plans_of_ranks,
    restart_pause_s,
)
from peer.training.worker_channel import MAX_MESSAGE_BYTES, Failed, OutOfMemory, frame, parse_event, read_message
from peer.training.worker_process import EarlyWorker, WorkerProcess
from protocol.errors import LocalProtocolError
from protocol.tensors.stage_schema import stage_schema
from tests.peer.training_world import training_plan
from tests.peer.worker_world import Starts, anchor, stage_plan


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    found = Starts()
    monkeypatch.setattr(training_process, "start_worker", found)
    return found


async def test_a_life_is_a_plan_that_is_given_and_what_is_heard_until_it_ends(tmp_path: Path, starts: Starts) -> None:
    plan = stage_plan(tmp_path, 1)
    process = TrainingProcess(anchor(plan).numel(), more_bytes=rooms_bytes(stage_schema(plan.stages, plan.stage)))

    async def listen(incoming: MessageReader) -> int:
        assert process.stream is not None
        assert process.pid == starts.started[-1].pid
        await process.stream.send_all(frame(StageOrder(number=5, op="theta")))
        data = await incoming.message()
        assert data is not None
        return parse_reply(data).number

    for life in (1, 2):
        assert await process.live(plan, listen) == 5
        assert len(starts.started) == life
        assert starts.started[-1].over.is_set()
        assert (process.pid, process.stream) == (None, None)
    process.close()


async def test_one_that_is_killed_ends_its_life_with_nothing(tmp_path: Path, starts: Starts) -> None:
    plan = stage_plan(tmp_path, 1)
    process = TrainingProcess(anchor(plan).numel(), more_bytes=rooms_bytes(stage_schema(plan.stages, plan.stage)))

    async def listen(incoming: MessageReader) -> bytes | None:
        process.kill()
        return await incoming.message()

    with trio.fail_after(120.0):
        assert await process.live(plan, listen) is None
    process.kill()  # there is none: nothing happens
    process.close()


async def test_the_system_that_gives_no_process_is_told_to_who_asks(tmp_path: Path, starts: Starts) -> None:
    starts.refusals = 1
    plan = stage_plan(tmp_path, 1)
    process = TrainingProcess(anchor(plan).numel(), more_bytes=rooms_bytes(stage_schema(plan.stages, plan.stage)))

    async def listen(incoming: MessageReader) -> bool:
        return True

    with pytest.raises(OSError, match="no process"):
        await process.live(plan, listen)
    assert await process.live(plan, listen)
    process.close()


async def test_a_message_that_is_too_long_is_not_read() -> None:
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    async with ours, theirs:
        await theirs.send_all((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
        with pytest.raises(LocalProtocolError, match="from the training process"):
            await MessageReader(ours).message()


async def test_messages_come_whole_however_they_are_cut_and_an_end_in_the_middle_is_an_end() -> None:
    ours, theirs = (trio.SocketStream(end) for end in trio.socket.socketpair())
    async with ours, theirs:
        incoming = MessageReader(ours)
        for part in (b"\x03\x00", b"\x00\x00ab", b"c\x09\x00\x00\x00zz"):
            await theirs.send_all(part)
        assert await incoming.message() == b"abc"
        await theirs.aclose()
        assert await incoming.message() is None


def test_one_that_dies_again_and_again_at_once_is_started_more_slowly() -> None:
    assert restart_pause_s(MAX_QUICK_DEATHS - 1) == RESTART_PAUSE_S
    assert restart_pause_s(MAX_QUICK_DEATHS) == SLOW_RESTART_S


@dataclass
class FakeRank:
    """In the place of a process of one rank: nothing but the other end of its channel."""

    channel: socket.socket
    plan: TrainingPlan | None = None
    killed: bool = False
    code: int | None = None
    pid: int = 0

    def take_plan(self) -> TrainingPlan:
        """Read the plan."""
        data = read_message(self.channel)
        assert data is not None
        self.plan = TrainingPlan.model_validate_json(data)
        return self.plan

    def say(self, event: OutOfMemory | Failed) -> None:
        """The last words."""
        self.channel.sendall(frame(event))

    def end(self, code: int = 0) -> None:
        """End as a process does: the channel is closed."""
        self.code = code
        self.channel.close()

    def poll(self) -> int | None:
        """As of subprocess.Popen, each of these. It ends when the daemon closes the channel."""
        if self.code is None:
            self.channel.setblocking(False)
            try:
                if self.channel.recv(1 << 16) == b"":
                    self.end()
            except BlockingIOError:
                pass
        return self.code

    def kill(self) -> None:
        """As `poll`."""
        if self.code is None:
            self.killed = True
            self.end(-9)

    def wait(self) -> int:
        """As `poll`."""
        assert self.code is not None
        return self.code


@dataclass
class FakeRanks:
    """Starts fake ranks."""

    ranks: list[FakeRank] = field(default_factory=list)
    refuses_after: int = 100

    def __call__(self, memory_fd: int) -> WorkerProcess:
        """As `start_worker`."""
        if len(self.ranks) == self.refuses_after:
            raise OSError("no process is left")
        ours, theirs = socket.socketpair()
        self.ranks.append(FakeRank(theirs, pid=2000 + len(self.ranks)))
        return WorkerProcess(cast("subprocess.Popen[bytes]", self.ranks[-1]), ours)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> FakeRanks:
    found = FakeRanks()
    monkeypatch.setattr(training_process, "start_worker", found)
    return found


async def _said(rank: int, incoming: MessageReader) -> Said:
    while (data := await incoming.message()) is not None:
        event = parse_event(data)
        if isinstance(event, OutOfMemory | Failed):
            return event
    return None


ECHO = Failed(reason="a process of the same replica ended", is_echo=True)
RAN_OUT = OutOfMemory(micro_batch=4)
FAILED = Failed(reason="KeyError: 'weights'")


async def _life(folder: Path, fakes: FakeRanks, act: Callable[[list[FakeRank]], Awaitable[None]]) -> Ended:
    """The end of a life of three ranks in which this happens."""
    plan = training_plan(folder, mesh=Mesh(shard=3), num_threads=2)
    process = TrainingProcess(plan.units.whole.num_elements)
    found: list[Ended] = []

    async def live() -> None:
        found.append(await process.live_together(plan, ("cpu", "cpu", "cuda:1"), _said))

    try:
        with trio.fail_after(60.0):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(live)
                while process.stream is None:
                    await trio.sleep(0.001)
                assert process.pids == (2000, 2001, 2002)
                await trio.testing.wait_all_tasks_blocked()
                for rank in fakes.ranks:
                    rank.take_plan()
                await act(fakes.ranks)
    finally:
        process.close()
    assert (process.pid, process.pids, process.stream) == (None, (), None)
    return found[0]


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("words", [None, RAN_OUT, FAILED])
@pytest.mark.parametrize("echo_comes_first", [False, True])
async def test_the_end_of_one_rank_is_the_end_of_all_and_the_reason(
    tmp_path: Path, fakes: FakeRanks, culprit: int, words: OutOfMemory | Failed | None, echo_comes_first: bool
) -> None:
    async def act(ranks: list[FakeRank]) -> None:
        if echo_comes_first:
            ranks[culprit - 1].say(ECHO)
            await trio.testing.wait_all_tasks_blocked()
            assert not any(rank.killed for rank in ranks), "it is heard that another one is the reason"
        if words is not None:
            ranks[culprit].say(words)
        ranks[culprit].end(-9)

    assert await _life(tmp_path, fakes, act) == Ended(culprit, words)
    assert [rank.killed for rank in fakes.ranks[:3]] == [rank != culprit for rank in range(3)]


async def test_if_only_echoes_are_heard_all_are_killed_after_a_moment(tmp_path: Path, fakes: FakeRanks) -> None:
    async def act(ranks: list[FakeRank]) -> None:
        ranks[2].say(ECHO)

    assert await _life(tmp_path, fakes, act) == Ended(2, ECHO)
    assert all(rank.killed for rank in fakes.ranks)


async def test_a_rank_that_the_system_has_stopped_in_two_looks_ends_all(
    tmp_path: Path, fakes: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def is_stopped(pid: int) -> bool:
        """Rank 0 every other time, rank 1 from its third look on."""
        looks.append(pid)
        number = looks.count(pid)
        return number % 2 == 1 if pid == 2000 else pid == 2001 and number >= 3

    monkeypatch.setattr(training_process, "is_stopped", is_stopped)
    monkeypatch.setattr(training_process, "FROZEN_LOOK_S", 0.001)

    async def act(_ranks: list[FakeRank]) -> None:
        return None

    assert await _life(tmp_path, fakes, act) == Ended(1, Failed(reason=FROZEN))
    assert looks.count(2001) >= 4


async def test_each_rank_has_its_place_its_device_and_its_threads_and_all_meet_in_one_folder(
    tmp_path: Path, fakes: FakeRanks
) -> None:
    async def act(ranks: list[FakeRank]) -> None:
        folders = {rank.plan.meeting for rank in ranks if rank.plan is not None}
        assert len(folders) == 1
        (folder,) = folders
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
        ranks[0].end()

    await _life(tmp_path, fakes, act)
    plans = [rank.plan for rank in fakes.ranks[:3] if rank.plan is not None]
    assert [(plan.rank, plan.device) for plan in plans] == [(0, "cpu"), (1, "cpu"), (2, "cuda:1")]
    assert [plan.num_threads for plan in plans] == [2, 2, 2]
    assert plans[0].meeting is not None
    assert not plans[0].meeting.exists()


def test_ranks_on_the_cpu_share_its_cores_if_no_number_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = training_process.read_cores()
    monkeypatch.setattr(training_process, "read_cores", lambda: type(cores)(5.0, 8, 8))
    plan = training_plan(tmp_path, mesh=Mesh(shard=2), num_threads=0)

    def threads(*devices: str) -> list[int]:
        return [each.num_threads for each in plans_of_ranks(plan, devices, tmp_path)]

    assert threads("cpu", "cpu") == [2, 2]
    assert threads("cuda:0", "cuda:1") == [0, 0]
    with pytest.raises(LocalProtocolError, match="3 devices"):
        threads("cpu", "cpu", "cpu")


@pytest.mark.parametrize("num_left", [1, 2, 3])
async def test_the_processes_of_the_next_life_import_while_one_ends_and_those_that_it_does_not_need_are_ended(
    tmp_path: Path, fakes: FakeRanks, num_left: int
) -> None:
    plan = training_plan(tmp_path, mesh=Mesh(shard=3))
    process = TrainingProcess(plan.units.whole.num_elements)
    seen: list[tuple[int, ...]] = []

    async def live(num_ranks: int) -> None:
        await process.live_together(
            plan.model_copy(update={"mesh": Mesh(shard=num_ranks)}), ("cpu",) * num_ranks, _said
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live, 3)
        await trio.testing.wait_all_tasks_blocked()
        fakes.ranks[1].end(-9)
    assert len(fakes.ranks) == 6
    fakes.ranks[4].end()
    with trio.move_on_after(0.2):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live, num_left)
            await trio.testing.wait_all_tasks_blocked()
            seen.append(process.pids)
    process.close()
    assert seen == [((2003,), (2003, 2005), (2003, 2005, 2006))[num_left - 1]]
    assert all(rank.code is not None for rank in fakes.ranks)


async def test_processes_for_a_next_life_that_does_not_come_are_ended(tmp_path: Path, fakes: FakeRanks) -> None:
    plan = training_plan(tmp_path, mesh=Mesh(shard=2))
    process = TrainingProcess(plan.units.whole.num_elements)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.live_together, plan, ("cpu", "cpu"), _said)
        await trio.testing.wait_all_tasks_blocked()
        fakes.ranks[0].end(-9)
    assert [rank.poll() for rank in fakes.ranks[2:]] == [None, None]
    process.forget_next()
    assert [rank.killed for rank in fakes.ranks[2:]] == [True, True]
    process.close()


async def test_a_daemon_that_leaves_lets_all_ranks_say_goodbye(tmp_path: Path, fakes: FakeRanks) -> None:
    plan = training_plan(tmp_path, mesh=Mesh(shard=2))
    process = TrainingProcess(plan.units.whole.num_elements)
    with trio.move_on_after(0.2):
        await process.live_together(plan, ("cpu", "cpu"), _said)
    assert [(rank.code, rank.killed) for rank in fakes.ranks] == [(0, False)] * 2
    process.close()


async def test_if_not_all_ranks_can_be_started_those_that_were_are_ended(tmp_path: Path, fakes: FakeRanks) -> None:
    fakes.refuses_after = 1
    plan = training_plan(tmp_path, mesh=Mesh(shard=2))
    process = TrainingProcess(plan.units.whole.num_elements)
    with pytest.raises(OSError, match="no process"):
        await process.live_together(plan, ("cpu", "cpu"), _said)
    assert [rank.killed for rank in fakes.ranks] == [True]
    assert process.pids == ()
    process.close()


async def test_the_early_process_is_the_first_rank(
    tmp_path: Path, fakes: FakeRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.training.worker_process.start_worker", fakes)
    early = EarlyWorker()
    plan = training_plan(tmp_path, mesh=Mesh(shard=2))
    process = TrainingProcess(plan.units.whole.num_elements, early)
    with trio.move_on_after(0.2):
        await process.live_together(plan, ("cpu", "cpu"), _said)
    assert [rank.pid for rank in fakes.ranks] == [2000, 2001]
    process.close()


async def test_a_rank_that_sends_nonsense_ends_all(tmp_path: Path, fakes: FakeRanks) -> None:
    async def act(ranks: list[FakeRank]) -> None:
        ranks[1].channel.sendall(b"\x02\x00\x00\x00no")

    with pytest.RaisesGroup(pytest.RaisesExc(LocalProtocolError, match="cannot be read")):
        await _life(tmp_path, fakes, act)
    assert all(rank.killed for rank in fakes.ranks)
