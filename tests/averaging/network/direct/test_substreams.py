from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from averaging.network.direct import substreams
from averaging.network.direct.substream_dials import MOST_IN_ALL, USEFUL_AFTER_BYTES, Growth, SubstreamDials
from averaging.network.direct.substream_rule import MOST_SUBSTREAMS
from averaging.network.direct.substreams import (
    LEAST_PIECE_BYTES,
    MOST_PIECE_BYTES,
    TOKEN_BYTES,
    SubstreamDesk,
    piece_bytes,
)
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.direct.tls_stream import TlsStream
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, Stream
from protocol.errors import ConnectionReset, RemoteProtocolError
from protocol.ids import PeerId
from tests.averaging.network.direct_world import ALICE, BOB, World, options_of

NUM_SUBSTREAMS = 4


@asynccontextmanager
async def _ends(num_substreams: int = NUM_SUBSTREAMS) -> AsyncIterator[tuple[TlsStream, TlsStream]]:
    """The two ends of a stream of so many connections: Alice's, who opened it, and Bob's."""
    arrived: list[Stream] = []
    here, done = trio.Event(), trio.Event()

    async def serve(_peer: PeerId, stream: Stream) -> None:
        arrived.append(stream)
        here.set()
        await done.wait()

    world = World()
    first = replace(options_of(ALICE), num_first_substreams=num_substreams)
    async with world.open(ALICE, first) as alice, world.open(BOB) as bob:
        bob.handlers["bulk"] = serve
        stream = await alice.way.open_stream(bob.peer_id, "bulk", 5.0)
        with trio.fail_after(60):
            await here.wait()
        ours, theirs = stream, arrived[0]
        assert isinstance(ours, TlsStream)
        assert isinstance(theirs, TlsStream)
        await _grown(ours, theirs, num_substreams)
        try:
            yield ours, theirs
        finally:
            done.set()
            await ours.aclose()


async def _grown(ours: TlsStream, theirs: TlsStream, num_substreams: int) -> None:
    """Frames go there until substreams have come, one by one."""
    with trio.fail_after(120):
        while num_substreams > 1 and len(theirs.connections) < num_substreams:
            await ours.send_frame(bytes(8192))
            assert await theirs.receive_frame() == bytes(8192)
            await trio.sleep(0.01)


async def _both(sender: Stream, receiver: Stream, frames: list[bytes]) -> list[bytes]:
    got: list[bytes] = []
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for frame in frames:
                    await sender.send_frame(memoryview(frame))

            nursery.start_soon(send)
            for _ in frames:
                frame = await receiver.receive_frame()
                assert frame is not None
                got.append(frame)
    return got


LENGTHS = [
    *(LEAST_PIECE_BYTES + 1, 0, 700_001, 3, LEAST_PIECE_BYTES, MAX_FRAME_BYTES, 3 * LEAST_PIECE_BYTES),
    *(LEAST_PIECE_BYTES - 1, 2 * LEAST_PIECE_BYTES, 9 * LEAST_PIECE_BYTES + 5),
]


async def test_frames_of_all_lengths_come_in_order_and_whole_both_ways() -> None:
    frames = [os.urandom(length) for length in LENGTHS]
    async with _ends() as (ours, theirs):
        assert await _both(ours, theirs, frames) == frames
        assert await _both(theirs, ours, frames) == frames
        await ours.aclose()
        assert await theirs.receive_frame() is None


async def test_pieces_go_over_all_substreams() -> None:
    async with _ends() as (ours, theirs):
        before = [(look := connection.stats()) and look.acked_bytes for connection in ours.connections]
        for _ in range(8):
            assert len(await _both(ours, theirs, [bytes(MAX_FRAME_BYTES)])) == 1
        for connection, acked in zip(ours.connections, before, strict=True):
            look = connection.stats()
            assert look is not None
            assert acked is not None
            assert look.acked_bytes - acked > 2 * MOST_PIECE_BYTES


async def test_a_frame_whose_sending_was_cancelled_is_finished_by_the_next_one_though_its_memory_was_changed() -> None:
    async with _ends() as (ours, theirs):
        memory = bytearray(os.urandom(MAX_FRAME_BYTES))
        first, second = bytes(memory), os.urandom(MAX_FRAME_BYTES)
        taken = 0
        while True:
            with trio.move_on_after(0.3) as scope:
                await ours.send_frame(memoryview(memory))
            if scope.cancelled_caught:
                break
            taken += 1
        memory[:] = bytes(MAX_FRAME_BYTES)
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ours.send_frame, second)
                for _ in range(taken + 1):
                    assert await theirs.receive_frame() == first
                assert await theirs.receive_frame() == second


