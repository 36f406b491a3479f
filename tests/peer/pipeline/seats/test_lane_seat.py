"""One seat of a lane whose keeper and other members are played by hand: what it takes, and what it refuses and never computes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
import torch
import trio
import trio.testing

from averaging.codecs.rows.boundary import HEAD_BYTES, Boundary, encode_boundary
from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from averaging.network.seams.interfaces import Stream
from peer.pipeline.seats.lane_seat import KEEPER_SILENT_S, LaneSeat
from peer.pipeline.stage.stage_snapshot import Written
from peer.pipeline.stage.stage_trainer import StageSnapshot
from peer.pipeline.transport.lane_calls import KEEPER_CHANNEL, MEMBER_CHANNEL, read_answer
from peer.pipeline.transport.lane_outbox import (
    PARCEL_CHANNEL,
    answer,
    fetch_copy,
    receive_bytes,
    receive_in_time,
    send_parcel,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.messages import lane_messages as msg
from protocol.pipeline.messages.lane_wire import decode_lane_message, decode_parcel, encode_lane_message, encode_parcel
from protocol.pipeline.stage_machine import Point
from protocol.tensors.stage_schema import stage_schema
from tests.peer.lane_swarm import KEEPER, SHAPE, LaneSwarm, Rounds
from tests.peer.lane_world import lane_config
from tests.peer.offloaded_work import OffloadedWork
from tests.peer.stage_world import MODEL, RUN, STAGES
from tests.peer.whole_snapshot import decode_snapshot, encode_snapshot
from tests.virtual import InlineOffload

CONFIG = lane_config(inner_steps=3, snapshot_steps=2)
SEAT, BEFORE, BESIDE, STRANGER = (PeerId(name) for name in ("seat", "before", "beside", "stranger"))
MEMBERS = (BEFORE, SEAT, BESIDE)
START = Point(0, 0)
BEGIN = msg.LaneBegin(0, 0, START, MEMBERS)
VALUES_BTD = torch.linspace(-1.0, 1.0, SHAPE[0] * SHAPE[1] * MODEL.dim, dtype=torch.float64).view(*SHAPE, MODEL.dim)


def _boundary(epoch: int = 0, at: Point = START, number: int = 0) -> Boundary:
    batch = msg.lane_batch(RUN, 0, epoch, at, number, CONFIG.inner_steps)
    return Boundary("fp64", "forward", 1, batch, (*SHAPE, MODEL.dim))


def _passed(data: bytes, epoch: int = 0, at: Point = START, number: int = 0) -> msg.LanePassed:
    return msg.LanePassed(0, epoch, at, number, False, len(data))


GOOD = encode_boundary(VALUES_BTD, _boundary())


@dataclass
class Played:
    """The middle stage's member is real; all others do what the test says."""

    world: LaneSwarm
    networks: dict[PeerId, MemoryNetwork]
    reported: list[msg.LaneMessage] = field(default_factory=list)
    brought: list[tuple[PeerId, msg.LaneParcel, bytes]] = field(default_factory=list)
    passes: list[tuple[int, bool]] = field(default_factory=list)
    is_silent: bool = False
    refusal: str = ""
    """The keeper's answers."""

    async def say(self, message: msg.LaneMessage, sender: PeerId = KEEPER) -> str:
        """Why the seat refuses it; empty where it does not."""
        reply = await self.networks[sender].call(SEAT, MEMBER_CHANNEL, encode_lane_message(message), timeout_s=1.0)
        return read_answer(reply)

    async def bring(self, parcel: msg.LaneParcel, data: bytes, sender: PeerId = BEFORE) -> str | None:
        """Why the seat refuses it; None where it ends the stream without a word."""
        stream = await self.networks[sender].open_stream(SEAT, PARCEL_CHANNEL, timeout_s=1.0)
        assert isinstance(parcel, msg.LanePassed | msg.LaneCopy)
        await send_parcel(stream, parcel, data)
        frame = await receive_in_time(stream)
        await stream.aclose()
        return None if frame is None else read_answer(frame)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Within ten virtual seconds."""
        with trio.fail_after(10.0):
            while not is_so():
                await trio.sleep(0.01)

    async def hear(self, sender: PeerId, request: bytes) -> bytes:
        self.reported.append(decode_lane_message(request))
        return encode_parcel(msg.LaneAnswer(self.refusal))

    async def serve(self, sender: PeerId, stream: Stream) -> None:
        while (frame := await stream.receive_frame()) is not None:
            parcel = decode_parcel(frame)
            if isinstance(parcel, msg.LaneFetch):
                return
            assert isinstance(parcel, msg.LanePassed | msg.LaneCopy)
            self.brought.append((sender, parcel, await receive_bytes(stream, parcel.num_bytes)))
            await answer(stream)

    async def ping(self) -> None:
        while not self.is_silent:
            await self.networks[KEEPER].call(
                SEAT, MEMBER_CHANNEL, encode_lane_message(msg.LanePing(0, 0)), timeout_s=1.0
            )
            await trio.sleep(1.0)


@asynccontextmanager
async def _seated(*, is_copied: bool = True) -> AsyncIterator[Played]:
    """A seat that has begun, and whose first snapshot lies with its neighbour."""
    with trio.fail_after(120.0):
        async with trio.open_nursery() as nursery:
            swarm = MemorySwarm(nursery, random.Random(1))
            world = LaneSwarm(swarm, nursery, CONFIG, Rounds(1), ("fp64", "fp64"))
            played = Played(world, {peer: swarm.start(peer) for peer in (KEEPER, BEFORE, BESIDE, STRANGER)})
            world.about = lambda peer, stage, batch, is_backward: played.passes.append((batch.number, is_backward))
            played.networks[KEEPER].serve_calls(KEEPER_CHANNEL, played.hear)
            for beside in (BEFORE, BESIDE):
                played.networks[beside].serve_streams(PARCEL_CHANNEL, played.serve)
            world.open(SEAT)
            await trio.sleep(0.1)
            assert await played.say(BEGIN) == ""
            nursery.start_soon(played.ping)
            await played.until(lambda: (msg.LaneCopied(0, 0, START) in played.reported) >= is_copied)
            yield played
            nursery.cancel_scope.cancel()


def _rehashed(message: bytes, payload: bytes) -> bytes:
    """The head as it was, with the hash of another payload: nobody but a liar sends it."""
    return message[: HEAD_BYTES - 16] + sha256(payload).digest()[:16] + payload


def _not_finite() -> bytes:
    payload = bytearray(GOOD[HEAD_BYTES:])
    payload[:8] = b"\x00\x00\x00\x00\x00\x00\xf8\x7f"
    return _rehashed(GOOD, bytes(payload))


def _of(boundary: Boundary) -> bytes:
    sequences, num_tokens, dim = boundary.shape
    return encode_boundary(torch.zeros(sequences, num_tokens, dim, dtype=torch.float64), boundary)


SHORT = _of(replace(_boundary(), shape=(1, SHAPE[1], MODEL.dim)))
NARROW = _of(replace(_boundary(), shape=(SHAPE[0] * 2, SHAPE[1], MODEL.dim // 2)))
OTHER_TYPE = _of(replace(_boundary(), codec="fp32"))
WIDE_FP32 = _of(replace(_boundary(), codec="fp32", shape=(*SHAPE, MODEL.dim * 2)))
LATER = Point(0, 1)


@pytest.mark.parametrize(
    ("parcel", "data", "sender", "reason"),
    [
        (_passed(SHORT), SHORT, BEFORE, "bytes for a pass"),
        (_passed(NARROW), NARROW, BEFORE, "with shape"),
        (_passed(OTHER_TYPE), OTHER_TYPE, BEFORE, "bytes for a pass"),
        (_passed(WIDE_FP32), WIDE_FP32, BEFORE, "with codec"),
        (_passed(_not_finite()), _not_finite(), BEFORE, "not finite"),
        (_passed(GOOD), GOOD[:-1] + b"\x7f", BEFORE, "changed on the way"),
        (_passed(GOOD), GOOD, STRANGER, "activations from"),
        (_passed(GOOD), GOOD, BESIDE, "activations from"),
        (msg.LanePassed(0, 0, START, 0, True, len(GOOD)), GOOD, BEFORE, "gradients from"),
        (_passed(_of(_boundary(at=LATER))), _of(_boundary(at=LATER)), BEFORE, "another step"),
        (_passed(_of(_boundary(epoch=1))), _of(_boundary(epoch=1)), BEFORE, "another weights"),
        (_passed(_of(_boundary(number=1))), _of(_boundary(number=1)), BEFORE, "another number"),
        (_passed(GOOD, at=Point(0, 2)), GOOD, BEFORE, "work of"),
        (_passed(GOOD, at=Point(7, 0)), GOOD, BEFORE, "work of"),
        (_passed(GOOD, number=2), GOOD, BEFORE, "comes from nobody"),
        (msg.LaneCopy(0, 0, START, 0, 5), b"bytes", BEFORE, "no snapshot"),
        (msg.LaneCopy(0, 0, START, 0, 5), b"bytes", BESIDE, "a snapshot from"),
        (msg.LaneCopy(0, 0, START, 2, 5), b"bytes", BEFORE, "stage 0"),
        (msg.LaneCopy(0, 0, START, 0, 1 << 30), b"bytes", BEFORE, "at most"),
    ],
)
async def test_what_is_not_the_next_stages_work_is_refused_with_a_reason_and_never_computed(
    autojump_clock: trio.testing.MockClock, parcel: msg.LaneParcel, data: bytes, sender: PeerId, reason: str
) -> None:
    async with _seated() as played:
        refused = await played.bring(parcel, data, sender)
        assert refused is not None
        assert reason in refused
        assert played.world.members[SEAT].refused == {sender: 1}
        await trio.sleep(1.0)
        assert played.passes == []
        # the right one is taken all the same
        assert await played.bring(_passed(GOOD), GOOD) == ""
        await played.until(lambda: played.passes == [(0, False)])


async def test_work_that_comes_twice_is_done_once(autojump_clock: trio.testing.MockClock) -> None:
    async with _seated() as played:
        for _ in range(3):
            assert await played.bring(_passed(GOOD), GOOD) == ""
        await played.until(lambda: any(isinstance(parcel, msg.LanePassed) for _, parcel, _ in played.brought))
        await trio.sleep(1.0)
        assert played.passes == [(0, False)]
        sent = [(sender, parcel.work) for sender, parcel, _ in played.brought if isinstance(parcel, msg.LanePassed)]
        assert sent == [(SEAT, _passed(GOOD).work)]


@pytest.mark.parametrize(
    ("message", "sender", "reason"),
    [
        (msg.LaneStep(0, 0, START, 1.0), STRANGER, "its keeper"),
        (msg.LaneBack(0, 1, START, 0, MEMBERS), BEFORE, "its keeper"),
        (msg.LaneSquare(0, 0, START, 1.0), KEEPER, "a keeper's message"),
        (msg.LaneStep(1, 0, START, 1.0), KEEPER, "has a seat in"),
        (replace(BEGIN, lane=1), KEEPER, "it has one in 0"),
        (msg.LaneBack(0, 1, START, 0, (SEAT, BEFORE, BESIDE)), KEEPER, "another stage"),
        (msg.LaneBack(1, 1, START, 0, (BEFORE, BESIDE, STRANGER)), KEEPER, "without this peer"),
        (msg.LaneBegin(1, 0, START, (BEFORE, SEAT)), KEEPER, "a lane of 2 members"),
    ],
)
async def test_a_word_that_is_not_its_keepers_or_not_of_its_lane_is_refused(
    autojump_clock: trio.testing.MockClock, message: msg.LaneMessage, sender: PeerId, reason: str
) -> None:
    async with _seated() as played:
        seat = played.world.members[SEAT].seat
        assert seat is not None
        before = seat.state
        assert reason in await played.say(message, sender)
        assert seat.state == before


async def test_a_seat_that_is_given_to_another_is_over_and_brings_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        assert await played.say(msg.LaneBack(0, 1, START, 0, (BEFORE, STRANGER, BESIDE))) == ""
        await played.until(lambda: played.world.members[SEAT].seat is None)
        assert played.world.rounds.shares == {}


async def test_back_at_a_snapshot_what_belongs_to_the_former_time_line_is_left_unanswered(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        assert await played.say(msg.LaneBack(0, 1, START, 0, MEMBERS)) == ""
        await played.until(lambda: msg.LaneLoaded(0, 1) in played.reported)
        assert await played.say(msg.LaneResume(0, 1)) == ""
        assert await played.bring(_passed(GOOD), GOOD) is None
        now = encode_boundary(VALUES_BTD, _boundary(epoch=1))
        assert await played.bring(_passed(now, epoch=1), now) == ""
        await played.until(lambda: played.passes == [(0, False)])


async def test_what_comes_before_the_keepers_word_waits_for_it(autojump_clock: trio.testing.MockClock) -> None:
    async with _seated() as played:
        now = encode_boundary(VALUES_BTD, _boundary(epoch=1))
        answers = []

        async def bring() -> None:
            answers.append(await played.bring(_passed(now, epoch=1), now))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring)
            await trio.sleep(1.0)
            assert not answers
            await played.say(msg.LaneBack(0, 1, START, 0, MEMBERS))
        assert answers == [""]


async def test_a_new_neighbour_is_given_the_snapshot_that_the_lane_goes_back_to(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        first = [data for _, parcel, data in played.brought if isinstance(parcel, msg.LaneCopy)]
        played.networks[STRANGER].serve_streams(PARCEL_CHANNEL, played.serve)
        await played.say(msg.LaneBack(0, 1, START, 0, (BEFORE, SEAT, STRANGER)))
        await played.until(lambda: msg.LaneLoaded(0, 1) in played.reported)
        copies = [data for _, parcel, data in played.brought if isinstance(parcel, msg.LaneCopy)]
        assert copies == first * 2


async def test_snapshots_are_freed_once_the_keeper_says_that_all_stages_have_a_newer_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        seat = played.world.members[SEAT].seat
        assert isinstance(seat, LaneSeat)
        (own,) = [data for _, parcel, data in played.brought if isinstance(parcel, msg.LaneCopy)]
        beside = encode_snapshot(StageSnapshot(torch.zeros(stage_schema(STAGES, 0).num_elements), ()))
        assert await played.bring(msg.LaneCopy(0, 0, START, 0, len(beside)), beside) == ""
        assert await played.bring(msg.LaneCopy(0, 0, Point(0, 2), 0, len(beside)), beside) == ""
        assert _held_bytes(seat) == len(own) + 2 * len(beside)
        await played.say(msg.LaneKeep(0, 0, Point(0, 2)))
        assert _held_bytes(seat) == len(beside)


def _held_bytes(seat: LaneSeat) -> int:
    return sum(len(data) for kept in (seat.snapshots.own, seat.snapshots.copies) for data in kept.values())


@dataclass
class Writers:
    """Snapshots that are written when the test says so."""

    may_write: trio.Event = field(default_factory=trio.Event)
    taken: int = 0
    written: int = 0


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Writers:
    held, take = Writers(), OffloadedWork.snapshot

    async def snapshot(self: OffloadedWork) -> Written:
        data = await (await take(self))()
        held.taken += 1

        async def written() -> bytes:
            await held.may_write.wait()
            held.written += 1
            return data

        return written

    monkeypatch.setattr(OffloadedWork, "snapshot", snapshot)
    return held


async def test_a_pass_goes_on_while_a_snapshot_is_written_and_the_keeper_hears_of_it_afterwards(
    autojump_clock: trio.testing.MockClock, writers: Writers
) -> None:
    async with _seated(is_copied=False) as played:
        assert await played.bring(_passed(GOOD), GOOD) == ""
        await played.until(lambda: any(isinstance(parcel, msg.LanePassed) for _, parcel, _ in played.brought))
        assert played.passes == [(0, False)]
        assert msg.LaneCopied(0, 0, START) not in played.reported
        assert not any(isinstance(parcel, msg.LaneCopy) for _, parcel, _ in played.brought)
        writers.may_write.set()
        await played.until(lambda: msg.LaneCopied(0, 0, START) in played.reported)
        assert [parcel.at for _, parcel, _ in played.brought if isinstance(parcel, msg.LaneCopy)] == [START]


async def test_a_snapshot_that_is_still_written_when_the_lane_goes_back_is_neither_kept_nor_reported(
    autojump_clock: trio.testing.MockClock, writers: Writers
) -> None:
    async with _seated(is_copied=False) as played:
        await played.until(lambda: writers.taken == 1)
        assert await played.say(msg.LaneBack(0, 1, START, 0, MEMBERS)) == ""
        writers.may_write.set()
        await trio.sleep(1.0)
        seat = played.world.members[SEAT].seat
        assert seat is None or _held_bytes(seat) == 0
        assert not any(isinstance(message, msg.LaneCopied) for message in played.reported)


async def test_snapshots_are_checked_and_read_by_threads_when_they_come_and_when_the_lane_ends(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, run = list[str](), InlineOffload.run

    async def told(self: InlineOffload, function: Callable[[], Any], *, cost_s: float = 0.0) -> Any:
        ran.append(function.func.__name__ if isinstance(function, partial) else "")
        return await run(self, function, cost_s=cost_s)

    async with _seated() as played:
        monkeypatch.setattr(InlineOffload, "run", told)
        data = _zeros_of_the_stage_before(played)
        assert await played.bring(msg.LaneCopy(0, 0, START, 0, len(data)), data) == ""
        assert ran.count("check_snapshot") == 1
        assert await played.say(msg.LaneEnd(0, 0, START, 1, (SEAT, SEAT, BESIDE), "over")) == ""
        await played.until(lambda: played.world.members[SEAT].seat is None)
        assert ran.count("theta_of") == 2


def _zeros_of_the_stage_before(played: Played) -> bytes:
    own = next(data for _, parcel, data in played.brought if isinstance(parcel, msg.LaneCopy))
    own_zeros = decode_snapshot(own, stage_schema(STAGES, 1))
    return encode_snapshot(replace(own_zeros, theta_N=torch.zeros(stage_schema(STAGES, 0).num_elements)))


async def test_the_neighbours_snapshot_is_kept_for_the_member_of_its_stage_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        data = _zeros_of_the_stage_before(played)
        assert await played.bring(msg.LaneCopy(0, 0, START, 0, len(data)), data) == ""
        wanted = msg.LaneFetch(0, 0, START, 0)
        assert await fetch_copy(played.networks[BEFORE], SEAT, wanted, len(data)) == data
        for asker, asked in (
            (STRANGER, wanted),
            (BEFORE, replace(wanted, stage=1)),
            (BEFORE, replace(wanted, at=LATER)),
        ):
            with pytest.raises(RemoteProtocolError, match="no snapshot of stage"):
                await fetch_copy(played.networks[asker], SEAT, asked, len(data))


async def test_a_stage_whose_pass_fails_gives_its_seat_back(autojump_clock: trio.testing.MockClock) -> None:
    def fail(*_: object) -> None:
        raise LocalProtocolError("a boundary with values that are not finite", "finite ones")

    async with _seated() as played:
        played.world.about = fail
        assert await played.bring(_passed(GOOD), GOOD) == ""
        await played.until(lambda: any(isinstance(message, msg.LaneLeave) for message in played.reported))
        (leave,) = [message for message in played.reported if isinstance(message, msg.LaneLeave)]
        assert "not finite" in leave.reason
        await played.until(lambda: played.world.members[SEAT].seat is None)


async def _silent(played: Played) -> None:
    """The keeper was just heard for the last time."""
    played.is_silent = True
    await trio.sleep(1.0)
    assert await played.say(msg.LanePing(0, 0)) == ""


async def test_a_seat_with_nothing_to_say_is_over_within_two_seconds_after_its_keepers_process_is_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        await _silent(played)
        played.world.swarm.kill(KEEPER)
        await trio.sleep(2.0)
        assert played.world.members[SEAT].seat is None


async def test_a_keeper_that_is_silent_and_lives_is_asked_and_has_its_time_also_where_connections_to_it_break(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        await _silent(played)
        played.world.swarm.broken = 1.0
        await trio.sleep(KEEPER_SILENT_S / 2)
        played.world.swarm.broken = 0.0
        await trio.sleep(KEEPER_SILENT_S / 2 - 0.1)
        assert played.world.members[SEAT].seat is not None
        assert msg.LaneHere(0, 0) in played.reported
        await trio.sleep(0.2)
        assert played.world.members[SEAT].seat is None, "an answer is no call"


async def test_a_seat_whose_silent_keeper_keeps_no_such_lane_is_over_when_it_asks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _seated() as played:
        await _silent(played)
        played.refusal = "a message about lane 0"
        await trio.sleep(2.0)
        assert played.world.members[SEAT].seat is None
