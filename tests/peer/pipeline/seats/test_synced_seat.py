"""One replica of synced steps whose owner and fellows are played by hand: what it takes, what it refuses and never computes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
import trio
import trio.testing

from averaging.codecs.boundary import Boundary, Direction, encode_boundary
from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.network.seams.offload import InlineOffload
from peer.pipeline.seats.lane_member import LaneMember
from peer.pipeline.seats.lane_seat import KEEPER_SILENT_S
from peer.pipeline.seats.synced_seat import SyncedSeat
from peer.pipeline.stage.lane_compute import ComputeContext, LaneShape
from peer.pipeline.stage.stage_snapshot import decode_snapshot, encode_snapshot
from peer.pipeline.stage.stage_trainer import StageSnapshot, StageTrainer
from peer.pipeline.stage.synced_compute import Served, SyncedCompute
from peer.pipeline.transport.lane_calls import KEEPER_CHANNEL, MEMBER_CHANNEL, read_answer, whole_answer
from peer.pipeline.transport.lane_network import OwnLoop
from peer.pipeline.transport.lane_outbox import (
    PARCEL_CHANNEL,
    answer,
    fetch_copy,
    receive_bytes,
    receive_in_time,
    send_parcel,
)
from peer.pipeline.transport.lane_work import LaneContext, LaneShare, OffloadedSynced
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.pipeline.messages import lane_messages as lane_msg
from protocol.pipeline.messages import synced_messages as synced_msg
from protocol.pipeline.messages.lane_wire import (
    Parcel,
    Said,
    decode_lane_message,
    decode_parcel,
    encode_lane_message,
    encode_parcel,
)
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from protocol.pipeline.synced.sum_delivery import LAGGARD_WITHIN_S, SUM_TRIES
from protocol.tensors.stage_schema import stage_schema
from tests.peer.lane_swarm import SHAPE
from tests.peer.lane_world import INNER, lane_config, tokens_of
from tests.peer.stage_world import ANCHOR_N, MODEL, RUN, STAGES, part_of, stage_model

CONFIG = lane_config(inner_steps=2, heldout_passes=1)
SEAT, OWNER, BESIDE, STRANGER = (PeerId(name) for name in ("seat", "owner", "beside", "stranger"))
LANE, STAGE, START, SECOND = 7, 1, Point(0, 0), Point(0, 1)
BEGIN = synced_msg.SyncedBegin(LANE, START, STAGE, ())
VALUES_BTD = torch.linspace(-1.0, 1.0, SHAPE[0] * SHAPE[1] * MODEL.dim, dtype=torch.float64).view(*SHAPE, MODEL.dim)


def _message(direction: Direction = "forward", number: int = 0, at: Point = START) -> bytes:
    """What the middle stage is given of a micro-batch."""
    batch = lane_msg.lane_batch(RUN, LANE, 0, at, number, CONFIG.inner_steps)
    return encode_boundary(VALUES_BTD, Boundary("fp64", direction, STAGE, batch, (*SHAPE, MODEL.dim)))


def _forward(number: int = 0, at: Point = START) -> tuple[synced_msg.SyncedAsk, bytes]:
    data = _message(number=number, at=at)
    return synced_msg.SyncedAsk(LANE, at, STAGE, number, False, len(data), 0), data


def _backward(number: int = 0, at: Point = START) -> tuple[synced_msg.SyncedAsk, bytes]:
    forward, backward = _message(number=number, at=at), _message("backward", number, at)
    return synced_msg.SyncedAsk(LANE, at, STAGE, number, True, len(forward), len(backward)), forward + backward


class _Watched(OffloadedSynced):
    """Says what it computes."""

    def __init__(self, work: SyncedCompute, played: Played) -> None:
        super().__init__(work, InlineOffload())
        self._played = played

    async def serve(self, at: Point, work: Pass, forward: bytes, backward: bytes) -> Served:
        self._played.done.append((work.number, work.is_backward))
        return await super().serve(at, work, forward, backward)

    async def own_sum(self) -> bytes:
        return self._played.spoilt_sum or await super().own_sum()


@dataclass
class Played:
    """The replica is real; all others do what the test says.

    Attributes:
        donated: what a fellow gives as its stage; nothing where it has none.
        num_refusals: of sums, that a fellow is still to say, and what they are about.
        spoilt_sum: that its training process gives instead of its own, where there is one.
        brought: shares of rounds; they are over at once, with the parameters as they are.
    """

    swarm: MemorySwarm
    networks: dict[PeerId, MemoryNetwork]
    told: list[Said] = field(default_factory=list)
    replies: list[tuple[synced_msg.SyncedReply, bytes]] = field(default_factory=list)
    sums: list[tuple[synced_msg.SyncedSum, bytes]] = field(default_factory=list)
    done: list[tuple[int, bool]] = field(default_factory=list)
    brought: list[LaneShare] = field(default_factory=list)
    measured: list[tuple[int, float | None]] = field(default_factory=list)
    donated: bytes = b""
    num_refusals: int = 0
    spoilt_sum: bytes = b""
    refusal: lane_msg.Refusal = lane_msg.Refusal.CONTENT
    member: LaneMember | None = None

    async def say(self, message: Said, sender: PeerId = OWNER) -> str:
        """Why it is refused; empty where it is not."""
        reply = await self.networks[sender].call(SEAT, MEMBER_CHANNEL, encode_lane_message(message), timeout_s=1.0)
        return read_answer(reply)

    async def bring(self, parcel: Parcel, data: bytes, sender: PeerId = OWNER) -> str:
        """Why it is refused; empty where it is not."""
        return (await self.answer_to(parcel, data, sender)).reason

    async def answer_to(self, parcel: Parcel, data: bytes, sender: PeerId) -> lane_msg.LaneAnswer:
        """What it is answered."""
        stream = await self.networks[sender].open_stream(SEAT, PARCEL_CHANNEL, timeout_s=1.0)
        assert isinstance(parcel, synced_msg.SyncedAsk | synced_msg.SyncedSum)
        await send_parcel(stream, parcel, data)
        frame = await receive_in_time(stream)
        await stream.aclose()
        assert frame is not None
        return whole_answer(frame)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Within ten virtual seconds."""
        with trio.fail_after(10.0):
            while not is_so():
                await trio.sleep(0.01)

    async def summed(self, numbers: tuple[int, ...]) -> bytes:
        """The replica's own sum, after these were asked for and granted."""
        for number in numbers:
            assert await self.bring(*_backward(number)) == ""
        await self.until(lambda: len(self.replies) >= len(numbers))
        for number in numbers:
            await self.say(synced_msg.SyncedGrant(LANE, START, number))
        await self.say(synced_msg.SyncedTellSum(LANE, START, numbers))
        await self.until(lambda: synced_msg.SyncedSummed(LANE, START, numbers) in self.told)
        return self.sums[-1][1]

    async def hear(self, sender: PeerId, request: bytes) -> bytes:
        self.told.append(decode_lane_message(request))
        return encode_parcel(lane_msg.LaneAnswer(""))

    async def serve(self, sender: PeerId, stream: Stream) -> None:
        while (frame := await stream.receive_frame()) is not None:
            parcel = decode_parcel(frame)
            if isinstance(parcel, lane_msg.LaneFetch) and self.donated:
                copy = lane_msg.LaneCopy(LANE, 0, parcel.at, parcel.stage, len(self.donated))
                await send_parcel(stream, copy, self.donated)
                continue
            if isinstance(parcel, synced_msg.SyncedReply):
                self.replies.append((parcel, await receive_bytes(stream, parcel.num_bytes)))
            elif isinstance(parcel, synced_msg.SyncedSum):
                self.sums.append((parcel, await receive_bytes(stream, parcel.num_bytes)))
                if self.num_refusals:
                    self.num_refusals -= 1
                    await answer(stream, "a sum that is no good, or comes too early", self.refusal)
                    return
            await answer(stream, "nothing is here" if isinstance(parcel, lane_msg.LaneFetch) else "")

    async def ping(self) -> None:
        while True:
            with trio.move_on_after(1.0):
                await self.say(lane_msg.LanePing(LANE, 0, 1))
            await trio.sleep(1.0)

    async def average(self, share: LaneShare) -> torch.Tensor:
        self.brought.append(share)
        return share.theta_N


