from __future__ import annotations

import socket
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial

import pytest
import trio

from averaging.network.direct.dialling import FIRST_PAUSE_S
from averaging.network.direct.direct import (
    CONNECT_WITHIN_S,
    CONNECTED_SHARE,
    KEPT_FOR_S,
    MAX_DIALS,
    DirectOptions,
)
from averaging.network.direct.tls_identity import credential_check
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.interfaces import BulkCount, BulkKind, Stream, Way
from protocol.errors import MachineError, PeerUnreachable, RemoteProtocolError
from protocol.identity.identity import Identity
from protocol.ids import PeerId, RunId
from tests.averaging.network.counting_proxy import open_counting_proxy
from tests.averaging.network.direct_world import (
    ALICE,
    BOB,
    CA,
    CAROL,
    DAY_S,
    OTHER_CA,
    RUN,
    Peer,
    World,
    credential_of,
    options_of,
    pair,
    with_credential,
)

CHANNEL = "mirror"
HANDSHAKE_BYTES = 4000


async def _mirror(peer: PeerId, stream: Stream) -> None:
    while (frame := await stream.receive_frame()) is not None:
        await stream.send_frame(peer.encode() + frame)


async def _is_direct(opener: Peer, server: Peer) -> bool:
    """Whether a frame goes there and back; False where the way is left to libp2p."""
    server.handlers[CHANNEL] = _mirror
    stream = await opener.way.open_stream(server.peer_id, CHANNEL, 5.0)
    if stream is None:
        return False
    await stream.send_frame(b"x")
    assert await stream.receive_frame() == opener.peer_id.encode() + b"x"
    await stream.aclose()
    return True


async def test_a_frame_goes_there_and_back_and_each_side_knows_the_other_by_its_credential() -> None:
    async with pair() as (alice, bob):
        assert await _is_direct(alice, bob)
        assert await _is_direct(bob, alice)
        kind = BulkKind(Way.DIRECT, CHANNEL)
        both = 1 + 1 + len(ALICE.peer_id), 1 + 1 + len(BOB.peer_id)
        assert alice.lane.tally.counts() == (BulkCount(kind, both[1], both[0]),)
        assert bob.lane.tally.counts() == (BulkCount(kind, both[0], both[1]),)


async def test_what_a_stream_says_that_it_carries_is_counted_so_from_then_on() -> None:
    async with pair() as (alice, bob):
        bob.handlers[CHANNEL] = _mirror
        stream = await alice.way.open_stream(bob.peer_id, CHANNEL, 5.0)
        assert stream is not None
        await stream.send_frame(b"12345")
        stream.count_as("trunk", "int8")
        await stream.send_frame(b"1234567")
        assert [(count.kind.unit, count.bytes_up) for count in alice.lane.tally.counts()] == [("", 5), ("trunk", 7)]
        await stream.aclose()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(lambda: with_credential(BOB, credential_of(BOB, authority=OTHER_CA)), id="another CA"),
        pytest.param(lambda: with_credential(BOB, credential_of(BOB, ended_s=60.0)), id="ended"),
        pytest.param(lambda: with_credential(BOB, credential_of(BOB, ended_s=-3 * DAY_S)), id="not begun"),
        pytest.param(lambda: with_credential(BOB, credential_of(CAROL)), id="another peer"),
        pytest.param(lambda: with_credential(BOB, credential_of(BOB, run=RunId(bytes(32)))), id="another run"),
    ],
)
async def test_a_credential_that_does_not_count_for_the_peer_that_is_dialled_ends_the_direct_way(
    options: partial[DirectOptions],
) -> None:
    async with pair(options()) as (alice, bob):
        assert not await _is_direct(alice, bob)
        assert alice.lane.tally.counts() == ()


@pytest.mark.parametrize("authority", [OTHER_CA, CA])
async def test_a_credential_that_does_not_count_here_opens_no_stream_and_nothing_of_it_is_read(
    authority: object,
) -> None:
    own = credential_of(BOB, authority=OTHER_CA) if authority is OTHER_CA else credential_of(BOB, ended_s=60.0)
    async with pair(with_credential(BOB, own)) as (alice, bob):
        asked: list[PeerId] = []
        alice.admits = lambda peer: not asked.append(peer)  # type: ignore[func-returns-value]
        assert not await _is_direct(bob, alice)
        assert asked == []
        assert alice.lane.tally.counts() == ()


