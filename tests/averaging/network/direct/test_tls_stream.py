from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing

from averaging.network.direct import tls_stream
from averaging.network.direct.tls_socket import RECORD_BYTES
from averaging.network.direct.tls_stream import TlsStream
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, Stream
from protocol.errors import LocalProtocolError, PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId
from tests.averaging.network.direct_world import Peer, pair


@asynccontextmanager
async def _ends() -> AsyncIterator[tuple[Peer, Stream, Stream]]:
    """Alice, and the two ends of a stream: hers, which she opened, and Bob's."""
    arrived: list[Stream] = []
    here, done = trio.Event(), trio.Event()

    async def serve(_peer: PeerId, stream: Stream) -> None:
        arrived.append(stream)
        here.set()
        await done.wait()

    async with pair() as (alice, bob):
        bob.handlers["bulk"] = serve
        stream = await alice.way.open_stream(bob.peer_id, "bulk", 5.0)
        assert stream is not None
        with trio.fail_after(60):
            await here.wait()
        try:
            yield alice, stream, arrived[0]
        finally:
            done.set()
            await stream.aclose()


async def test_frames_of_every_length_around_a_record_arrive_whole() -> None:
    lengths = [0, 1, RECORD_BYTES - 5, RECORD_BYTES - 4, RECORD_BYTES - 3, 2 * RECORD_BYTES, 700_001, MAX_FRAME_BYTES]
    frames = [os.urandom(length) for length in lengths]
    async with _ends() as (_, here, there), trio.open_nursery() as nursery:

        async def send() -> None:
            for frame in frames:
                await here.send_frame(memoryview(frame))
            await here.aclose()

        nursery.start_soon(send)
        for frame in frames:
            view = await there.receive_view()
            assert view is not None
            assert view.readonly
            assert view == frame
        assert await there.receive_frame() is None
        assert await there.receive_frame() is None
        nursery.cancel_scope.cancel()


async def test_both_sides_send_at_once_and_neither_waits_for_the_other() -> None:
    async with _ends() as (_, here, there), trio.open_nursery() as nursery:
        got: dict[str, bytes] = {}

        async def send(stream: Stream) -> None:
            for _ in range(16):
                await stream.send_frame(b"x" * MAX_FRAME_BYTES)

        async def take(name: str, stream: Stream) -> None:
            digest = hashlib.sha256()
            for _ in range(16):
                digest.update(await stream.receive_frame() or b"")
            got[name] = digest.digest()

        with trio.fail_after(120):
            async with trio.open_nursery() as traffic:
                for name, stream in (("here", here), ("there", there)):
                    traffic.start_soon(send, stream)
                    traffic.start_soon(take, name, stream)
        assert got["here"] == got["there"] == hashlib.sha256(b"x" * 16 * MAX_FRAME_BYTES).digest()
        nursery.cancel_scope.cancel()


async def test_a_frame_whose_sending_was_cancelled_arrives_as_it_was_though_its_memory_was_changed_since() -> None:
    async with _ends() as (_, here, there):
        buffer = bytearray(b"a" * MAX_FRAME_BYTES)
        num_sent = 0
        with trio.move_on_after(0.5) as scope:
            while True:
                await here.send_frame(memoryview(buffer))
                num_sent += 1
        assert scope.cancelled_caught
        buffer[:] = b"b" * len(buffer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.send_frame, b"last")
            frames = [await there.receive_frame() for _ in range(num_sent + 2)]
        assert set(frames[:-1]) == {b"a" * MAX_FRAME_BYTES}
        assert frames[-1] == b"last"


async def test_a_frame_over_the_cap_is_not_sent_and_breaks_nothing() -> None:
    async with _ends() as (_, here, there):
        with pytest.raises(LocalProtocolError):
            await here.send_frame(bytes(MAX_FRAME_BYTES + 1))
        await here.send_frame(b"fine")
        assert await there.receive_frame() == b"fine"