def _trainer(stage: int) -> StageTrainer:
    trainer = StageTrainer(stage_model(stage), INNER, most_kept=1)
    trainer.load(part_of(ANCHOR_N.double(), stage))
    return trainer


def _tools(played: Played, network: MemoryNetwork) -> LaneContext:
    form = LaneShape(RUN, CONFIG, STAGES, SHAPE, "fp64", "fp64", torch.float64)
    compute = ComputeContext(
        form, _trainer, lambda _, at, number: tokens_of(0, at, number), lambda at: INNER.learning_rate
    )

    def synced_of(number: int, stage: int) -> _Watched:
        return _Watched(SyncedCompute(compute, number, stage), played)

    async def nothing(_: LaneShare) -> None:
        raise AssertionError("a replica brings nothing for others")

    return LaneContext(
        OwnLoop(network), InlineOffload(), form, synced_of, played.average, nothing, synced_of=synced_of,
        measured=lambda round_, nats: played.measured.append((round_, nats)),
    )  # fmt: skip


@asynccontextmanager
async def _open(begun: synced_msg.SyncedBegin = BEGIN, *, is_pinged: bool = True) -> AsyncIterator[Played]:
    """A replica that is told to begin."""
    with trio.fail_after(120.0):
        async with trio.open_nursery() as nursery:
            swarm = MemorySwarm(nursery, random.Random(1))
            played = Played(swarm, {peer: swarm.start(peer) for peer in (OWNER, BESIDE, STRANGER)})
            for peer in (OWNER, BESIDE):
                played.networks[peer].serve_calls(KEEPER_CHANNEL, played.hear)
                played.networks[peer].serve_streams(PARCEL_CHANNEL, played.serve)
            played.member = LaneMember(_tools(played, swarm.start(SEAT)), lambda number: OWNER)
            played.member.serve()
            nursery.start_soon(played.member.run)
            await trio.sleep(0.1)
            assert await played.say(begun) == ""
            assert await played.say(synced_msg.SyncedBeside(LANE, (SEAT, BESIDE))) == ""
            if is_pinged:
                nursery.start_soon(played.ping)
            yield played
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _ready() -> AsyncIterator[Played]:
    async with _open() as played:
        await played.until(lambda: any(isinstance(message, synced_msg.SyncedReady) for message in played.told))
        yield played


