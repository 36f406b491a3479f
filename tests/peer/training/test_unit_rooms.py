from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator

import pytest
import torch
import trio
import trio.testing

from averaging.network.seams.interfaces import NoPart
from peer.training.unit_rooms import UnitRooms
from peer.training.worker_channel import Area, SharedVectors, mapping_bytes

PAGE_VALUES = 1024
SPANS = ((0, PAGE_VALUES), (PAGE_VALUES, 3 * PAGE_VALUES))


@pytest.fixture
def vectors() -> Iterator[SharedVectors]:
    with tempfile.TemporaryFile() as file:
        file.truncate(mapping_bytes(SPANS[-1][1]))
        yield SharedVectors(file.fileno(), SPANS[-1][1])


def test_values_lie_where_the_snapshot_would_be_and_beside_one_that_is_not_spent(vectors: SharedVectors) -> None:
    rooms, values_N = UnitRooms(vectors, SPANS), torch.ones(PAGE_VALUES)
    assert rooms.lay(0, values_N) is Area.OUT
    assert torch.equal(vectors.part(Area.OUT, SPANS[0]), values_N)
    theta_N = rooms.snapshot(0)
    theta_N.fill_(7.0)
    assert rooms.lay(0, values_N) is Area.ASIDE
    assert float(theta_N.mean()) == 7.0
    assert torch.equal(vectors.part(Area.ASIDE, SPANS[0]), values_N)
    assert rooms.lay(0, theta_N) is Area.OUT, "a shift that was made in the snapshot's place is not copied"
    rooms.spend(0)
    assert rooms.lay(0, values_N) is Area.OUT


def test_what_is_offered_stays_until_it_is_taken_back(vectors: SharedVectors) -> None:
    rooms = UnitRooms(vectors, SPANS)
    theta_N = rooms.offer(0)
    theta_N.fill_(7.0)
    rooms.snapshot(1).fill_(8.0)
    rooms.spend_all()
    assert float(theta_N.mean()) == 7.0
    assert rooms.lay(0, torch.ones(PAGE_VALUES)) is Area.ASIDE
    rooms.take_back(0)
    assert not vectors.view(Area.OUT).any()


async def test_an_evaluation_of_a_whole_model_waits_until_the_snapshot_is_spent_and_takes_its_place(
    vectors: SharedVectors, autojump_clock: trio.testing.MockClock
) -> None:
    rooms, begun = UnitRooms(vectors, [(0, SPANS[-1][1])]), list[float]()
    rooms.snapshot(0)

    async def evaluate() -> None:
        await rooms.until_room()
        begun.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(evaluate)
        await trio.sleep(60.0)
        assert begun == []
        assert not rooms.has_room
        rooms.spend(0)
    areas, (room_N,) = rooms.for_evaluation()
    assert areas == (Area.OUT,)
    room_N.fill_(3.0)
    rooms.evaluated(areas)
    assert not vectors.view(Area.OUT).any()


def test_a_shift_is_made_where_it_is_read_unless_something_else_lies_there(vectors: SharedVectors) -> None:
    rooms, values_N = UnitRooms(vectors, SPANS), torch.ones(PAGE_VALUES)
    shift_N = rooms.for_shift(0)
    assert shift_N is not None
    shift_N.fill_(2.0)
    assert rooms.for_shift(0) is None
    with pytest.raises(NoPart):
        rooms.snapshot(0)
    assert rooms.lay(0, shift_N) is Area.OUT
    rooms.used(0)
    assert not vectors.view(Area.OUT).any()
    rooms.snapshot(0)
    assert rooms.for_shift(0) is None
    rooms.spend(0)
    assert rooms.lay(0, values_N) is Area.OUT
    assert rooms.for_shift(0) is None, "the process reads other values there"
    rooms.used(0)
    areas, _ = rooms.for_evaluation()
    assert rooms.for_shift(0) is None
    rooms.evaluated(areas)
    assert rooms.for_shift(0) is not None
    assert rooms.for_shift(1) is not None, "each unit has a place of its own"


def test_a_shift_that_is_given_up_stays_untouched_until_other_values_of_its_unit_were_used(
    vectors: SharedVectors,
) -> None:
    rooms = UnitRooms(vectors, SPANS)
    shift_N = rooms.for_shift(0)
    assert shift_N is not None
    shift_N.fill_(2.0)
    assert rooms.lay(0, torch.ones(PAGE_VALUES)) is Area.ASIDE
    assert float(shift_N.mean()) == 2.0
    rooms.used(0)
    assert not vectors.view(Area.OUT).any()
    assert rooms.for_shift(0) is not None


