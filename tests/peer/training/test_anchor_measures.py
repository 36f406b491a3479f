from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from tempfile import TemporaryFile

import pytest
import torch
import trio
import trio.testing

from peer.training.anchor_measures import AnchorMeasures
from peer.training.unit_rooms import UnitRooms
from peer.training.worker_channel import Command, Reply, SharedVectors, mapping_bytes
from peer.training.worker_errors import WorkerDied

Clock = trio.testing.MockClock

PATIENCE_S = 20.0
TAKES_S = 8.0


async def _read(rooms: Sequence[torch.Tensor]) -> None:
    """The anchors are there at once."""


async def _ready() -> None:
    """The process obeys."""


@contextmanager
def _measures(exchange: Callable[[Command], Awaitable[Reply | None]]) -> Iterator[AnchorMeasures]:
    with TemporaryFile() as file:
        file.truncate(mapping_bytes(8))
        rooms = UnitRooms(SharedVectors(file.fileno(), 8), ((0, 8),))
        yield AnchorMeasures(rooms, trio.Lock(), _ready, exchange, lambda: "", lambda: PATIENCE_S)


async def _slow(command: Command) -> Reply | None:
    await trio.sleep(TAKES_S)
    return Reply(number=command.number, loss_nats=1.0)


async def test_a_measure_says_how_long_it_may_hold_up_other_commands_and_less_as_it_goes_on(
    autojump_clock: Clock,
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
    autojump_clock: Clock,
) -> None:
    """The training process obeys it to its end."""
    with _measures(_slow) as measures:
        with trio.move_on_after(5.0):
            await measures.losses(_read, (3, 5), has_prose=True)
        assert measures.within_s == pytest.approx(PATIENCE_S - 5.0)
        await trio.sleep(PATIENCE_S)
        assert measures.within_s == 0.0


async def test_a_measure_whose_process_died_holds_up_nobody(autojump_clock: Clock) -> None:
    async def dies(command: Command) -> Reply | None:
        return None

    with _measures(dies) as measures:
        with suppress(WorkerDied):
            await measures.losses(_read, (), has_prose=True)
        assert measures.within_s == 0.0