@pytest.mark.parametrize(
    ("asked", "sender", "reason"),
    [
        (_forward(), STRANGER, "from the owner"),
        (_forward(), BESIDE, "from the owner"),
        ((replace(_forward()[0], stage=2), _forward()[1]), OWNER, "bytes of work"),
        ((replace(_forward()[0], forward_bytes=5), b"bytes"), OWNER, "bytes of work"),
        ((replace(_forward()[0], is_backward=True), _forward()[1]), OWNER, "bytes of work"),
        (_backward(CONFIG.num_micro_batches), OWNER, "bytes of work"),  # held-out text goes forward alone
        (_forward(CONFIG.num_micro_batches, SECOND), OWNER, "bytes of work"),  # and in a round's first step
        (_forward(CONFIG.num_micro_batches + CONFIG.heldout_passes), OWNER, "bytes of work"),
    ],
)
async def test_what_is_no_work_of_this_replica_is_refused_with_a_reason_and_never_computed(
    autojump_clock: trio.testing.MockClock, asked: tuple[synced_msg.SyncedAsk, bytes], sender: PeerId, reason: str
) -> None:
    async with _ready() as played:
        assert reason in await played.bring(*asked, sender)
        assert not played.done


async def test_bytes_of_another_micro_batch_are_declined_to_the_owner_and_come_to_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        ask, _ = _forward(0)
        assert await played.bring(ask, _message(number=1)) == ""
        await played.until(lambda: bool(played.replies))
        assert "another number" in played.replies[0][0].declined
        assert await played.bring(*_forward(0)) == ""
        await played.until(lambda: len(played.replies) == 2)
        assert not played.replies[1][0].declined