async def test_a_credential_that_has_ended_counts_for_as_long_as_the_runs_rule_says() -> None:
    an_hour_ago = credential_check(CA.certificate_der, RUN, time.time, judged_as_of=lambda _, now_s: now_s - 3600)
    lenient = replace(options_of(ALICE), check=an_hour_ago)
    world = World()
    async with (
        world.open(ALICE, lenient) as alice,
        world.open(BOB, with_credential(BOB, credential_of(BOB, ended_s=60.0))) as bob,
    ):
        assert await _is_direct(alice, bob)
        assert await _is_direct(bob, alice)


async def test_a_revoked_peer_is_not_dialled_and_not_let_in() -> None:
    banned = {BOB.peer_id}
    check = credential_check(CA.certificate_der, RUN, time.time, is_banned=banned.__contains__)
    world = World()
    async with world.open(ALICE, replace(options_of(ALICE), check=check)) as alice, world.open(BOB) as bob:
        assert not await _is_direct(alice, bob)
        assert not await _is_direct(bob, alice)


async def test_the_door_of_the_network_is_asked_before_a_stream_is_served() -> None:
    async with pair() as (alice, bob):
        bob.handlers[CHANNEL] = _mirror
        bob.admits = lambda peer: peer != alice.peer_id
        with pytest.raises(RemoteProtocolError):
            await alice.way.open_stream(bob.peer_id, CHANNEL, 5.0)
        bob.admits = lambda peer: True
        assert await _is_direct(alice, bob)
        with pytest.raises(PeerUnreachable, match="does not serve"):
            await alice.way.open_stream(bob.peer_id, "nobody", 5.0)


async def test_a_renewed_credential_is_shown_from_the_next_connection_on() -> None:
    own = credential_of(BOB, ended_s=60.0)
    async with pair(replace(options_of(BOB), credential=lambda: own)) as (alice, bob):
        assert not await _is_direct(bob, alice)
        own = credential_of(BOB)
        await trio.sleep(FIRST_PAUSE_S)
        assert await _is_direct(bob, alice)
        assert await _is_direct(alice, bob)


async def test_a_closed_port_is_left_to_libp2p_and_tried_again_later_where_the_peer_listens_then() -> None:
    async with pair() as (alice, bob):
        with socket.create_server(("127.0.0.1", 0)) as server:
            closed_port = server.getsockname()[1]
        bob.reported = b"127.0.0.1 %d" % closed_port
        assert not await _is_direct(alice, bob)
        bob.reported = None
        assert not await _is_direct(alice, bob)  # not so soon
        assert bob.num_asked == 1
        await trio.sleep(FIRST_PAUSE_S)
        assert await _is_direct(alice, bob)
        assert bob.num_asked == 2


async def test_an_address_where_nobody_says_anything_costs_a_short_while_only_and_the_next_one_is_tried_beside_it() -> (
    None
):
    async with pair() as (alice, bob):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            text = b"127.0.0.1 %d" % silent.getsockname()[1]
            bob.reported = b"%s\n127.0.0.1 %d" % (text, bob.port)
            with trio.fail_after(CONNECT_WITHIN_S):
                assert await _is_direct(alice, bob)
            bob.reported = text
            alice.way.forget(bob.peer_id)
            began_s = trio.current_time()
            assert not await _is_direct(alice, bob)
            assert trio.current_time() - began_s < 2 * CONNECT_WITHIN_S


def _full(listener: socket.socket) -> list[socket.socket]:
    """Connections that fill it: the kernel lets further ones wait until some of these are taken, as a far or silent place does."""
    waiting = []
    for _ in range(4):
        connection = socket.socket()
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.connect(listener.getsockname())
        waiting.append(connection)
    return waiting


async def test_a_far_peer_is_left_to_libp2p_at_first_and_reached_directly_from_then_on() -> None:
    impatient = replace(options_of(ALICE), first_within_s=0.3)
    world = World()
    async with world.open(ALICE, impatient) as alice, world.open(BOB) as bob:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            waiting = _full(listener)
            bob.reported = b"127.0.0.1 %d" % listener.getsockname()[1]
            assert not await _is_direct(alice, bob)
            route = alice.way._routes[bob.peer_id]
            for connection in waiting:
                connection.close()
            async with open_counting_proxy(bob.port, listener=listener):
                with trio.fail_after(2 * CONNECT_WITHIN_S):
                    while not route.has_worked:
                        await trio.sleep(0.01)
                assert await _is_direct(alice, bob), "a way that works is waited for"