async def test_a_receiver_that_was_cancelled_in_the_middle_of_a_frame_loses_nothing() -> None:
    frame = os.urandom(MAX_FRAME_BYTES)
    async with _ends() as (ours, theirs), trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_frame, memoryview(frame))
        got: bytes | None = None
        num_cancelled = 0
        with trio.fail_after(120):
            while got is None:
                with trio.CancelScope() as scope:
                    nursery.start_soon(_cancel_soon, scope, num_cancelled // 2)
                    got = await theirs.receive_frame()
                num_cancelled += scope.cancelled_caught
        assert got == frame
        assert num_cancelled > 3


async def _cancel_soon(scope: trio.CancelScope, num_turns: int) -> None:
    for _ in range(num_turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_a_connection_that_breaks_breaks_the_stream_at_both_ends() -> None:
    async with _ends() as (ours, theirs):
        ours.connections[2].close(is_reset=True)
        with trio.fail_after(60), pytest.raises(ConnectionReset):
            await _send_on(ours)
        with trio.fail_after(60), pytest.raises(ConnectionReset):
            await _receive_on(theirs)


async def _send_on(stream: Stream) -> None:
    while True:
        await stream.send_frame(bytes(MAX_FRAME_BYTES))


async def _receive_on(stream: Stream) -> None:
    while await stream.receive_frame() is not None:
        pass


async def test_a_stream_that_ends_closes_all_of_its_connections() -> None:
    async with _ends() as (ours, theirs):
        frames = [os.urandom(MAX_FRAME_BYTES)]
        assert await _both(ours, theirs, frames) == frames
        await ours.aclose()
        assert await theirs.receive_frame() is None
        await theirs.aclose()
        with trio.fail_after(60):
            for connection in (*ours.connections, *theirs.connections):
                await connection.closed.wait()


async def test_a_substream_that_is_not_needed_for_long_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept for ever at the other side, and a stream that announces one which is gone there would break."""
    monkeypatch.setattr("averaging.network.direct.tls_stream.ANNOUNCED_WITHIN_S", -1.0)
    substream = _Connection()
    async with _ends(1) as (ours, theirs):
        ours.join(substream, bytes(TOKEN_BYTES))  # type: ignore[arg-type]
        frames = [os.urandom(MAX_FRAME_BYTES)] * 3
        assert await _both(ours, theirs, frames) == frames
        assert len(ours.connections) == len(theirs.connections) == 1
        assert substream.closed.is_set()


# --- what another side may not do -----------------------------------------------------------------------------------------------


async def test_a_substream_that_never_came_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(substreams, "CLAIM_WITHIN_S", 0.05)
    async with _ends(1) as (ours, theirs):
        await ours._send(memoryview(struct.pack(">I", 0xFFFFFFFE) + b"t" * TOKEN_BYTES))
        with trio.fail_after(60), pytest.raises(RemoteProtocolError, match="did not come"):
            await theirs.receive_frame()
        with pytest.raises(ConnectionReset):
            await theirs.receive_frame()


async def test_who_was_dialled_may_not_add_substreams() -> None:
    async with _ends(1) as (ours, theirs):
        await theirs._send(memoryview(struct.pack(">I", 0xFFFFFFFE) + b"t" * TOKEN_BYTES))
        with trio.fail_after(60), pytest.raises(RemoteProtocolError, match="did not open"):
            await ours.receive_frame()


async def test_no_more_substreams_are_taken_than_a_stream_may_have() -> None:
    async with _ends(MOST_SUBSTREAMS) as (ours, theirs):
        assert len(theirs.connections) == MOST_SUBSTREAMS
        await ours._send(memoryview(struct.pack(">I", 0xFFFFFFFE) + b"t" * TOKEN_BYTES))
        with trio.fail_after(60), pytest.raises(RemoteProtocolError, match="8 at most"):
            await theirs.receive_frame()


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 0xFFFFFFFF, 0xFFFFFFFE])
async def test_a_frame_over_all_connections_that_is_too_long_ends_the_stream(length: int) -> None:
    async with _ends(2) as (ours, theirs):
        await ours._send(memoryview(struct.pack(">II", 0xFFFFFFFD, length)))
        with trio.fail_after(60), pytest.raises(RemoteProtocolError, match=f"a frame of {length} bytes"):
            await theirs.receive_frame()


@pytest.mark.parametrize("heads", [[(0, 2)], [(0, 1 << 31)], [(0, 0), (0, 0)], [(1 << 31, 0)], [(0xFFFFFFFF, 0)]])
async def test_a_piece_that_there_is_not_or_that_came_already_ends_the_stream(heads: list[tuple[int, int]]) -> None:
    length = 2 * LEAST_PIECE_BYTES
    async with _ends(2) as (ours, theirs):
        await ours.send_frame(b"")  # and whatever was begun
        assert await theirs.receive_frame() == b""
        number = theirs._num_striped_down
        await ours._send(memoryview(struct.pack(">II", 0xFFFFFFFD, length)))
        for frame, piece in heads:
            head = struct.pack(">II", (number + frame) % (1 << 32), piece)
            await _send_all(ours, head + bytes(LEAST_PIECE_BYTES))
        with trio.fail_after(60), pytest.raises(RemoteProtocolError, match=f"piece {heads[-1][1]} of frame"):
            await theirs.receive_frame()
        assert theirs._connection.is_closed


async def _send_all(stream: TlsStream, data: bytes) -> None:
    view, begin = memoryview(data), 0
    while begin < len(view):
        begin = await stream.connections[0].send(view, begin)


@pytest.mark.parametrize("length", [0, 1, MAX_FRAME_BYTES])
async def test_a_frame_over_substreams_on_a_stream_that_has_none_ends_the_stream(length: int) -> None:
    """It once left as a ZeroDivisionError, which whoever reads a stream does not foresee."""
    async with _ends(1) as (ours, theirs):
        await theirs._send(memoryview(struct.pack(">II", 0xFFFFFFFD, length)))
        with trio.fail_after(60), pytest.raises(RemoteProtocolError, match="a frame over substreams"):
            await ours.receive_frame()
        assert ours._connection.is_closed


async def test_a_frame_that_cannot_become_whole_any_more_ends_the_stream() -> None:
    async with _ends(2) as (ours, theirs):
        await ours._send(memoryview(struct.pack(">II", 0xFFFFFFFD, 2 * LEAST_PIECE_BYTES)))
        for substream in ours.connections:  # what comes next on each of them belongs to the next frame
            await substream.send(memoryview(struct.pack(">II", theirs._num_striped_down + 1, 0)), 0)
        with trio.fail_after(60), pytest.raises(RemoteProtocolError, match="without 2 of its pieces"):
            await theirs.receive_frame()


async def test_a_substream_without_room_holds_up_no_frame() -> None:
    """It takes no piece until it has some: here the other side reads only what the others bring."""
    async with _ends(2) as (ours, _):
        stuck = ours.connections[0]
        full = memoryview(bytes(1 << 24))
        with trio.move_on_after(1.0):
            await _fill(stuck, full)
        with trio.fail_after(60):
            await ours.send_frame(bytes(3 * LEAST_PIECE_BYTES))  # with the kernel at once, over the other one


async def _fill(substream: TlsSocket, data: memoryview) -> None:
    begin = 0
    while True:
        begin = await substream.send(data, begin) % len(data)


@pytest.mark.parametrize(("num_bytes", "length"), [(0, 8192), (16_000, 8192), (1 << 21, 1 << 16), (200_000, 12_500)])
def test_pieces_are_short_enough_for_each_substream_to_have_two(num_bytes: int, length: int) -> None:
    assert piece_bytes(num_bytes) == length


async def test_who_was_dialled_may_send_before_it_has_read_that_there_are_more_substreams() -> None:
    """Both ends once reckoned the length of pieces from how many substreams they knew of, and read each other's pieces wrongly."""
    frames = [os.urandom(length) for length in (200_000, 700_001, MAX_FRAME_BYTES)]
    async with _ends(2) as (ours, theirs):
        await _announce_another(ours)
        assert (len(ours.connections), len(theirs.connections)) == (3, 2)
        assert await _both(theirs, ours, frames) == frames
        assert await theirs.receive_frame() == b""
        assert await _both(theirs, ours, frames) == frames
        assert await _both(ours, theirs, frames) == frames


async def _announce_another(stream: TlsStream) -> None:
    growth = stream._growth
    assert isinstance(growth, Growth)
    growth._dials.add(stream.remote, stream, 1)
    with trio.fail_after(60):
        while not stream._joining:
            await trio.sleep(0.01)
    await stream.send_frame(b"")


# --- connections that wait for their stream ---------------------------------------------------------------------------------------


async def test_a_substream_that_no_stream_asks_for_is_closed_and_its_place_is_free(
    autojump_clock: trio.testing.MockClock,
) -> None:
    desk, substream = SubstreamDesk(), _Connection()
    await desk.keep(BOB.peer_id, b"t", substream, _confirm)  # type: ignore[arg-type]
    assert substream.closed.is_set()
    assert trio.current_time() == pytest.approx(substreams.KEPT_FOR_S)
    with pytest.raises(RemoteProtocolError, match="did not come"):
        await desk.claim(BOB.peer_id, b"t")


async def test_a_substream_is_only_its_own_peers(autojump_clock: trio.testing.MockClock) -> None:
    desk, substream = SubstreamDesk(), _Connection()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.keep, BOB.peer_id, b"t", substream, _confirm)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RemoteProtocolError, match="did not come"):
            await desk.claim(ALICE.peer_id, b"t")
        assert await desk.claim(BOB.peer_id, b"t") is substream  # type: ignore[comparison-overlap]
        await trio.sleep(2 * substreams.KEPT_FOR_S)
        assert not substream.closed.is_set()
        substream.close()