async def test_work_of_a_step_that_is_not_here_is_declined_once_it_was_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        assert await played.bring(*_forward(at=SECOND)) == ""
        await played.until(lambda: bool(played.replies))
        assert "it is at" in played.replies[0][0].declined
        assert not played.done


async def test_work_that_is_asked_for_once_more_is_answered_with_what_is_here_and_not_computed_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        for _ in range(2):
            assert await played.bring(*_backward(0)) == ""
        await played.until(lambda: len(played.replies) == 2)
        assert played.replies[0] == played.replies[1]
        assert played.done == [(0, True)]


async def test_held_out_text_goes_forward_in_a_rounds_first_step_whose_end_says_that_it_is_measured(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        assert await played.bring(*_forward(CONFIG.num_micro_batches)) == ""
        await played.until(lambda: bool(played.replies))
        assert played.replies[0][1]
        assert not played.measured
        for step in range(CONFIG.inner_steps):
            await played.say(synced_msg.SyncedStep(LANE, Point(0, step), 0.0, 0))
        await played.until(lambda: bool(played.measured))
        await trio.sleep(1.0)
        assert played.measured == [(0, None)]


async def test_what_was_granted_is_brought_to_the_fellows_and_added_up_with_theirs_in_the_owners_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        own = await played.summed((0,))
        assert await played.bring(synced_msg.SyncedSum(LANE, START, (1,), len(own)), own, BESIDE) == ""
        parts = (synced_msg.SyncedPart(BESIDE, (1,)), synced_msg.SyncedPart(SEAT, (0,)))
        await played.say(synced_msg.SyncedCommit(LANE, START, parts))
        await played.until(lambda: any(isinstance(m, lane_msg.LaneSquare) for m in played.told))
        (square,) = [m.square for m in played.told if isinstance(m, lane_msg.LaneSquare)]
        sum_N = decode_snapshot(own, stage_schema(STAGES, STAGE)).theta_N
        assert square == pytest.approx(4.0 * float(sum_N.square().sum()))


@pytest.mark.parametrize(
    ("sender", "num_bytes", "reason", "refusal"),
    [
        (STRANGER, 8, "one of stage 1's replicas", lane_msg.Refusal.OTHER),
        (BESIDE, 1 << 29, "at most", lane_msg.Refusal.CONTENT),
    ],
)
async def test_a_sum_of_who_is_no_fellow_or_that_is_too_large_is_refused(
    autojump_clock: trio.testing.MockClock, sender: PeerId, num_bytes: int, reason: str, refusal: lane_msg.Refusal
) -> None:
    async with _ready() as played:
        parcel = synced_msg.SyncedSum(LANE, START, (1,), num_bytes)
        answer = await played.answer_to(parcel, b"8 bytes." if num_bytes == 8 else b"", sender)
        assert reason in answer.reason
        assert answer.refusal is refusal, "what is brought again and again is known to be no good"


def _sums() -> dict[str, tuple[bytes, str]]:
    """What no replica of the middle stage adds up, and why it is refused."""
    size = stage_schema(STAGES, STAGE).num_elements
    zeros_N = torch.zeros(size, dtype=torch.float64)
    return {
        "no sum": (b"no sum at all, in so many bytes.", "no snapshot"),
        "of another stage": (encode_snapshot(StageSnapshot(zeros_N[1:], ())), f"expected {size} values"),
        "not finite": (encode_snapshot(StageSnapshot(zeros_N + torch.nan, ())), "not finite"),
        "whole numbers": (encode_snapshot(StageSnapshot(zeros_N.long(), ())), "finite floats"),
        "with moments": (encode_snapshot(StageSnapshot(zeros_N, (zeros_N.clone(),))), "1 moments"),
        "another type": (
            encode_snapshot(StageSnapshot(zeros_N.bfloat16(), ())),
            "a sum of gradients in torch.bfloat16",
        ),
    }


@pytest.mark.parametrize("kind", sorted(_sums()))
async def test_a_sum_that_is_none_of_this_stage_is_refused_to_who_brings_it_and_never_added_up(
    autojump_clock: trio.testing.MockClock, kind: str
) -> None:
    data, reason = _sums()[kind]
    async with _ready() as played:
        own = await played.summed((0,))
        refused = await played.bring(synced_msg.SyncedSum(LANE, START, (1,), len(data)), data, BESIDE)
        assert reason in refused
        assert refused.startswith("beside brings")
        assert await played.bring(synced_msg.SyncedSum(LANE, START, (1,), len(own)), own, BESIDE) == ""
        parts = (synced_msg.SyncedPart(BESIDE, (1,)), synced_msg.SyncedPart(SEAT, (0,)))
        await played.say(synced_msg.SyncedCommit(LANE, START, parts))
        await played.until(lambda: any(isinstance(m, lane_msg.LaneSquare) for m in played.told))


@asynccontextmanager
async def _granted() -> AsyncIterator[Played]:
    """A replica whose sum is to be over the first micro-batch."""
    async with _ready() as played:
        assert await played.bring(*_backward(0)) == ""
        await played.until(lambda: bool(played.replies))
        await played.say(synced_msg.SyncedGrant(LANE, START, 0))
        yield played


SUM, SUMMED = synced_msg.SyncedTellSum(LANE, START, (0,)), synced_msg.SyncedSummed(LANE, START, (0,))


async def test_a_fellow_that_refuses_a_good_sum_for_what_is_in_it_makes_nobody_leave_and_is_gone_without(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _granted() as played:
        played.num_refusals = 100
        for _ in range(SUM_TRIES):
            assert SUMMED not in played.told
            await played.say(SUM)
            await trio.sleep(1.0)
        await played.until(lambda: SUMMED in played.told)
        await played.say(SUM)
        await trio.sleep(1.0)
        assert len(played.sums) == SUM_TRIES
        assert not any(isinstance(m, lane_msg.LaneLeave) for m in played.told)
        assert played.member is not None
        assert played.member.seat is not None


async def test_a_sum_that_fellows_would_refuse_is_brought_to_nobody_and_ends_the_seat(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _granted() as played:
        played.spoilt_sum = encode_snapshot(StageSnapshot(torch.zeros(3, dtype=torch.float64), ()))
        await played.say(SUM)
        await played.until(lambda: played.member is not None and played.member.seat is None)
        assert played.sums == []
        assert SUMMED not in played.told
        (left,) = [m for m in played.told if isinstance(m, lane_msg.LaneLeave)]
        assert "a snapshot of shape (3,)" in left.reason


async def test_a_fellow_that_lags_is_brought_the_sum_until_it_takes_it_and_makes_nobody_leave(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _granted() as played:
        played.num_refusals, played.refusal = 5, lane_msg.Refusal.NOT_YET
        for _ in range(5):
            await played.say(SUM)
            await trio.sleep(1.0)
        assert SUMMED not in played.told
        await played.say(SUM)
        await played.until(lambda: SUMMED in played.told)
        assert len(played.sums) == 6
        assert not any(isinstance(m, lane_msg.LaneLeave) for m in played.told)


async def test_a_fellow_that_lags_beyond_the_deadline_is_gone_without(autojump_clock: trio.testing.MockClock) -> None:
    async with _granted() as played:
        played.num_refusals, played.refusal = 100, lane_msg.Refusal.NOT_YET
        for _ in range(int(LAGGARD_WITHIN_S)):
            assert SUMMED not in played.told
            await played.say(SUM)
            await trio.sleep(1.0)
        await played.say(SUM)
        await played.until(lambda: SUMMED in played.told)
        assert not any(isinstance(m, lane_msg.LaneLeave) for m in played.told)


async def test_a_sum_that_a_fellow_has_is_said_to_be_there_and_not_brought_once_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _granted() as played:
        for times in (1, 2):
            await played.say(SUM)
            await played.until(lambda times=times: played.told.count(SUMMED) == times)  # type: ignore[misc]
        assert len(played.sums) == 1


async def test_a_sum_of_a_point_or_a_fellow_that_is_not_known_here_yet_is_refused_as_too_early_and_is_no_fault(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        own = await played.summed((0,))
        early = await played.answer_to(synced_msg.SyncedSum(LANE, SECOND, (1,), len(own)), own, BESIDE)
        assert early.refusal is lane_msg.Refusal.NOT_YET
        assert played.member is not None
        assert played.member.refused[BESIDE] == 0
        wrong = b"no sum at all, in so many bytes."
        bad = await played.answer_to(synced_msg.SyncedSum(LANE, START, (1,), len(wrong)), wrong, BESIDE)
        assert bad.refusal is lane_msg.Refusal.CONTENT
        async with trio.open_nursery() as nursery:
            answers = list[str]()

            async def bring() -> None:
                answers.append(await played.bring(synced_msg.SyncedSum(LANE, START, (1,), len(own)), own, STRANGER))

            nursery.start_soon(bring)
            await trio.sleep(1.0)
            await played.say(synced_msg.SyncedBeside(LANE, (SEAT, BESIDE, STRANGER)))
        assert answers == [""]


async def test_who_begins_its_sum_again_keeps_what_its_fellows_have_brought(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        own = await played.summed((0,))
        assert await played.bring(synced_msg.SyncedSum(LANE, START, (1,), len(own)), own, BESIDE) == ""
        await played.say(synced_msg.SyncedAgain(LANE, START, "the first one is removed"))
        await played.say(synced_msg.SyncedTellSum(LANE, START, ()))
        await played.until(lambda: synced_msg.SyncedSummed(LANE, START, ()) in played.told)
        await played.say(
            synced_msg.SyncedCommit(LANE, START, (synced_msg.SyncedPart(BESIDE, (1,)), synced_msg.SyncedPart(SEAT, ())))
        )
        await played.until(lambda: any(isinstance(m, lane_msg.LaneSquare) for m in played.told))


async def test_a_replica_without_a_sum_that_counts_gives_its_seat_back_and_takes_no_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        await played.summed((0,))
        parts = (synced_msg.SyncedPart(BESIDE, (1,)), synced_msg.SyncedPart(SEAT, (0,)))
        await played.say(synced_msg.SyncedCommit(LANE, START, parts))
        await played.until(lambda: any(isinstance(m, lane_msg.LaneLeave) for m in played.told))
        (left,) = [m for m in played.told if isinstance(m, lane_msg.LaneLeave)]
        assert "the sums of beside are not here" in left.reason
        await played.until(lambda: played.member is not None and played.member.seat is None)


async def test_a_sum_over_others_than_were_granted_is_begun_again(autojump_clock: trio.testing.MockClock) -> None:
    async with _ready() as played:
        await played.say(synced_msg.SyncedTellSum(LANE, START, (0, 1)))
        await played.until(lambda: any(isinstance(m, synced_msg.SyncedNotSummed) for m in played.told))
        assert not played.sums


async def test_who_begins_in_the_middle_of_a_round_takes_the_stage_of_the_donor_that_has_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    snapshot = _trainer(STAGE).snapshot()
    theta_N = snapshot.theta_N + 1.0
    begun = synced_msg.SyncedBegin(LANE, SECOND, STAGE, (OWNER, BESIDE))
    async with _open(begun) as played:
        played.donated = encode_snapshot(StageSnapshot(theta_N, snapshot.moments))
        await played.until(lambda: synced_msg.SyncedReady(LANE, SECOND) in played.told)
        wanted = lane_msg.LaneFetch(LANE, 0, SECOND, STAGE)
        given = await fetch_copy(played.networks[BESIDE], SEAT, wanted, 1 << 30)
        assert torch.equal(decode_snapshot(given, stage_schema(STAGES, STAGE)).theta_N, theta_N)
        with pytest.raises(RemoteProtocolError, match="stage 2"):
            await fetch_copy(played.networks[BESIDE], SEAT, replace(wanted, stage=2), 1 << 30)


async def test_all_that_is_held_of_a_step_is_freed_when_it_is_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with _ready() as played:
        own = await played.summed((0,))
        assert await played.bring(synced_msg.SyncedSum(LANE, START, (1,), len(own)), own, BESIDE) == ""
        assert played.member is not None
        seat = played.member.seat
        assert isinstance(seat, SyncedSeat)
        (gradient,) = [data for reply, data in played.replies if reply.is_backward]
        assert seat.held_bytes == len(gradient) + 2 * len(own)
        await played.say(synced_msg.SyncedStep(LANE, START, 1.0, 1))
        await played.until(lambda: seat.at == SECOND)
        assert seat.held_bytes == 0


async def test_where_no_donor_gives_the_stage_the_seat_is_given_back(autojump_clock: trio.testing.MockClock) -> None:
    async with _open(synced_msg.SyncedBegin(LANE, SECOND, STAGE, (OWNER, BESIDE))) as played:
        await played.until(lambda: any(isinstance(m, lane_msg.LaneLeave) for m in played.told))
        (left,) = [m for m in played.told if isinstance(m, lane_msg.LaneLeave)]
        assert "stage 1 from nobody" in left.reason


async def test_at_a_rounds_end_the_stage_is_brought_and_the_next_one_begins_with_its_hash(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        for step in range(CONFIG.inner_steps):
            await played.say(synced_msg.SyncedStep(LANE, Point(0, step), 0.0, 0))
        await played.say(synced_msg.SyncedBring(LANE, Point(0, CONFIG.inner_steps), 5))
        await played.until(
            lambda: any(isinstance(m, synced_msg.SyncedReady) and m.at == Point(1, 0) for m in played.told)
        )
        (share,) = played.brought
        assert (share.stage, share.round, share.tokens) == (STAGE, 0, 5)
        first, second = (m for m in played.told if isinstance(m, synced_msg.SyncedReady))
        assert first.weights_hash == second.weights_hash  # no step counted, so nothing has moved


async def test_a_seat_is_over_when_its_owner_ends_the_group_or_is_not_heard(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _ready() as played:
        await played.say(lane_msg.LaneEnd(LANE, 0, START, 0, (), "enough"))
        await played.until(lambda: played.member is not None and played.member.seat is None)
    async with _open(is_pinged=False) as played:
        assert played.member is not None
        assert played.member.seat is not None
        await trio.sleep(KEEPER_SILENT_S + 3.0)
        assert played.member.seat is None


async def test_a_seat_with_nothing_to_say_is_over_within_two_seconds_after_its_owners_process_is_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _open(is_pinged=False) as played:
        await played.until(lambda: any(isinstance(message, synced_msg.SyncedReady) for message in played.told))
        await played.say(lane_msg.LanePing(LANE, 0, 1))
        assert played.member is not None
        seat = played.member.seat
        assert isinstance(seat, SyncedSeat)
        played.swarm.kill(OWNER)
        await trio.sleep(2.0)
        assert played.member.seat is None
        assert seat.has_lost_owner


async def test_another_stage_in_the_same_group_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with _ready() as played:
        assert "stage 2 in the same group" in await played.say(replace(BEGIN, stage=2))
