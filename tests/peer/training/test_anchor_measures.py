"""Measures of other parameters in the real training process, and its death while they are copied."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
import trio
import trio.testing

from averaging.arithmetic.genesis import genesis_anchor
from peer.training import training_process
from peer.training.anchor_measures import ROOM_WITHIN_S, AnchorMeasures
from peer.training.trainer import WorkerTrainer, open_worker_trainer
from peer.training.unit_rooms import UnitRooms
from peer.training.worker_channel import Area, Command, Reply, Scored, ScoreOrder, SharedVectors, mapping_bytes
from peer.training.worker_errors import WorkerDied
from tests.anchors import reads
from tests.forked import Forked, open_forked
from tests.peer.training_world import training_plan

WITHIN_S = 300.0
NUM_VALUES = 1024
PATIENCE_S = 20.0
TAKES_S = 8.0


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    with open_forked("peer.worker") as forked:
        yield forked


@pytest.fixture
def _started_by_a_fork(forked: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_process, "start_worker", forked.start_worker)


async def _process_died(trainer: WorkerTrainer) -> None:
    restarts, pid = trainer.progress().restarts, trainer.worker_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while trainer.progress().restarts == restarts:
        await trio.sleep(0.01)


async def _until_ready(trainer: WorkerTrainer) -> None:
    while trainer.progress().state not in ("training", "paused"):
        await trio.sleep(0.01)


@pytest.mark.usefixtures("_started_by_a_fork")
@pytest.mark.parametrize("is_back_at_the_end", [False, True])
async def test_a_process_that_dies_while_an_evaluation_is_copied_comes_back_at_the_anchor_and_measures_what_was_copied(
    tmp_path: Path, is_back_at_the_end: bool
) -> None:
    plan = training_plan(tmp_path, num_fragments=1, is_paused=True)
    units = plan.units
    anchor_N = torch.cat([genesis_anchor(schema, 1) for schema in units.schemas])
    anchors = [anchor_N[begin:stop] for begin, stop in units.spans]
    measured = [values_n * 0.5 for values_n in anchors]
    async with open_worker_trainer(plan, anchor_N) as trainer:
        with trio.fail_after(WITHIN_S):
            (expected,) = (await trainer.evaluate(reads(*measured))).nats
            await trainer.snapshot(unit=1)  # one unit's values then lie in a second place

            async def read(rooms: Sequence[torch.Tensor]) -> None:
                for room_n, values_n in zip(rooms, measured, strict=True):
                    half = len(values_n) // 2
                    room_n[:half] = values_n[:half]
                await _process_died(trainer)
                if is_back_at_the_end:
                    await _until_ready(trainer)
                for room_n, values_n in zip(rooms, measured, strict=True):
                    half = len(values_n) // 2
                    room_n[half:] = values_n[half:]

            assert (await trainer.evaluate(read)).nats == (expected,)
            await _until_ready(trainer)
            for unit, values_n in enumerate(anchors):
                assert torch.equal((await trainer.snapshot(unit=unit)).theta_N, values_n), "it begins at the anchor"


class _Process:
    """A process that obeys at once, and the room that it shares with a round's snapshot of a whole model."""

    def __init__(self, memory: BinaryIO) -> None:
        memory.truncate(mapping_bytes(NUM_VALUES))
        self.vectors = SharedVectors(memory.fileno(), NUM_VALUES)
        self.rooms = UnitRooms(self.vectors, [(0, NUM_VALUES)])
        self.measures = AnchorMeasures(
            self.rooms, trio.Lock(), self._is_ready, self._obey, lambda: "", lambda: PATIENCE_S
        )
        self.values = list[torch.Tensor]()

    async def _is_ready(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _obey(self, command: Command) -> Reply:
        await trio.lowlevel.checkpoint()
        self.values.append(self.vectors.read(command.areas[0]))
        return Reply(number=1, loss_nats=1.0, scored=Scored(log_likelihoods=(-1.0,)))


@pytest.fixture
def process() -> Iterator[_Process]:
    with tempfile.TemporaryFile() as memory:
        yield _Process(memory)


ORDER = ScoreOrder(sequences=((1, 2),), num_scored=(1,))


async def test_a_slice_of_a_score_is_begun_in_time_though_a_round_holds_a_snapshot_all_the_while(
    process: _Process, autojump_clock: trio.testing.MockClock
) -> None:
    snapshot_N, values_N = process.rooms.snapshot(0), torch.full((NUM_VALUES,), 2.0)
    snapshot_N.fill_(7.0)
    for number in (1, 2, 3):
        with trio.fail_after(ROOM_WITHIN_S + 1.0):
            assert (await process.measures.scored(reads(values_N), ORDER)).log_likelihoods == (-1.0,)
        assert len(process.values) == number
    assert all(torch.equal(found_N, values_N) for found_N in process.values)
    assert snapshot_N.eq(7.0).all(), "the round goes on with its snapshot"
    assert not process.vectors.view(Area.ASIDE).any(), "the second place is given back"


async def test_a_slice_takes_the_room_of_a_snapshot_that_is_spent_in_time(
    process: _Process, autojump_clock: trio.testing.MockClock
) -> None:
    process.rooms.snapshot(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.measures.scored, reads(torch.ones(NUM_VALUES)), ORDER)
        await trio.sleep(ROOM_WITHIN_S / 2)
        assert process.values == []
        process.rooms.spend(0)
        await trio.sleep(1.0)
        assert len(process.values) == 1


async def test_a_held_out_loss_waits_for_the_room_as_long_as_it_may(
    process: _Process, autojump_clock: trio.testing.MockClock
) -> None:
    process.rooms.snapshot(0)
    with trio.move_on_after(10 * ROOM_WITHIN_S):
        await process.measures.losses(reads(torch.ones(NUM_VALUES)), (), has_prose=False)
    assert process.values == []


async def _read(rooms: Sequence[torch.Tensor]) -> None:
    """The anchors are there at once."""


async def _ready() -> None:
    """The process obeys."""


@contextmanager
def _measures(exchange: Callable[[Command], Awaitable[Reply | None]]) -> Iterator[AnchorMeasures]:
    with tempfile.TemporaryFile() as file:
        file.truncate(mapping_bytes(8))
        rooms = UnitRooms(SharedVectors(file.fileno(), 8), ((0, 8),))
        yield AnchorMeasures(rooms, trio.Lock(), _ready, exchange, lambda: "", lambda: PATIENCE_S)


async def _slow(command: Command) -> Reply | None:
    await trio.sleep(TAKES_S)
    return Reply(number=command.number, loss_nats=1.0)


async def test_a_measure_says_how_long_it_may_hold_up_other_commands_and_less_as_it_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    said = []
    with _measures(_slow) as measures:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(measures.losses, _read, (3, 5), has_prose=True))
            for pause_s in (TAKES_S - 1.0, TAKES_S, TAKES_S, TAKES_S):
                await trio.sleep(pause_s)
                said.append(measures.within_s)
    assert said == pytest.approx([53.0, 33.0, 13.0, 0.0])


async def test_the_command_of_a_measure_that_nobody_waits_for_any_more_still_holds_up_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The training process obeys it to its end."""
    with _measures(_slow) as measures:
        with trio.move_on_after(5.0):
            await measures.losses(_read, (3, 5), has_prose=True)
        assert measures.within_s == pytest.approx(PATIENCE_S - 5.0)
        await trio.sleep(PATIENCE_S)
        assert measures.within_s == 0.0


async def test_a_measure_whose_process_died_holds_up_nobody(autojump_clock: trio.testing.MockClock) -> None:
    async def dies(command: Command) -> Reply | None:
        return None

    with _measures(dies) as measures:
        with suppress(WorkerDied):
            await measures.losses(_read, (), has_prose=True)
        assert measures.within_s == 0.0
