"""The contract of every form of Network: order, caps, backpressure, and the error that a caller sees when the other side dies or
freezes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import trio

from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.network.seams.directory import seal_record
from averaging.network.seams.interfaces import MAX_CONTROL_BYTES, MAX_FRAME_BYTES, Network, Stream
from protocol.errors import (
    CallTimeout,
    ConnectionReset,
    LocalProtocolError,
    MachineError,
    PeerUnreachable,
    PotluckError,
    RemoteProtocolError,
)
from protocol.ids import PeerId
from tests.contract.network_worlds import RUN, Check, World, new_identity, open_real_world, run_in_memory

Runner = Callable[[Check], None]

STUCK_S = 0.5
"""A frame that is not taken for this long waits for its reader: all of them would take less."""


@pytest.fixture(scope="module")
def real_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_real_world(tmp_path_factory.mktemp("identities")) as run:
        yield run


@pytest.fixture(params=["memory", "real"])
def run(request: pytest.FixtureRequest) -> Runner:
    if request.param == "memory":
        return run_in_memory
    runner: Runner = request.getfixturevalue("real_world")
    return runner


@pytest.fixture(scope="module")
def direct_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_real_world(tmp_path_factory.mktemp("identities"), is_direct=True) as run:
        yield run


@pytest.fixture(scope="module")
def substreams_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with open_real_world(tmp_path_factory.mktemp("identities"), is_direct=True, num_substreams=4) as run:
        yield run


@pytest.fixture(params=["memory", "real", "direct", "substreams"])
def run_direct(request: pytest.FixtureRequest) -> Runner:
    """For what can go direct: streams and calls take the way that the world is about, with one connection a stream or several."""
    if request.param == "memory":
        return run_in_memory
    runner: Runner = request.getfixturevalue(f"{request.param}_world")
    return runner


async def _echo(sender: PeerId, request: bytes) -> bytes:
    return sender.encode() + b":" + request


async def _collect(stream: Stream) -> list[bytes]:
    frames: list[bytes] = []
    while (frame := await stream.receive_frame()) is not None:
        frames.append(frame)
    return frames


class _Collector:
    """A stream handler that keeps what it got."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.done = trio.Event()

    async def __call__(self, sender: PeerId, stream: Stream) -> None:
        self.frames = await _collect(stream)
        self.done.set()


class _Holder:
    """A call or stream handler that never ends by itself."""

    def __init__(self) -> None:
        self.began = trio.Event()

    async def call(self, sender: PeerId, request: bytes) -> bytes:
        self.began.set()
        await trio.sleep_forever()

    async def stream(self, sender: PeerId, stream: Stream) -> None:
        self.began.set()
        await trio.sleep_forever()