async def test_a_frame_that_has_no_place_is_not_read_and_the_stream_is_of_no_more_use_to_either_side() -> None:
    def no_place(num_bytes: int) -> memoryview:
        raise RemoteProtocolError(f"a frame of {num_bytes} bytes", "at most 3")

    async with _ends() as (_, here, there):
        await here.send_frame(b"long")
        with pytest.raises(RemoteProtocolError, match="a frame of 4 bytes"):
            await there.receive_view(no_place)
        for end in (there, here):
            with pytest.raises(PeerUnreachable), trio.fail_after(60):
                await end.receive_frame()


async def test_a_stream_that_is_closed_here_can_be_used_no_more() -> None:
    async with _ends() as (_, here, there):
        await here.aclose()
        await here.aclose()
        with pytest.raises(PeerUnreachable):
            await here.send_frame(b"x")
        with pytest.raises(PeerUnreachable):
            await here.receive_frame()
        assert await there.receive_frame() is None


async def test_a_reset_reaches_who_waits_on_either_side() -> None:
    async with _ends() as (_, here, there):
        assert isinstance(there, TlsStream)

        async def broken(stream: Stream) -> None:
            with pytest.raises(PeerUnreachable):
                await stream.receive_frame()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broken, here)
                nursery.start_soon(broken, there)
                await trio.testing.wait_all_tasks_blocked()
                there.reset()


async def test_the_owners_caps_hold_for_direct_streams() -> None:
    async with _ends() as (alice, here, there):
        await here.send_frame(bytes(65_536))  # what a full bucket lets through at once
        await there.receive_frame()
        alice.lane.cap(200_000.0, None)
        began_s = trio.current_time()
        for _ in range(4):
            await here.send_frame(bytes(65_536))
            await there.receive_frame()
        assert trio.current_time() - began_s > 0.5


async def test_a_frame_that_was_held_back_by_the_owners_cap_is_not_lost_when_its_receiver_is_cancelled() -> None:
    async with _ends() as (alice, here, there):
        alice.lane.cap(None, 100_000.0)

        async def send_both() -> None:
            await there.send_frame(b"a" * 400_000)
            await there.send_frame(b"next")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_both)
            with trio.move_on_after(0.5) as scope:
                await here.receive_frame()
            assert scope.cancelled_caught
            alice.lane.cap(None, None)
            assert await here.receive_frame() == b"a" * 400_000
            assert await here.receive_frame() == b"next"
        assert alice.lane.tally.bytes_down == 400_004, "counted once"


async def test_a_reader_that_takes_nothing_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_stream, "STALLED_S", 0.2)
    async with _ends() as (_, here, there):

        async def send_on() -> None:
            while True:
                await here.send_frame(bytes(MAX_FRAME_BYTES))

        async def receive_on() -> None:
            while True:
                await there.receive_frame()

        with trio.fail_after(120):
            with pytest.raises(PeerUnreachable):
                await send_on()
            with pytest.raises(PeerUnreachable):
                await receive_on()


class _Woken:
    """A connection that was waited on until its deadline had passed, and is found writable in the same moment: as after SIGSTOP."""

    def __init__(self, clock: trio.testing.MockClock) -> None:
        self._clock = clock
        self._num_calls = 0

    async def send(self, data: memoryview, begin: int) -> int:
        self._num_calls += 1
        if self._num_calls == 2:
            self._clock.jump(tls_stream.STALLED_S + 1)
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await trio.lowlevel.checkpoint()
        return begin + 1


def test_what_left_when_the_deadline_had_just_passed_is_no_stall() -> None:
    clock = trio.testing.MockClock()

    async def send() -> None:
        stream = object.__new__(TlsStream)
        stream._connection, stream._unsent = cast(Any, _Woken(clock)), [memoryview(b"abcd")]
        await stream._send_part(memoryview(b"abcd"))
        assert stream._unsent == [memoryview(b"")]

    trio.run(send, clock=clock)