async def test_two_substreams_with_one_token_are_not_taken(autojump_clock: trio.testing.MockClock) -> None:
    desk = SubstreamDesk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.keep, BOB.peer_id, b"t", _Connection(), _confirm)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RemoteProtocolError, match="one token"):
            await desk.keep(BOB.peer_id, b"t", _Connection(), _confirm)  # type: ignore[arg-type]


async def _confirm() -> None:
    await trio.lowlevel.checkpoint()


class _Connection:
    def __init__(self) -> None:
        self.closed = trio.Event()

    def close(self, *, is_reset: bool = False) -> None:
        self.closed.set()


# --- who adds them ----------------------------------------------------------------------------------------------------------------


class _NoStream:
    """With connections that the system says nothing of."""

    connections = ()

    def join(self, substream: TlsSocket, token: bytes) -> None:
        raise AssertionError("a substream that there is not")


async def test_a_peer_that_takes_no_substreams_is_not_asked_again_for_a_while(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[float] = []

    async def dial(_peer: PeerId) -> None:
        asked.append(trio.current_time())

    stream = _NoStream()
    async with trio.open_nursery() as nursery:
        dials = SubstreamDials(dial, nursery, num_first=3)
        dials.growth(BOB.peer_id).sent(stream, 1 << 20)
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked) == 3
        dials.growth(BOB.peer_id).sent(stream, 1 << 20)
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked) == 3
        await trio.sleep(61.0)
        dials.growth(BOB.peer_id).sent(stream, 1 << 20)
        await trio.testing.wait_all_tasks_blocked()
        assert len(asked) == 6