def test_of_several_units_only_those_with_a_snapshot_take_a_second_place(vectors: SharedVectors) -> None:
    rooms = UnitRooms(vectors, SPANS)
    rooms.snapshot(1).fill_(7.0)
    assert rooms.has_room
    areas, values = rooms.for_evaluation()
    assert areas == (Area.OUT, Area.ASIDE)
    assert [value_N.numel() for value_N in values] == [PAGE_VALUES, 2 * PAGE_VALUES]
    for value_N in values:
        value_N.fill_(1.0)
    rooms.evaluated(areas)
    assert float(vectors.part(Area.OUT, SPANS[1]).mean()) == 7.0
    assert not vectors.view(Area.ASIDE).any()


@pytest.mark.parametrize("unspent", [(), (0,), (1,), (0, 1)])
def test_the_anchors_that_a_starting_process_reads_are_touched_by_no_other_values(
    vectors: SharedVectors, unspent: tuple[int, ...]
) -> None:
    rooms = UnitRooms(vectors, SPANS)
    for unit in unspent:
        rooms.snapshot(unit)
    for unit, (begin, stop) in enumerate(SPANS):
        rooms.begin(unit, torch.full((stop - begin,), 5.0))
    areas, values = rooms.for_evaluation()
    for value_N in values:
        value_N.fill_(1.0)
    rooms.evaluated(areas)
    for unit, (begin, stop) in enumerate(SPANS):
        rooms.lay(unit, torch.ones(stop - begin))
        rooms.used(unit)
    assert vectors.view(Area.IN).eq(5.0).all()
    rooms.has_begun()
    assert not any(vectors.view(area).any() for area in Area)


@pytest.mark.parametrize("beside", ["a snapshot", "an offer", "nothing"])
async def test_used_values_are_freed_by_a_thread_and_their_place_is_taken_until_then(
    vectors: SharedVectors, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    rooms, freed, may_free = UnitRooms(vectors, SPANS), list[tuple[Area, int]](), threading.Event()
    is_offered, theta_N = beside == "an offer", vectors.part(Area.OUT, SPANS[0])
    if beside != "nothing":
        theta_N = rooms.offer(0) if is_offered else rooms.snapshot(0)
        theta_N.fill_(7.0)
    assert rooms.lay(0, torch.ones(PAGE_VALUES)) is (Area.OUT if beside == "nothing" else Area.ASIDE)
    empty = vectors.empty

    def emptied(area: Area, span: tuple[int, int] | None = None) -> None:
        if threading.get_ident() != own:
            assert may_free.wait(20.0), "the event loop stands still"
            freed.append((area, SPANS.index(span or SPANS[0])))
        empty(area, span)

    own = threading.get_ident()
    monkeypatch.setattr(vectors, "empty", emptied)
    with trio.fail_after(20.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rooms.free_used, 0)
            await trio.testing.wait_all_tasks_blocked()
            assert rooms.for_shift(0) is None, "what is written there would be lost"
            nursery.cancel_scope.cancel()
            may_free.set()
    assert freed == ([(Area.ASIDE, 0)] if is_offered else [(Area.ASIDE, 0), (Area.OUT, 0)])
    assert (rooms.for_shift(0) is None) == is_offered
    assert float(theta_N.mean()) == (7.0 if is_offered else 0.0)


async def test_values_of_an_evaluation_are_freed_by_a_thread(
    vectors: SharedVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms, freed = UnitRooms(vectors, SPANS), list[int]()
    areas, places = rooms.for_evaluation()
    for place in places:
        place.fill_(7.0)
    empty, own = vectors.empty, threading.get_ident()

    def emptied(area: Area, span: tuple[int, int] | None = None) -> None:
        if threading.get_ident() != own:
            freed.append(SPANS.index(span or SPANS[0]))
        empty(area, span)

    monkeypatch.setattr(vectors, "empty", emptied)
    await rooms.free_evaluated(areas)
    assert freed == [0, 1]
    assert not vectors.view(Area.OUT).any()
    assert rooms.for_shift(0) is not None