def test_a_reply_comes_back_and_the_handler_knows_who_asked(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        world.bob.serve_calls("echo", _echo)
        reply = await world.alice.call(world.bob.peer_id, "echo", b"hello", timeout_s=60)
        assert reply == world.alice.peer_id.encode() + b":hello"

    run_direct(check)


def test_an_unserved_channel_is_unreachable(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        with pytest.raises(PeerUnreachable):
            await world.alice.call(world.bob.peer_id, "nobody", b"", timeout_s=60)
        with pytest.raises(PeerUnreachable):
            await world.alice.open_stream(world.bob.peer_id, "nobody", timeout_s=60)

    run_direct(check)


@pytest.mark.parametrize("name", ["", "!!!", "nobody", "peer id of é", "1" * 500])
def test_a_peer_id_that_is_none_is_unreachable(run_direct: Runner, name: str) -> None:
    async def check(world: World) -> None:
        with pytest.raises(PeerUnreachable):
            await world.alice.call(PeerId(name), "echo", b"", timeout_s=5)
        with pytest.raises(PeerUnreachable):
            await world.alice.open_stream(PeerId(name), "echo", timeout_s=5)

    run_direct(check)


def test_a_failing_handler_is_the_callers_remote_error_with_its_reason(run_direct: Runner) -> None:
    async def refuse(sender: PeerId, request: bytes) -> bytes:
        raise RemoteProtocolError("a stale proposal")

    async def check(world: World) -> None:
        world.bob.serve_calls("refuse", refuse)
        with pytest.raises(RemoteProtocolError, match="a stale proposal"):
            await world.alice.call(world.bob.peer_id, "refuse", b"", timeout_s=60)

    run_direct(check)


def test_messages_are_capped_both_ways(run_direct: Runner) -> None:
    async def shout(sender: PeerId, request: bytes) -> bytes:
        return bytes(MAX_CONTROL_BYTES + 1)

    async def check(world: World) -> None:
        world.bob.serve_calls("shout", shout)
        with pytest.raises(LocalProtocolError):
            await world.alice.call(world.bob.peer_id, "shout", bytes(MAX_CONTROL_BYTES + 1), timeout_s=60)
        with pytest.raises(RemoteProtocolError):
            await world.alice.call(world.bob.peer_id, "shout", b"", timeout_s=60)

    run_direct(check)


def test_of_several_peers_that_are_called_each_answer_and_each_failure_is_told(run_direct: Runner) -> None:
    nobody = PeerId("nobody")

    async def check(world: World) -> None:
        reported: dict[PeerId, bytes | PotluckError] = {}

        async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
            reported[peer] = reply

        world.bob.serve_calls("echo", _echo)
        bob = world.bob.peer_id
        await world.alice.call_each((nobody, bob), "echo", b"hello", timeout_s=60, took=took)
        assert reported[bob] == world.alice.peer_id.encode() + b":hello"
        assert isinstance(reported[nobody], PeerUnreachable)
        with pytest.raises(LocalProtocolError):
            await world.alice.call_each((bob,), "echo", bytes(MAX_CONTROL_BYTES + 1), timeout_s=60, took=took)

    run_direct(check)


def test_of_several_peers_that_are_called_who_does_not_answer_keeps_no_answer_back(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        reported: list[tuple[PeerId, bytes | PotluckError]] = []
        held, both = _Holder(), (world.bob.peer_id, PeerId("nobody"))

        async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
            reported.append((peer, reply))

        world.bob.serve_calls("hold", held.call)
        await world.alice.call_each(both, "hold", b"", timeout_s=1, took=took)
        assert held.began.is_set()
        assert [peer for peer, _ in reported] == [both[1], both[0]]
        assert isinstance(reported[1][1], CallTimeout)

    run_direct(check)


def test_the_longest_message_passes(run_direct: Runner) -> None:
    async def mirror(sender: PeerId, request: bytes) -> bytes:
        return request

    async def check(world: World) -> None:
        world.bob.serve_calls("mirror", mirror)
        longest = bytes(range(256)) * (MAX_CONTROL_BYTES // 256)
        assert await world.alice.call(world.bob.peer_id, "mirror", longest, timeout_s=60) == longest

    run_direct(check)


def test_a_frame_may_be_sent_as_its_head_and_the_rest(run_direct: Runner) -> None:
    async def scenario(world: World) -> None:
        collector = _Collector()
        world.bob.serve_streams("collect", collector)
        stream = await world.alice.open_stream(world.bob.peer_id, "collect", timeout_s=60)
        long = bytes(range(256)) * 1000
        for data, head in (
            (b"rest", b"head"),
            (memoryview(long), b"C\0\0\0\1"),
            (b"", b"head"),
            (memoryview(long), long),
        ):
            await stream.send_frame(data, head)
        with pytest.raises(LocalProtocolError):
            await stream.send_frame(memoryview(bytes(MAX_FRAME_BYTES)), b"1")
        await stream.aclose()
        with trio.fail_after(60):
            await collector.done.wait()
        assert collector.frames == [b"headrest", b"C\0\0\0\1" + long, b"head", long + long]

    run_direct(scenario)


def test_frames_arrive_in_order_up_to_the_clean_end(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        collector = _Collector()
        world.bob.serve_streams("collect", collector)
        frames = [b"first", b"", bytes(MAX_FRAME_BYTES), *(b"%d" % i for i in range(50))]
        stream = await world.alice.open_stream(world.bob.peer_id, "collect", timeout_s=60)
        assert stream.remote == world.bob.peer_id
        for frame in frames:
            await stream.send_frame(memoryview(frame))
        await stream.aclose()
        with trio.fail_after(60):
            await collector.done.wait()
        assert collector.frames == frames

    run_direct(check)


def test_a_frame_comes_to_lie_where_its_reader_wants_it(run_direct: Runner) -> None:
    async def three(sender: PeerId, stream: Stream) -> None:
        for frame in (b"first", b"", b"second"):
            await stream.send_frame(frame)

    async def check(world: World) -> None:
        world.bob.serve_streams("three", three)
        stream = await world.alice.open_stream(world.bob.peer_id, "three", timeout_s=60)
        room = SlotBuffer(11)
        views = [await stream.receive_view(room.take) for _ in range(3)]
        assert [view == frame for view, frame in zip(views, (b"first", b"", b"second"), strict=True)] == [True] * 3
        assert all(view is not None and view.readonly for view in views)
        assert room.taken == b"firstsecond"
        assert await stream.receive_view(room.take) is None
        await stream.aclose()

    run_direct(check)


@pytest.mark.parametrize(
    ("why", "error"),
    [(MemoryError(), MachineError), (RemoteProtocolError("a frame of 8 bytes", "at most 7"), RemoteProtocolError)],
    ids=["no memory", "too long for its place"],
)
def test_a_frame_that_there_is_no_place_for_ends_its_stream_alone_and_the_next_one_is_served(
    run_direct: Runner, why: Exception, error: type[Exception]
) -> None:
    collector = _Collector()
    refused = trio.Event()

    def no_place(num_bytes: int) -> memoryview:
        assert num_bytes == 8
        raise why

    async def without_memory(sender: PeerId, stream: Stream) -> None:
        try:
            await stream.receive_view(no_place)
        except error:
            refused.set()
            raise

    async def check(world: World) -> None:
        world.bob.serve_streams("full", without_memory)
        world.bob.serve_streams("collect", collector)
        stream = await world.alice.open_stream(world.bob.peer_id, "full", timeout_s=60)
        await stream.send_frame(b"too much")
        with trio.fail_after(60):
            await refused.wait()
            with pytest.raises(ConnectionReset):
                await stream.receive_frame()
        await stream.aclose()
        stream = await world.alice.open_stream(world.bob.peer_id, "collect", timeout_s=60)
        await stream.send_frame(b"less")
        await stream.aclose()
        with trio.fail_after(60):
            await collector.done.wait()
        assert collector.frames == [b"less"]

    run_direct(check)


def test_a_frame_can_be_had_as_a_view(run_direct: Runner) -> None:
    async def two(sender: PeerId, stream: Stream) -> None:
        await stream.send_frame(b"first")
        await stream.send_frame(b"second")

    async def check(world: World) -> None:
        world.bob.serve_streams("two", two)
        stream = await world.alice.open_stream(world.bob.peer_id, "two", timeout_s=60)
        view = await stream.receive_view()
        assert view is not None
        assert view.readonly
        assert view == b"first"
        assert await stream.receive_frame() == b"second"
        assert await stream.receive_view() is None
        await stream.aclose()

    run_direct(check)


def test_a_frame_over_the_cap_is_not_sent(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        world.bob.serve_streams("collect", _Collector())
        stream = await world.alice.open_stream(world.bob.peer_id, "collect", timeout_s=60)
        with pytest.raises(LocalProtocolError):
            await stream.send_frame(bytes(MAX_FRAME_BYTES + 1))
        await stream.aclose()

    run_direct(check)


def test_frames_cross_in_both_directions(run_direct: Runner) -> None:
    async def mirror(sender: PeerId, stream: Stream) -> None:
        while (frame := await stream.receive_frame()) is not None:
            await stream.send_frame(frame + b"!")

    async def check(world: World) -> None:
        world.bob.serve_streams("mirror", mirror)
        stream = await world.alice.open_stream(world.bob.peer_id, "mirror", timeout_s=60)
        for i in range(20):
            await stream.send_frame(b"%d" % i)
            assert await stream.receive_frame() == b"%d!" % i
        await stream.aclose()

    run_direct(check)


def test_a_handler_that_returns_ends_the_stream_cleanly(run_direct: Runner) -> None:
    async def two_frames(sender: PeerId, stream: Stream) -> None:
        await stream.send_frame(b"a")
        await stream.send_frame(b"b")

    async def check(world: World) -> None:
        world.bob.serve_streams("two", two_frames)
        stream = await world.alice.open_stream(world.bob.peer_id, "two", timeout_s=60)
        with trio.fail_after(60):
            assert await _collect(stream) == [b"a", b"b"]
        await stream.aclose()

    run_direct(check)


def test_a_handler_that_raises_resets_the_stream(run_direct: Runner) -> None:
    async def give_up(sender: PeerId, stream: Stream) -> None:
        await stream.receive_frame()
        raise RemoteProtocolError("not a chunk of ours")

    async def check(world: World) -> None:
        world.bob.serve_streams("give-up", give_up)
        stream = await world.alice.open_stream(world.bob.peer_id, "give-up", timeout_s=60)
        await stream.send_frame(b"chunk")
        with trio.fail_after(60), pytest.raises(ConnectionReset):
            await stream.receive_frame()
        await stream.aclose()

    run_direct(check)


def test_a_slow_reader_slows_its_writer_and_loses_nothing(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        may_read, done = trio.Event(), trio.Event()
        received: list[bytes] = []

        async def slow(sender: PeerId, stream: Stream) -> None:
            await may_read.wait()
            received.extend(await _collect(stream))
            done.set()

        world.bob.serve_streams("slow", slow)
        stream = await world.alice.open_stream(world.bob.peer_id, "slow", timeout_s=60)
        num_sent, is_stuck = 0, False
        while num_sent < 128 and not is_stuck:
            with trio.move_on_after(STUCK_S) as scope:
                await stream.send_frame(num_sent.to_bytes(4, "big") + bytes(1 << 20))
                num_sent += 1
            is_stuck = scope.cancelled_caught
        assert is_stuck, "128 MiB went nowhere"
        may_read.set()
        await stream.aclose()
        with trio.fail_after(120):
            await done.wait()
        numbers = [int.from_bytes(frame[:4], "big") for frame in received]
        assert numbers == list(range(len(numbers)))
        assert num_sent <= len(numbers) <= num_sent + 1

    run_direct(check)


def test_control_does_not_wait_behind_a_stuck_bulk_stream(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        world.bob.serve_streams("hold", _Holder().stream)
        world.bob.serve_calls("echo", _echo)
        stream = await world.alice.open_stream(world.bob.peer_id, "hold", timeout_s=60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_until_cancelled, stream)
            await trio.sleep(0.5)
            for _ in range(5):
                await world.alice.call(world.bob.peer_id, "echo", b"", timeout_s=1.5)
            nursery.cancel_scope.cancel()
        await stream.aclose()

    run_direct(check)


async def _send_until_cancelled(stream: Stream) -> None:
    while True:
        await stream.send_frame(bytes(1 << 18))


def test_a_dead_peer_is_unreachable_at_once(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        victim = await world.start(new_identity(10))
        victim.serve_calls("echo", _echo)
        await world.alice.add_addresses(victim.addresses())
        await world.alice.call(victim.peer_id, "echo", b"", timeout_s=60)
        await world.kill(victim)
        with pytest.raises(PeerUnreachable):
            await world.alice.call(victim.peer_id, "echo", b"", timeout_s=20)
        with pytest.raises(PeerUnreachable):
            await world.alice.open_stream(victim.peer_id, "echo", timeout_s=20)

    run_direct(check)


def test_a_peer_that_dies_during_a_call_is_unreachable_before_the_deadline(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        victim, holder = await world.start(new_identity(11)), _Holder()
        victim.serve_calls("hold", holder.call)
        await world.alice.add_addresses(victim.addresses())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_kill_when, world, victim, holder.began)
            with trio.fail_after(60), pytest.raises(ConnectionReset):
                await world.alice.call(victim.peer_id, "hold", b"", timeout_s=60)

    run_direct(check)


@pytest.fixture(params=["memory", "direct"])
def run_calls(request: pytest.FixtureRequest) -> Runner:
    """For what can be seen of the connections that calls share."""
    if request.param == "memory":
        return run_in_memory
    runner: Runner = request.getfixturevalue(f"{request.param}_world")
    return runner


def test_a_peer_whose_connection_breaks_during_a_call_answers_the_next_one(run_calls: Runner) -> None:
    async def check(world: World) -> None:
        server, holder = await world.start(new_identity(30)), _Holder()
        server.serve_calls("hold", holder.call)
        server.serve_calls("echo", _echo)
        await world.alice.add_addresses(server.addresses())
        await world.alice.call(server.peer_id, "echo", b"", timeout_s=60)

        async def break_when_held() -> None:
            await holder.began.wait()
            world.break_calls(server)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(break_when_held)
            with trio.fail_after(60), pytest.raises(ConnectionReset):
                await world.alice.call(server.peer_id, "hold", b"", timeout_s=60)
        reply = await world.alice.call(server.peer_id, "echo", b"again", timeout_s=60)
        assert reply.endswith(b":again")

    run_calls(check)


def test_a_peer_that_died_during_a_call_refuses_those_after_the_reset_at_once(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        victim, holder = await world.start(new_identity(31)), _Holder()
        victim.serve_calls("hold", holder.call)
        victim.serve_calls("echo", _echo)
        await world.alice.add_addresses(victim.addresses())
        await world.alice.call(victim.peer_id, "echo", b"", timeout_s=60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_kill_when, world, victim, holder.began)
            with trio.fail_after(60), pytest.raises(ConnectionReset):
                await world.alice.call(victim.peer_id, "hold", b"", timeout_s=60)
        for _ in range(3):
            with pytest.raises(PeerUnreachable) as refused:
                await world.alice.call(victim.peer_id, "echo", b"", timeout_s=20)
            if not isinstance(refused.value, ConnectionReset):
                return
        pytest.fail("every call was reset: nobody knows that it is gone")

    run_direct(check)


def test_a_peer_that_dies_during_a_stream_resets_it_for_reader_and_writer(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        victim, holder = await world.start(new_identity(12)), _Holder()
        victim.serve_streams("hold", holder.stream)
        await world.alice.add_addresses(victim.addresses())
        stream = await world.alice.open_stream(victim.peer_id, "hold", timeout_s=60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_kill_when, world, victim, holder.began)
            with trio.fail_after(60), pytest.raises(ConnectionReset):
                await stream.receive_frame()
        with trio.fail_after(60), pytest.raises(ConnectionReset):
            await _send_until_cancelled(stream)
        await stream.aclose()

    run_direct(check)


def test_what_a_peer_sent_before_it_left_stays(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        leaver, collector = await world.start(new_identity(13)), _Collector()
        world.alice.serve_streams("collect", collector)
        stream = await leaver.open_stream(world.alice.peer_id, "collect", timeout_s=60)
        await stream.send_frame(b"last words")
        await stream.aclose()
        with trio.fail_after(60):
            await collector.done.wait()
        await world.kill(leaver)
        assert collector.frames == [b"last words"]

    run_direct(check)


async def _kill_when(world: World, victim: Network, event: trio.Event) -> None:
    await event.wait()
    await world.kill(victim)


def test_a_frozen_peer_times_out_and_answers_after_it_thaws(run: Runner) -> None:
    async def check(world: World) -> None:
        sleeper = await world.start(new_identity(14))
        sleeper.serve_calls("echo", _echo)
        await world.alice.add_addresses(sleeper.addresses())
        await world.alice.call(sleeper.peer_id, "echo", b"", timeout_s=60)
        world.freeze(sleeper)
        began_s = trio.current_time()
        with pytest.raises(CallTimeout):
            await world.alice.call(sleeper.peer_id, "echo", b"", timeout_s=1)
        with pytest.raises(CallTimeout):
            await world.alice.open_stream(sleeper.peer_id, "echo", timeout_s=1)
        assert 2 <= trio.current_time() - began_s < 5
        world.thaw(sleeper)
        await world.alice.call(sleeper.peer_id, "echo", b"", timeout_s=60)
        await world.kill(sleeper)

    run(check)


def test_a_call_ends_at_its_deadline(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        world.bob.serve_calls("hold", _Holder().call)
        began_s = trio.current_time()
        with pytest.raises(CallTimeout):
            await world.alice.call(world.bob.peer_id, "hold", b"", timeout_s=0.5)
        assert trio.current_time() - began_s < 3

    run_direct(check)


def test_a_cancelled_call_returns_and_the_next_one_works(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        holder = _Holder()
        world.bob.serve_calls("hold", holder.call)
        world.bob.serve_calls("echo", _echo)
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await holder.began.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel)
            await world.alice.call(world.bob.peer_id, "hold", b"", timeout_s=60)
        assert await world.alice.call(world.bob.peer_id, "echo", b"x", timeout_s=60)

    run_direct(check)


def test_a_cancelled_receive_loses_no_frame(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        may_send = trio.Event()

        async def later(sender: PeerId, stream: Stream) -> None:
            await may_send.wait()
            await stream.send_frame(b"x" * 100_000)

        world.bob.serve_streams("later", later)
        stream = await world.alice.open_stream(world.bob.peer_id, "later", timeout_s=60)
        with trio.move_on_after(0.2) as scope:
            await stream.receive_frame()
        assert scope.cancelled_caught
        may_send.set()
        with trio.fail_after(60):
            assert await stream.receive_frame() == b"x" * 100_000
            assert await stream.receive_frame() is None
        await stream.aclose()

    run_direct(check)


def test_a_reader_that_leaves_stops_its_writer(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        outcome: list[str] = []
        done = trio.Event()

        async def pour(sender: PeerId, stream: Stream) -> None:
            try:
                await _send_until_cancelled(stream)
            except PeerUnreachable as error:
                outcome.append(type(error).__name__)
            done.set()

        world.bob.serve_streams("pour", pour)
        stream = await world.alice.open_stream(world.bob.peer_id, "pour", timeout_s=60)
        await stream.receive_frame()
        await stream.aclose()
        with trio.fail_after(120):
            await done.wait()
        assert outcome == ["ConnectionReset"]

    run_direct(check)


def test_a_restarted_peer_has_its_identity_and_is_reached_again(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        identity = new_identity(15)
        first = await world.start(identity)
        await world.kill(first)
        second = await world.start(identity)
        second.serve_calls("echo", _echo)
        assert second.peer_id == first.peer_id == identity.peer_id
        await world.alice.add_addresses(second.addresses())
        assert await world.alice.call(second.peer_id, "echo", b"", timeout_s=60)
        await world.kill(second)

    run_direct(check)


def test_records_are_found_by_others_until_they_expire(run: Runner) -> None:
    async def check(world: World) -> None:
        for network, life_s in ((world.alice, 3.0), (world.bob, 60.0)):
            expires_s = world.unix_s() + life_s
            value = seal_record(world.identity_of(network), RUN, 1, expires_s, b"here")
            assert await network.publish("key-1", network.peer_id, value, expires_unix_s=expires_s)
        both = sorted([world.alice.peer_id, world.bob.peer_id])
        assert [entry.subkey for entry in await world.bob.lookup("key-1")] == both
        await trio.sleep(3.2)
        assert [entry.subkey for entry in await world.alice.lookup("key-1")] == [world.bob.peer_id]
        assert list(await world.alice.lookup("key-2")) == []

    run(check)


def test_records_that_break_the_rule_are_refused(run: Runner) -> None:
    async def check(world: World) -> None:
        identity, peer, now_s = world.identity_of(world.alice), world.alice.peer_id, world.unix_s()
        value = seal_record(identity, RUN, 1, now_s + 60, b"here")
        too_long = seal_record(identity, RUN, 2, now_s + 60, bytes(9000))
        offers = [
            (world.bob.peer_id, value, now_s + 60),  # in another's name
            (peer, value, now_s + 3000),  # kept longer than signed
            (peer, value, now_s - 60),  # expired
            (peer, value[:-1] + bytes([value[-1] ^ 1]), now_s + 60),  # tampered with
            (peer, b"unsigned", now_s + 60),
            (peer, too_long, now_s + 60),
        ]
        for subkey, bad, expires_s in offers:
            assert not await world.alice.publish("key-3", subkey, bad, expires_unix_s=expires_s)
        assert list(await world.bob.lookup("key-3")) == []

    run(check)


def _said(network: Network) -> Counter[tuple[str, str]]:
    """Bytes of the control lane, by channel and direction, after a look that they sum to those of the lane."""
    traffic, said = network.traffic(), Counter[tuple[str, str]]()
    for count in traffic.control:
        said[count.channel, "up"] += count.bytes_up
        said[count.channel, "down"] += count.bytes_down
    assert sum(count.bytes_up for count in traffic.control) == traffic.control_bytes_up
    assert sum(count.bytes_down for count in traffic.control) == traffic.control_bytes_down
    return said


def test_a_call_is_counted_under_its_channel_at_both_ends(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        for channel in ("first", "second"):
            world.bob.serve_calls(channel, _echo)
        before_alice, before_bob = _said(world.alice), _said(world.bob)
        first = await world.alice.call(world.bob.peer_id, "first", b"12345", timeout_s=60)
        second = await world.alice.call(world.bob.peer_id, "second", b"123", timeout_s=60)
        alice, bob = _said(world.alice), _said(world.bob)
        alice.subtract(before_alice)
        bob.subtract(before_bob)
        assert (alice["first", "up"], alice["first", "down"]) == (5, len(first))
        assert (bob["first", "up"], bob["first", "down"]) == (len(first), 5)
        assert (alice["second", "up"], alice["second", "down"]) == (3, len(second))
        assert (bob["second", "up"], bob["second", "down"]) == (len(second), 3)

    run_direct(check)


def test_a_call_that_nobody_serves_is_counted_where_it_was_sent_alone(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        with pytest.raises(PeerUnreachable):
            await world.alice.call(world.bob.peer_id, "unserved", b"12345", timeout_s=60)
        alice, bob = _said(world.alice), _said(world.bob)
        assert (alice["unserved", "up"], alice["unserved", "down"]) == (5, 0)
        assert "unserved" not in {channel for channel, _ in bob}

    run_direct(check)


def test_what_is_published_and_looked_up_is_counted_as_said_to_the_directory(run: Runner) -> None:
    async def check(world: World) -> None:
        owner, expires_s = world.alice.peer_id, world.unix_s() + 60.0
        value = seal_record(world.identity_of(world.alice), RUN, 1, expires_s, b"here")
        before_alice, before_bob = _said(world.alice), _said(world.bob)
        assert await world.alice.publish("key-4", owner, value, expires_unix_s=expires_s)
        assert not await world.alice.publish("key-4", owner, b"unsigned", expires_unix_s=expires_s)
        assert [entry.value for entry in await world.bob.lookup("key-4")] == [value]
        assert list(await world.bob.lookup("key-45")) == []
        alice, bob = _said(world.alice), _said(world.bob)
        alice.subtract(before_alice)
        bob.subtract(before_bob)
        sent_bytes = 2 * len("key-4" + owner) + len(value) + len(b"unsigned")
        assert (alice["directory", "up"], alice["directory", "down"]) == (sent_bytes, 0)
        assert (bob["directory", "up"], bob["directory", "down"]) == (len("key-4key-45"), len(owner) + len(value))

    run(check)


def test_payload_bytes_are_counted_by_lane(run_direct: Runner) -> None:
    async def check(world: World) -> None:
        collector = _Collector()
        world.bob.serve_calls("echo", _echo)
        world.bob.serve_streams("collect", collector)
        before_alice, before_bob = world.alice.traffic(), world.bob.traffic()
        reply = await world.alice.call(world.bob.peer_id, "echo", b"12345", timeout_s=60)
        stream = await world.alice.open_stream(world.bob.peer_id, "collect", timeout_s=60)
        await stream.send_frame(bytes(1000))
        stream.count_as("trunk", "int8")
        await stream.send_frame(bytes(500))
        await stream.aclose()
        with trio.fail_after(60):
            await collector.done.wait()
        after_alice, after_bob = world.alice.traffic(), world.bob.traffic()
        assert after_alice.control_bytes_up - before_alice.control_bytes_up == 5
        assert after_alice.control_bytes_down - before_alice.control_bytes_down == len(reply)
        assert after_bob.bulk_bytes_down - before_bob.bulk_bytes_down == 1500
        assert after_alice.bulk_bytes_up - before_alice.bulk_bytes_up == 1500
        said = [
            count.bytes_up for count in after_alice.bulk if (count.kind.unit, count.kind.codec) == ("trunk", "int8")
        ]
        assert said == [500]
        assert sum(count.bytes_up for count in after_alice.bulk) == after_alice.bulk_bytes_up
        assert {count.kind.channel for count in after_alice.bulk} <= {"collect"} | {
            c.kind.channel for c in before_alice.bulk
        }

    run_direct(check)