async def test_what_paid_for_a_stream_is_begun_with_by_the_next_one_that_has_much_to_send(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[PeerId] = []

    async def dial(peer: PeerId) -> None:
        asked.append(peer)

    stream = _NoStream()
    async with trio.open_nursery() as nursery:
        dials = SubstreamDials(dial, nursery)
        dials.learned(BOB.peer_id, 4)
        growth = dials.growth(BOB.peer_id)
        growth.sent(stream, USEFUL_AFTER_BYTES - 1)
        await trio.sleep(1.0)
        assert asked == []
        growth.sent(stream, 1)
        await trio.sleep(1.0)
        assert asked == [BOB.peer_id] * 4
        dials.growth(ALICE.peer_id).sent(stream, USEFUL_AFTER_BYTES)
        await trio.sleep(1.0)
        assert len(asked) == 4, "nothing was learned of the way to her"


async def test_all_streams_together_have_no_more_than_so_many(autojump_clock: trio.testing.MockClock) -> None:
    num_asked = 0

    async def dial(_peer: PeerId) -> None:
        nonlocal num_asked
        num_asked += 1
        await trio.sleep(10.0)

    async with trio.open_nursery() as nursery:
        dials = SubstreamDials(dial, nursery, num_first=8)
        for _ in range(10):
            dials.growth(BOB.peer_id).sent(_NoStream(), 1)
        await trio.sleep(1.0)
        assert num_asked == MOST_IN_ALL