async def test_a_peer_that_was_connected_to_may_take_as_long_to_shake_hands_as_most_of_the_callers_time() -> None:
    """It is busy, and would be as late by libp2p."""
    impatient = replace(options_of(ALICE), first_within_s=0.2)
    world = World()
    async with (
        world.open(ALICE, impatient) as alice,
        world.open(BOB) as bob,
        open_counting_proxy(bob.port, begin_after_s=0.6) as busy,
    ):
        bob.reported = b"127.0.0.1 %d" % busy.port
        assert await _is_direct(alice, bob)


async def test_who_stands_at_one_of_a_peers_addresses_in_its_place_gives_the_others_no_more_time() -> None:
    impatient = replace(options_of(ALICE), first_within_s=0.4)
    world = World()
    async with world.open(ALICE, impatient) as alice, world.open(BOB) as bob, world.open(CAROL) as carol:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            waiting = _full(listener)
            bob.reported = b"127.0.0.1 %d\n127.0.0.1 %d" % (carol.port, listener.getsockname()[1])
            began_s = trio.current_time()
            assert await alice.way.open_stream(bob.peer_id, CHANNEL, 20.0) is None
            assert trio.current_time() - began_s < 0.5 * CONNECTED_SHARE * 20.0
            for connection in waiting:
                connection.close()


async def test_who_takes_a_connection_at_one_of_several_addresses_and_says_nothing_is_taken_for_a_busy_peer_once() -> (
    None
):
    impatient, within_s = replace(options_of(ALICE), first_within_s=0.2), 1.5
    world = World()
    async with world.open(ALICE, impatient) as alice, world.open(BOB) as bob:
        with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            waiting = _full(listener)
            bob.reported = b"127.0.0.1 %d\n127.0.0.1 %d" % (silent.getsockname()[1], listener.getsockname()[1])
            took_s = []
            for _ in range(2):
                began_s = trio.current_time()
                assert await alice.way.open_stream(bob.peer_id, CHANNEL, within_s) is None
                took_s.append(trio.current_time() - began_s)
                alice.way._routes[bob.peer_id].pause.worked()  # as after the pause
            assert took_s[0] > 0.9 * CONNECTED_SHARE * within_s
            assert took_s[1] < 0.6 * CONNECTED_SHARE * within_s
            for connection in waiting:
                connection.close()


async def test_a_peer_that_is_silent_at_all_of_its_addresses_is_busy_and_is_waited_for_each_time() -> None:
    impatient, within_s = replace(options_of(ALICE), first_within_s=0.2), 1.0
    world = World()
    async with world.open(ALICE, impatient) as alice, world.open(BOB) as bob:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            bob.reported = b"127.0.0.1 %d\n127.0.0.1 %d" % (one.getsockname()[1], other.getsockname()[1])
            for _ in range(2):
                began_s = trio.current_time()
                assert await alice.way.open_stream(bob.peer_id, CHANNEL, within_s) is None
                assert trio.current_time() - began_s > 0.9 * CONNECTED_SHARE * within_s
                alice.way._routes[bob.peer_id].pause.worked()


async def test_where_a_peer_listens_is_not_asked_while_the_directory_tells_it_and_somebody_answers_there() -> None:
    listed: list[BulkAddress] = []
    world = World()
    async with (
        world.open(ALICE, replace(options_of(ALICE), listed=lambda _: tuple(listed))) as alice,
        world.open(BOB) as bob,
    ):
        listed.append(BulkAddress("127.0.0.1", bob.port))
        assert await _is_direct(alice, bob)
        assert bob.num_asked == 0
        with trio.fail_after(60):
            while not len(alice.way.spares):
                await trio.sleep(0.005)
        with socket.create_server(("127.0.0.1", 0)) as server:
            listed[:] = [BulkAddress("127.0.0.1", server.getsockname()[1])]
        alice.way.forget(bob.peer_id)
        assert not await _is_direct(alice, bob)
        await trio.sleep(FIRST_PAUSE_S)
        assert await _is_direct(alice, bob), "it is asked where the directory is wrong"
        assert bob.num_asked == 1


async def test_of_several_addresses_the_one_behind_which_the_right_peer_answers_is_taken_and_kept() -> None:
    world = World()
    async with world.open(ALICE) as alice, world.open(BOB) as bob, world.open(CAROL) as carol:
        bob.reported = b"127.0.0.1 %d\n127.0.0.1 %d" % (carol.port, bob.port)
        assert await _is_direct(alice, bob)
        assert await _is_direct(alice, bob)
        assert bob.num_asked == 1
        assert alice.way._routes[bob.peer_id].addresses[0].port == bob.port


