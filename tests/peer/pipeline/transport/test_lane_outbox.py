"""Parcels between members: in order, each answered, over streams that break, and given up when nothing moves."""

from __future__ import annotations

import mmap
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.interfaces import Stream
from peer.pipeline.transport.lane_outbox import (
    MOVES_WITHIN_S,
    PARCEL_CHANNEL,
    Outbox,
    answer,
    fetch_copy,
    give,
    receive_bytes,
    receive_in_time,
    receive_memory,
    send_parcel,
)
from protocol.errors import CallTimeout, PotluckError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.messages.lane_messages import LaneCopy, LaneFetch, LaneGift, LanePassed
from protocol.pipeline.messages.lane_wire import decode_parcel
from protocol.pipeline.stage_machine import Point

HERE, THERE = PeerId("here"), PeerId("there")
AT = Point(0, 1)
LONG = bytes(range(256)) * 10_000


def _passed(number: int, data: bytes) -> LanePassed:
    return LanePassed(0, 0, AT, number, False, len(data))


@dataclass
class Ends:
    """A sender's outbox, and a receiver that does as it is told."""

    swarm: MemorySwarm
    nursery: trio.Nursery
    refuses: dict[int, str] = field(default_factory=dict)
    silent: bool = False
    takes_s: float = 0.0
    breaks_after: int = -1
    is_early: bool = False
    num_streams: int = 0
    taken: list[tuple[int, bytes]] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
    given_up: PotluckError | None = None

    def __post_init__(self) -> None:
        there = self.swarm.start(THERE)
        there.serve_streams(PARCEL_CHANNEL, self._serve)
        self.outbox = Outbox(self.swarm.start(HERE), THERE, self._was_refused, is_early=self.is_early)
        self.nursery.start_soon(self._run)

    async def _run(self) -> None:
        try:
            await self.outbox.run()
        except PotluckError as error:
            self.given_up = error

    def _was_refused(self, parcel: LanePassed | LaneCopy, reason: str) -> None:
        assert isinstance(parcel, LanePassed)
        self.refused.append((parcel.number, reason))

    async def _serve(self, sender: PeerId, stream: Stream) -> None:
        self.num_streams += 1
        while (frame := await stream.receive_frame()) is not None:
            parcel = decode_parcel(frame)
            assert isinstance(parcel, LanePassed)
            if self.silent:
                await trio.sleep_forever()
            if parcel.number in self.refuses:
                await answer(stream, self.refuses.pop(parcel.number))
                return
            self.taken.append((parcel.number, await receive_bytes(stream, parcel.num_bytes)))
            await trio.sleep(self.takes_s)
            if len(self.taken) == self.breaks_after:
                return
            await answer(stream)


@asynccontextmanager
async def _ends(*, is_early: bool = False) -> AsyncIterator[Ends]:
    with trio.fail_after(120.0):
        async with trio.open_nursery() as nursery:
            yield Ends(MemorySwarm(nursery, random.Random(1)), nursery, is_early=is_early)
            nursery.cancel_scope.cancel()


