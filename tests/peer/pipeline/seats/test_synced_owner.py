"""The owner of synced steps whose replicas are played by hand: what it takes of them, what it refuses and gives to nobody."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

import pytest
import torch
import trio
import trio.testing

from averaging.codecs.boundary import HEAD_BYTES, encode_boundary
from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.network.seams.offload import InlineOffload
from peer.pipeline.seats.lane_member import LaneMember
from peer.pipeline.seats.synced_owner import SyncedOwner
from peer.pipeline.stage.lane_compute import LaneShape
from peer.pipeline.synced_service import group_config
from peer.pipeline.transport.lane_calls import MEMBER_CHANNEL, read_answer
from peer.pipeline.transport.lane_network import OwnLoop
from peer.pipeline.transport.lane_outbox import PARCEL_CHANNEL, answer, receive_bytes, receive_in_time, send_parcel
from peer.pipeline.transport.lane_work import LaneContext, LaneShare, StageWork
from protocol.ids import PeerId
from protocol.pipeline.messages import lane_messages as lane_msg
from protocol.pipeline.messages import synced_messages as synced_msg
from protocol.pipeline.messages.lane_wire import decode_parcel, encode_parcel
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from tests.peer.lane_swarm import SHAPE
from tests.peer.lane_world import lane_config
from tests.peer.stage_world import MODEL, RUN, STAGES

CONFIG = lane_config(inner_steps=2, heldout_passes=1)
OWNER, FIRST, SECOND, LAST, STRANGER = (PeerId(name) for name in ("owner", "first", "second", "last", "stranger"))
MEMBERS = {FIRST: 0, SECOND: 1, LAST: 2}
LANE, START, NEXT = 7, Point(0, 0), Point(0, 1)
FORM = LaneShape(RUN, CONFIG, STAGES, SHAPE, "fp64", "fp64")


def _message(number: int = 0, at: Point = START, width: int = MODEL.dim, codec: str = "fp64") -> bytes:
    """What the first stage gives the second one of a micro-batch."""
    boundary = replace(FORM.boundary(LANE, 1, 0, at, Pass(number, False)), shape=(*SHAPE, width), codec=codec)
    return encode_boundary(torch.ones(*SHAPE, width, dtype=torch.float64), boundary)


GOOD = _message()
WORK = synced_msg.SyncedReply(LANE, START, 0, 0, False, len(GOOD))


def _not_finite() -> bytes:
    payload = b"\x00\x00\x00\x00\x00\x00\xf8\x7f" + GOOD[HEAD_BYTES + 8 :]
    return GOOD[: HEAD_BYTES - 16] + sha256(payload).digest()[:16] + payload


@dataclass
class Played:
    """The owner is real; its replicas say what the test says. `asked` is the work that reached each of them, with its bytes."""

    owner: SyncedOwner
    networks: dict[PeerId, MemoryNetwork]
    asked: list[tuple[synced_msg.SyncedAsk, bytes]] = field(default_factory=list)

    async def bring(self, reply: synced_msg.SyncedReply, data: bytes, sender: PeerId = FIRST) -> str:
        """Why it is refused; empty where it is not."""
        stream = await self.networks[sender].open_stream(OWNER, PARCEL_CHANNEL, timeout_s=1.0)
        await send_parcel(stream, reply, data)
        frame = await receive_in_time(stream)
        await stream.aclose()
        assert frame is not None
        return read_answer(frame)

    def of(self, stage: int) -> list[tuple[int, bytes]]:
        """Micro-batches that a stage was asked for, with the bytes that came with them."""
        return [(ask.number, data) for ask, data in self.asked if ask.stage == stage]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Within ten virtual seconds."""
        with trio.fail_after(10.0):
            while not is_so():
                await trio.sleep(0.01)

    async def serve(self, sender: PeerId, stream: Stream) -> None:
        while (frame := await stream.receive_frame()) is not None:
            ask = decode_parcel(frame)
            assert isinstance(ask, synced_msg.SyncedAsk)
            self.asked.append((ask, await receive_bytes(stream, ask.forward_bytes + ask.backward_bytes)))
            await answer(stream)


