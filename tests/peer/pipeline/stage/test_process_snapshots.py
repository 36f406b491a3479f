"""Snapshots between a stage's processes and the daemon: copied in threads, and each room holds one at a time."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from peer.pipeline.stage.process_snapshots import ProcessSnapshots
from peer.pipeline.stage.snapshot_room import SnapshotRoom, rooms_bytes
from peer.pipeline.stage.stage_channel import StageOp, StageReply
from peer.pipeline.stage.stage_process import NO_FIELDS, StageProcessDied, process_died
from peer.training.worker_channel import mapping_bytes
from protocol.errors import LocalProtocolError, MachineError, RemoteProtocolError
from protocol.tensors.stage_schema import stage_schema
from tests.peer.stage_world import STAGES

SCHEMA = stage_schema(STAGES, 1)
NUM_BYTES = 100
WITHIN_S = 20.0


@dataclass
class Processes:
    """A stage's process: it writes a snapshot of its number of orders, and reads what it is given."""

    room: SnapshotRoom
    ops: list[StageOp] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    goes_on: trio.Event = field(default_factory=trio.Event)
    fails: Exception | None = None

    async def ask(
        self, op: StageOp, fields: Mapping[str, object] = NO_FIELDS, *, num_answers: int = 1
    ) -> tuple[StageReply, bytes]:
        """As `Ask`."""
        self.ops.append(op)
        if op == "snapshot":
            self.room.out[:NUM_BYTES] = len(self.ops)
        await self.goes_on.wait()
        if self.fails is not None:
            raise self.fails
        if op == "restore":
            self.read.append(self.room.back[:NUM_BYTES].numpy().tobytes())
        return StageReply(number=len(self.ops), snapshot_bytes=NUM_BYTES), b""


@dataclass
class World:
    """The daemon's side and the process's."""

    processes: Processes
    room: SnapshotRoom
    snapshots: ProcessSnapshots


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryFile() as file:
        file.truncate(mapping_bytes(SCHEMA.num_elements) + rooms_bytes(SCHEMA))
        ours, theirs = (SnapshotRoom(file.fileno(), SCHEMA) for _ in range(2))
        processes = Processes(theirs)
        processes.goes_on.set()
        yield World(processes, ours, ProcessSnapshots(processes.ask, ours))


@pytest.mark.parametrize("way", ["out", "back"])
async def test_the_event_loop_goes_on_while_a_snapshot_is_copied(
    way: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, loop_ran, in_thread = threading.Event(), threading.Event(), list[int]()

    def copied(*_: object) -> memoryview:
        in_thread.append(threading.get_ident())
        begun.set()
        assert loop_ran.wait(WITHIN_S), "the event loop stands still for as long as the copy takes"
        return memoryview(b"")

    async def be_the_loop() -> None:
        while not begun.is_set():
            await trio.sleep(0.001)
        loop_ran.set()

    for name in ("take", "give", "forget"):
        monkeypatch.setattr(world.room, name, copied)
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_the_loop)
            if way == "out":
                await world.snapshots.written(await world.snapshots.take())
            else:
                await world.snapshots.restore(b"\1" * NUM_BYTES)
    assert threading.get_ident() not in in_thread


async def test_a_snapshot_over_which_the_next_one_is_written_is_not_read_as_either(world: World) -> None:
    first = await world.snapshots.take()
    second = await world.snapshots.take()
    with pytest.raises(LocalProtocolError, match="left its room"):
        await world.snapshots.written(first)
    assert await world.snapshots.written(second) == b"\2" * NUM_BYTES
    with pytest.raises(LocalProtocolError, match="left its room"):
        await world.snapshots.written(second)


async def test_a_snapshot_whose_order_was_given_up_hides_the_one_before_since_it_is_written_in_any_case(
    world: World,
) -> None:
    first = await world.snapshots.take()
    world.processes.goes_on = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.snapshots.take)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert world.processes.ops == ["snapshot", "snapshot"]
    world.processes.goes_on.set()
    with pytest.raises(LocalProtocolError, match="left its room"):
        await world.snapshots.written(first)
    assert await world.snapshots.written(await world.snapshots.take()) == b"\3" * NUM_BYTES


async def test_the_next_snapshot_is_ordered_once_the_last_one_was_read(world: World) -> None:
    first = await world.snapshots.take()
    world.processes.goes_on = trio.Event()
    found = list[memoryview]()

    async def read() -> None:
        found.append(await world.snapshots.written(first))

    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(world.snapshots.take)
            await trio.testing.wait_all_tasks_blocked()
            assert world.processes.ops == ["snapshot", "written"]
            world.processes.goes_on.set()
    assert found == [b"\1" * NUM_BYTES]
    assert world.processes.ops == ["snapshot", "written", "snapshot"]


async def test_two_restores_one_of_which_is_cancelled_are_read_whole_and_free_the_room(world: World) -> None:
    world.processes.goes_on, given_up = trio.Event(), trio.CancelScope()

    async def first() -> None:
        with given_up:
            await world.snapshots.restore(b"\1" * NUM_BYTES)

    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            while not world.processes.ops:
                await trio.sleep(0.001)
            given_up.cancel()
            nursery.start_soon(world.snapshots.restore, b"\2" * NUM_BYTES)
            await trio.testing.wait_all_tasks_blocked()
            assert world.processes.ops == ["restore"], "the second one waits until the first was read"
            world.processes.goes_on.set()
    assert world.processes.read == [b"\1" * NUM_BYTES, b"\2" * NUM_BYTES]
    assert not world.room.back.any()


@pytest.mark.parametrize("at_most", [1, None])
async def test_a_restore_that_fails_leaves_no_memory_in_the_room(at_most: int | None, world: World) -> None:
    world.processes.fails = process_died("restore")
    with pytest.raises(RemoteProtocolError if at_most else StageProcessDied):
        await world.snapshots.restore(b"\1" * (world.room.num_bytes + 1 if at_most else NUM_BYTES))
    assert not world.room.back.any()


async def test_a_restore_for_which_there_is_no_memory_frees_what_it_had_laid_down(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(data: bytes) -> None:
        world.room.back[:50] = 1
        raise MachineError("no memory for a snapshot")

    monkeypatch.setattr(world.room, "give", half)
    with pytest.raises(MachineError):
        await world.snapshots.restore(b"\1" * NUM_BYTES)
    assert not world.room.back.any()
    assert not world.processes.ops