async def test_who_takes_no_connections_still_dials_directly() -> None:
    async with pair(replace(options_of(BOB), listen_host=None)) as (alice, bob):
        assert await _is_direct(bob, alice)
        assert bob.way.port is None
        assert not await _is_direct(alice, bob)
        assert not await _is_direct(alice, bob)
        assert bob.num_asked == 1


async def test_nobody_dials_itself_and_who_cannot_be_asked_is_left_to_libp2p() -> None:
    async with pair() as (alice, _):
        assert await alice.way.open_stream(alice.peer_id, CHANNEL, 5.0) is None
        assert await alice.way.open_stream(CAROL.peer_id, CHANNEL, 5.0) is None


@pytest.mark.parametrize("answer", [b"nothing", b"\xff", b"host 0", b"127.0.0.1 1\n" * 9, b"a b 5"])
async def test_an_answer_that_is_no_address_is_left_to_libp2p(answer: bytes) -> None:
    async with pair() as (alice, bob):
        bob.reported = answer
        assert not await _is_direct(alice, bob)


async def test_an_answer_is_asked_for_again_after_a_while() -> None:
    async with pair() as (alice, bob):
        assert await _is_direct(alice, bob)
        alice.way._routes[bob.peer_id].known_until_s -= KEPT_FOR_S
        assert await _is_direct(alice, bob)
        assert bob.num_asked == 2


async def test_a_port_that_is_in_use_is_one_clear_error_and_one_that_nobody_chose_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = replace(options_of(ALICE), listen_port=taken.getsockname()[1])
        with pytest.raises(MachineError, match="--bulk-port"):
            async with World().open(ALICE, wanted):
                pass
        async with World().open(ALICE, replace(wanted, may_take_another=True)) as alice:
            assert alice.port != wanted.listen_port


async def test_what_is_counted_is_what_the_sockets_carry_but_for_tls_and_frames() -> None:
    async with pair() as (alice, bob), open_counting_proxy(bob.port) as proxy:
        bob.reported = b"127.0.0.1 %d" % proxy.port
        collected = trio.Event()

        async def collect(_peer: PeerId, stream: Stream) -> None:
            while (frame := await stream.receive_frame()) is not None:
                if len(frame) == 1:
                    await stream.send_frame(bytes(300_000))
            collected.set()

        bob.handlers["collect"] = collect
        stream = await alice.way.open_stream(bob.peer_id, "collect", 5.0)
        assert stream is not None
        for length in (1 << 20, 1 << 20, 262_144, 100_000, 1):
            await stream.send_frame(bytes(length))
        assert await stream.receive_frame() == bytes(300_000)
        await stream.aclose()
        with trio.fail_after(60):
            await collected.wait()
        sent, received = 2 * (1 << 20) + 262_144 + 100_000 + 1, 300_000
        assert (alice.lane.tally.bytes_up, alice.lane.tally.bytes_down) == (sent, received)
        assert (bob.lane.tally.bytes_down, bob.lane.tally.bytes_up) == (sent, received)
        for carried, counted in ((proxy.bytes_up, sent), (proxy.bytes_down, received)):
            assert counted < carried < 1.003 * counted + HANDSHAKE_BYTES


async def test_peers_that_say_nothing_fill_all_places_for_dials_and_a_healthy_one_is_not_blamed_for_it() -> None:
    world = World()
    silent = [Identity(bytes([90 + number]) * 32) for number in range(MAX_DIALS)]
    async with world.open(ALICE) as alice, world.open(BOB) as bob, AsyncExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0), backlog=4 * MAX_DIALS) as server:
            for identity in silent:
                peer = await stack.enter_async_context(world.open(identity))
                peer.reported = b"127.0.0.1 %d" % server.getsockname()[1]
            async with trio.open_nursery() as nursery:
                for identity in silent:
                    nursery.start_soon(alice.way.open_stream, identity.peer_id, CHANNEL, 60.0)
                await trio.sleep(0.5)
                assert await alice.way.open_stream(bob.peer_id, CHANNEL, 1.0) is None
                nursery.cancel_scope.cancel()
        assert await _is_direct(alice, bob), "nothing was found out about it"


async def test_who_allows_a_short_time_is_connected_directly_as_well() -> None:
    """A place among the dials was waited for until a time that had passed already, and all such streams went over libp2p."""
    async with pair() as (alice, bob):
        bob.handlers[CHANNEL] = _mirror
        stream = await alice.way.open_stream(bob.peer_id, CHANNEL, 0.8)
        assert stream is not None
        await stream.aclose()
