"""Snapshots of a seat: one is under way at a time, and old ones are freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio
import trio.testing

from peer.pipeline.seats.held_snapshots import HeldSnapshots
from peer.pipeline.stage.stage_snapshot import Written
from protocol.ids import PeerId
from protocol.pipeline.stage_machine import Point

T = TypeVar("T")


async def _nothing() -> bytes:
    return b""


async def test_the_next_one_is_taken_once_the_last_is_held_also_if_that_failed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: list[str] = []

    async def take() -> Written:
        told.append("taken")
        return _nothing

    async def hold(written: Written) -> None:
        with trio.move_on_after(1.0):
            await trio.sleep_forever()
        told.append("given up")

    snapshots = HeldSnapshots()
    with trio.fail_after(10.0):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                await snapshots.take(nursery, take, hold)
            assert told == ["taken", "given up", "taken", "given up", "taken"]


def test_what_all_stages_have_newer_and_what_a_lane_went_back_from_is_freed() -> None:
    points = [Point(0, 0), Point(0, 2), Point(1, 0)]

    def held() -> HeldSnapshots:
        data = dict.fromkeys(points, b"")
        return HeldSnapshots(dict(data), dict(data), dict.fromkeys(points, PeerId("neighbour")))

    newest, oldest = held(), held()
    newest.forget_before(points[1])
    assert [list(kept) for kept in (newest.own, newest.copies, newest.copied_to)] == [points[1:]] * 3
    oldest.forget_after(points[1])
    assert [list(kept) for kept in (oldest.own, oldest.copies, oldest.copied_to)] == [points[:2]] * 3


class Threads:
    """In place of threads: what ran there, with what it freed."""

    def __init__(self) -> None:
        self.freed = list[int]()

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """As `Offload`."""
        over = getattr(function, "__self__", [])
        self.freed += [len(data) for data in over]
        return function()


async def test_what_is_forgotten_is_freed_by_a_thread_since_that_takes_long_for_a_large_snapshot() -> None:
    snapshots, threads = HeldSnapshots(), Threads()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(snapshots.keep_freeing, threads)
        for number in range(1, 4):
            snapshots.own[Point(0, number)] = snapshots.copies[Point(0, number)] = memoryview(bytes(number))
        snapshots.forget_before(Point(0, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert threads.freed == [1, 1]
        snapshots.forget_after(Point(0, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert threads.freed == [1, 1, 3, 3]
        nursery.cancel_scope.cancel()
    snapshots.forget_all()
    await snapshots.free(threads)
    assert threads.freed == [1, 1, 3, 3, 2, 2]
    assert not snapshots.own
    assert not snapshots.copies