async def test_parcels_come_in_order_short_ones_and_those_of_many_frames(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ends() as ends:
        answered = [ends.outbox.put(_passed(n, data), data) for n, data in enumerate((b"a", LONG, b"c"))]
        for event in answered:
            await event.wait()
        late = ends.outbox.put(_passed(3, b"later"), b"later")
        await late.wait()
        assert ends.taken == [(0, b"a"), (1, LONG), (2, b"c"), (3, b"later")]


@pytest.mark.parametrize("is_early", [False, True])
async def test_a_way_is_opened_before_there_is_anything_to_send_where_that_is_asked_for(
    is_early: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with _ends(is_early=is_early) as ends:
        await trio.sleep(5.0)
        assert ends.num_streams == is_early
        await ends.outbox.put(_passed(0, b"x"), b"x").wait()
        assert ends.num_streams == 1
        assert ends.taken == [(0, b"x")]


async def test_what_was_not_answered_when_a_stream_ended_comes_again(autojump_clock: trio.testing.MockClock) -> None:
    async with _ends() as ends:
        ends.breaks_after = 2
        for number in range(3):
            last = ends.outbox.put(_passed(number, b"x"), b"x")
        await last.wait()
        assert [number for number, _ in ends.taken] == [0, 1, 1, 2]


async def test_who_is_refused_hears_why_and_the_rest_still_comes(autojump_clock: trio.testing.MockClock) -> None:
    async with _ends() as ends:
        ends.refuses = {1: "of another step\nby far"}
        for number in range(3):
            last = ends.outbox.put(_passed(number, LONG), LONG)
        await last.wait()
        assert [number for number, _ in ends.taken] == [0, 2]
        assert ends.refused == [(1, "of another step by far")]


async def test_a_peer_that_takes_nothing_is_given_up_and_an_idle_one_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ends() as ends:
        await ends.outbox.put(_passed(0, b"x"), b"x").wait()
        await trio.sleep(10 * MOVES_WITHIN_S)
        assert ends.given_up is None
        ends.silent = True
        ends.outbox.put(_passed(1, 8 * LONG), 8 * LONG)
        await trio.sleep(MOVES_WITHIN_S + 3.0)
        assert isinstance(ends.given_up, CallTimeout)
        assert ends.taken == [(0, b"x")]


async def test_who_took_all_and_is_in_the_middle_of_a_long_pass_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ends() as ends:
        ends.takes_s = 6 * MOVES_WITHIN_S
        await ends.outbox.put(_passed(0, b"x"), b"x").wait()
        assert trio.current_time() > 6 * MOVES_WITHIN_S
        assert ends.given_up is None
        assert len(ends.taken) == 1, "it comes once"


async def test_a_dead_peer_is_tried_again_for_as_long_as_a_lane_may_take_to_replace_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ends() as ends:
        ends.swarm.kill(THERE)
        ends.outbox.put(_passed(0, b"x"), b"x")
        await trio.sleep(MOVES_WITHIN_S - 1.0)
        assert ends.given_up is None
        await trio.sleep(3.0)
        assert isinstance(ends.given_up, CallTimeout)


@pytest.mark.parametrize(
    ("found", "sent", "reason"),
    [
        (LaneCopy(0, 0, AT, 2, 5), b"short", "snapshot of stage 1"),
        (LaneCopy(0, 0, Point(0, 2), 1, 5), b"short", "snapshot of stage 1"),
        (LaneCopy(0, 0, AT, 1, 1 << 30), b"short", "at most 1000"),
        (LaneCopy(0, 0, AT, 1, 4), b"longer", "bytes of a parcel"),
        (LaneCopy(0, 0, AT, 1, 6), b"short", "bytes of a parcel"),
    ],
)
async def test_a_snapshot_that_was_not_asked_for_is_refused(
    autojump_clock: trio.testing.MockClock, found: LaneCopy, sent: bytes, reason: str
) -> None:
    async with _ends() as ends:

        async def serve(sender: PeerId, stream: Stream) -> None:
            await receive_in_time(stream)
            await send_parcel(stream, found, sent)

        donor = ends.swarm.start(PeerId("donor"))
        donor.serve_streams(PARCEL_CHANNEL, serve)
        network = ends.swarm.start(PeerId("asker"))
        with pytest.raises(RemoteProtocolError, match=reason):
            await fetch_copy(network, PeerId("donor"), LaneFetch(0, 0, AT, 1), 1000)


async def test_a_snapshot_is_asked_for_again_when_a_stream_breaks(autojump_clock: trio.testing.MockClock) -> None:
    async with _ends() as ends:
        asked = []

        async def serve(sender: PeerId, stream: Stream) -> None:
            asked.append(await receive_in_time(stream))
            if len(asked) > 1:
                await send_parcel(stream, LaneCopy(0, 0, AT, 1, len(LONG)), LONG)

        donor = ends.swarm.start(PeerId("donor"))
        donor.serve_streams(PARCEL_CHANNEL, serve)
        network = ends.swarm.start(PeerId("asker"))
        assert await fetch_copy(network, PeerId("donor"), LaneFetch(0, 0, AT, 1), len(LONG), tries=2) == LONG


async def test_a_snapshot_is_received_into_memory_that_is_read_without_a_copy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ends() as ends:
        found = list[memoryview]()

        async def take(sender: PeerId, stream: Stream) -> None:
            await receive_in_time(stream)
            found.append(await receive_memory(stream, len(LONG)))
            await answer(stream)

        ends.swarm.start(PeerId("taker")).serve_streams(PARCEL_CHANNEL, take)
        copy = LaneGift(0, AT, 1, 1, len(LONG))
        assert await give(ends.swarm.start(PeerId("giver")), PeerId("taker"), copy, LONG) == ""
        assert found == [LONG]
        assert isinstance(found[0].obj, mmap.mmap)