async def _taken(_sender: PeerId, _request: bytes) -> bytes:
    return encode_parcel(lane_msg.LaneAnswer(""))


def _tools(network: MemoryNetwork) -> LaneContext:
    def no_work(_lane: int, _stage: int) -> StageWork:
        raise AssertionError("an owner computes nothing")

    async def no_round(_share: LaneShare) -> torch.Tensor:
        raise AssertionError("an owner brings nothing")

    async def nothing(_share: LaneShare) -> None:
        raise AssertionError("an owner brings nothing for others")

    return LaneContext(OwnLoop(network), InlineOffload(), FORM, no_work, no_round, nothing)


@asynccontextmanager
async def _asking() -> AsyncIterator[Played]:
    """An owner that has asked the first stage for work."""
    with trio.fail_after(120.0):
        async with trio.open_nursery() as nursery:
            swarm = MemorySwarm(nursery, random.Random(1))
            networks = {peer: swarm.start(peer) for peer in (*MEMBERS, STRANGER)}
            tools = _tools(swarm.start(OWNER))
            owner = SyncedOwner(LANE, tools, (group_config(CONFIG), MEMBERS, START), lambda: ())
            played = Played(owner, networks)
            for peer in MEMBERS:
                networks[peer].serve_calls(MEMBER_CHANNEL, _taken)
                networks[peer].serve_streams(PARCEL_CHANNEL, played.serve)
            member = LaneMember(tools, lambda _: OWNER, owner.take_reply, owner.await_reply)
            member.serve()
            nursery.start_soon(member.run)
            nursery.start_soon(owner.run)
            await trio.sleep(0.1)
            for peer in MEMBERS:
                owner.hear(peer, synced_msg.SyncedReady(LANE, START, b"h" * 32))
            await played.until(lambda: bool(played.of(0)))
            yield played
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("reply", "data", "sender", "reason"),
    [
        (WORK, GOOD, STRANGER, "a replica of it"),
        (WORK, GOOD, SECOND, "a replica of it"),
        (replace(WORK, number=99), GOOD, FIRST, "one of a step"),
        (replace(WORK, number=CONFIG.num_micro_batches, is_backward=True, num_bytes=5), b"bytes", FIRST, "of a step"),
        (replace(WORK, is_backward=True), GOOD, FIRST, f"{len(GOOD)} bytes of a reply; expected 0"),
        (replace(WORK, num_bytes=5), b"bytes", FIRST, f"5 bytes of a reply; expected {len(GOOD)}"),
        (replace(WORK, num_bytes=0), b"", FIRST, "0 bytes of a reply"),
        (replace(WORK, num_bytes=1 << 30), b"", FIRST, "bytes of a reply"),
    ],
)
async def test_what_is_no_reply_of_a_replica_is_refused_before_a_byte_of_it_is_taken_and_given_to_nobody(
    autojump_clock: trio.testing.MockClock, reply: synced_msg.SyncedReply, data: bytes, sender: PeerId, reason: str
) -> None:
    async with _asking() as played:
        assert reason in await played.bring(reply, data, sender)
        await trio.sleep(0.5)
        assert (played.owner.held_bytes, played.of(1)) == (0, [])


@pytest.mark.parametrize(
    "data",
    [
        _message(number=1),
        _message(at=NEXT),
        _message(width=2 * MODEL.dim, codec="fp32"),
        _not_finite(),
        GOOD[:-1] + b"\x01",
    ],
    ids=["another micro-batch", "another step", "another shape and type", "not finite", "changed on the way"],
)
async def test_bytes_that_are_not_what_was_asked_for_are_given_to_nobody_and_the_work_is_asked_for_again(
    autojump_clock: trio.testing.MockClock, data: bytes
) -> None:
    async with _asking() as played:
        num_asked = sum(number == 0 for number, _ in played.of(0))
        await played.bring(replace(WORK, num_bytes=len(data)), data)
        await played.until(lambda: sum(number == 0 for number, _ in played.of(0)) > num_asked)
        assert (played.owner.held_bytes, played.of(1)) == (0, [])
        assert await played.bring(WORK, GOOD) == ""
        await played.until(lambda: played.of(1) == [(0, GOOD)])
        assert played.owner.held_bytes == len(GOOD)


async def test_what_is_held_is_bounded_and_let_go_when_the_group_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with _asking() as played:
        ways = 2 * (CONFIG.num_stages - 1)
        assert played.owner.bound_bytes == (CONFIG.num_micro_batches + CONFIG.heldout_passes) * ways * len(GOOD)
        await played.bring(WORK, GOOD)
        await played.until(lambda: played.owner.held_bytes > 0)
        assert played.owner.held_bytes <= played.owner.bound_bytes
        for peer in (FIRST, LAST):
            played.owner.hear(peer, lane_msg.LaneLeave(LANE, 0, "enough"))
        await trio.sleep(6.0)
        assert played.owner.state.phase == "over"
        assert played.owner.held_bytes == 0


def _came_of(ask: synced_msg.SyncedAsk) -> tuple[synced_msg.SyncedReply, bytes]:
    """A good reply to what was asked for."""
    towards = ask.stage - 1 if ask.is_backward else ask.stage + 1
    if not 0 <= towards < CONFIG.num_stages:
        return synced_msg.SyncedReply(LANE, ask.at, ask.stage, ask.number, ask.is_backward, 0), b""
    boundary = FORM.boundary(LANE, towards, 0, ask.at, Pass(ask.number, ask.is_backward))
    data = encode_boundary(torch.ones(*SHAPE, MODEL.dim, dtype=torch.float64), boundary)
    return synced_msg.SyncedReply(LANE, ask.at, ask.stage, ask.number, ask.is_backward, len(data)), data


async def test_what_is_held_is_let_go_when_the_step_is_taken(autojump_clock: trio.testing.MockClock) -> None:
    async with _asking() as played:
        owner, by_stage, answered = played.owner, {stage: peer for peer, stage in MEMBERS.items()}, 0
        while owner.state.step is not None and owner.state.step.phase != "summing":
            await played.until(lambda done=answered: len(played.asked) > done)  # type: ignore[misc]
            ask, _ = played.asked[answered]
            answered += 1
            assert await played.bring(*_came_of(ask), by_stage[ask.stage]) == ""
        ways = 2 * (CONFIG.num_stages - 1)
        assert owner.held_bytes == CONFIG.num_micro_batches * ways * len(GOOD)
        every = tuple(range(CONFIG.num_micro_batches))
        for peer in MEMBERS:
            owner.hear(peer, synced_msg.SyncedSummed(LANE, START, every))
        for peer in MEMBERS:
            assert owner.state.at == START
            owner.hear(peer, lane_msg.LaneSquare(LANE, 0, START, 1.0))
        assert owner.state.at == NEXT
        assert (owner.held_bytes, owner.waiting_bytes) == (0, 0)


async def test_replies_that_differ_in_their_loss_alone_are_one_and_of_work_that_is_held_no_byte_is_taken(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _asking() as played:
        owner = played.owner
        for nats in (1.0, 2.0, 3.0):
            owner.take_reply(FIRST, replace(WORK, loss_nats=nats), GOOD)
        assert owner.waiting_bytes == len(GOOD)
        await played.until(lambda: owner.held_bytes == len(GOOD))
        await played.until(lambda: not owner.waiting_bytes)
        for of_no_use in (replace(WORK, loss_nats=4.0), replace(WORK, at=NEXT)):
            assert not owner.await_reply(FIRST, of_no_use)
        assert await played.bring(replace(WORK, loss_nats=4.0), _not_finite()) == ""  # nobody looks at these bytes
        assert owner.waiting_bytes == 0
        await trio.sleep(0.15)
        assert (owner.held_bytes, played.of(1)) == (len(GOOD), [(0, GOOD)])


async def test_a_reply_that_comes_again_and_again_or_of_another_step_is_held_once_at_most(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _asking() as played:
        for _ in range(5):
            assert await played.bring(WORK, GOOD) == ""
        late = _message(at=NEXT)
        assert await played.bring(replace(WORK, at=NEXT), late) == ""
        await played.until(lambda: bool(played.of(1)))
        await trio.sleep(0.15)
        assert (played.owner.held_bytes, played.of(1)) == (len(GOOD), [(0, GOOD)])
