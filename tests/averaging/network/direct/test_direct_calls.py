from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import trio
import trio.testing

from averaging.network.direct import direct_calls
from averaging.network.direct.dialling import FIRST_PAUSE_S, PAUSE_GROWTH
from averaging.network.direct.direct_calls import (
    CALLS_CHANNEL,
    MAX_CONNECTIONS_PER_PEER,
    WAIT_S,
    WAIT_SHARE,
    CallsHost,
    DirectCalls,
    RecentVerdicts,
)
from averaging.network.direct.tls_calls import CallConnection
from averaging.network.direct.tls_socket import TlsSocket
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.call_limits import LET_IN_FOR_S, NOT_ASKED_FOR_S, REFUSED_FOR_S
from averaging.network.seams.frames import Status
from protocol.ids import PeerId
from tests.averaging.network.direct_world import ALICE, BOB, CAROL, Peer, World, options_of


async def _echo(sender: PeerId, request: bytes) -> bytes:
    return sender.encode() + request


@asynccontextmanager
async def _listed_pair(alice_listens: bool = True) -> AsyncIterator[tuple[Peer, Peer]]:
    """Alice and Bob, each with the other's address as the directory tells it; Alice may be one that takes no connections."""
    world = World()

    def listed(peer: PeerId) -> tuple[BulkAddress, ...]:
        other = world.peers.get(peer)
        return (BulkAddress("127.0.0.1", other.port),) if other is not None and other.way.port is not None else ()

    of_alice = replace(options_of(ALICE), listed=listed, listen_host="127.0.0.1" if alice_listens else None)
    async with (
        world.open(ALICE, of_alice) as alice,
        world.open(BOB, replace(options_of(BOB), listed=listed)) as bob,
    ):
        alice.calls["echo"] = bob.calls["echo"] = _echo
        yield alice, bob


async def _connected(caller: Peer, peer: PeerId) -> CallConnection:
    """As calls do, until there is a connection: beside other tests a handshake takes what it takes."""
    with trio.fail_after(120):
        while (found := await caller.way.calls.find(peer, "echo", 10.0)) is None:
            await trio.sleep(0.01)
    return found


async def _never_connected(caller: Peer, peer: PeerId) -> None:
    """The attempt is over and nothing came of it."""
    assert await caller.way.calls.find(peer, "echo", 10.0) is None
    with trio.fail_after(120):
        while not caller.way.calls._attempts[peer].is_over:
            await trio.sleep(0.01)
    assert caller.way.calls.live(peer) is None


async def test_a_call_goes_direct_where_the_directory_tells_the_address_and_nobody_is_asked() -> None:
    async with _listed_pair() as (alice, bob):
        for _ in range(3):
            connection = await _connected(alice, bob.peer_id)
            assert await connection.call("echo", b"!") == alice.peer_id.encode() + b"!"
        assert alice.way.calls.num_connections == bob.way.calls.num_connections == 1
        assert bob.num_asked == 0


async def test_a_peer_that_takes_no_connections_is_called_over_the_one_that_it_made() -> None:
    async with _listed_pair(alice_listens=False) as (alice, bob):
        assert await bob.way.calls.find(alice.peer_id, "echo", 10.0) is None
        await _connected(alice, bob.peer_id)
        with trio.fail_after(60):
            while (connection := bob.way.calls.live(alice.peer_id)) is None:
                await trio.sleep(0.001)
        assert await connection.call("echo", b"!") == bob.peer_id.encode() + b"!"


async def test_a_peer_whose_address_is_not_known_is_left_to_libp2p_without_a_question() -> None:
    world = World()
    async with world.open(ALICE) as alice, world.open(BOB) as bob:
        assert await alice.way.calls.find(bob.peer_id, "echo", 10.0) is None
        assert await alice.way.calls.find(alice.peer_id, "echo", 10.0) is None
        assert bob.num_asked == 0


async def test_an_address_that_bulk_has_found_serves_calls_too() -> None:
    world = World()
    async with world.open(ALICE) as alice, world.open(BOB) as bob:
        bob.calls["echo"] = _echo
        with pytest.raises(Exception, match="does not serve"):
            await alice.way.open_stream(bob.peer_id, "nothing", 5.0)
        connection = await _connected(alice, bob.peer_id)
        assert await connection.call("echo", b"!") == alice.peer_id.encode() + b"!"


async def test_who_is_not_admitted_or_not_who_it_should_be_gets_no_connection() -> None:
    async with _listed_pair() as (alice, bob):
        bob.admits = lambda _: False
        await _never_connected(alice, bob.peer_id)
        assert bob.way.calls.num_connections == 0
    world = World()
    async with world.open(CAROL) as carol:
        liar = BulkAddress("127.0.0.1", carol.port)
        async with world.open(ALICE, replace(options_of(ALICE), listed=lambda _: (liar,))) as alice:
            await _never_connected(alice, BOB.peer_id)


async def test_a_peer_that_died_is_not_called_over_its_old_connection() -> None:
    world = World()
    async with AsyncExitStack() as bobs_life, world.open(ALICE) as alice:
        bob = await bobs_life.enter_async_context(world.open(BOB))
        with pytest.raises(Exception, match="does not serve"):
            await alice.way.open_stream(bob.peer_id, "nothing", 5.0)
        connection = await _connected(alice, bob.peer_id)
        await bobs_life.aclose()
        with trio.fail_after(60):
            while connection.is_open:
                await trio.sleep(0.001)
        assert await alice.way.calls.find(BOB.peer_id, "echo", 10.0) is None


async def test_a_peer_has_few_connections_and_a_crowd_takes_the_place_of_one_that_nobody_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_calls, "QUIET_S", 0.0)
    async with _listed_pair() as (alice, bob):
        calls = bob.way.calls
        sockets = [await alice.way._dial_for(CALLS_CHANNEL, bob.peer_id) for _ in range(MAX_CONNECTIONS_PER_PEER + 1)]
        assert [tls is not None for tls in sockets] == [True] * MAX_CONNECTIONS_PER_PEER + [False]
        assert calls.num_connections == MAX_CONNECTIONS_PER_PEER
        monkeypatch.setattr(direct_calls, "MAX_CONNECTIONS", MAX_CONNECTIONS_PER_PEER)
        assert calls.has_place(CAROL.peer_id)
        with trio.fail_after(60):
            while calls.num_connections == MAX_CONNECTIONS_PER_PEER:
                await trio.sleep(0.001)
        for tls in sockets:
            if tls is not None:
                tls.close()


@dataclass
class _Dials:
    """Dials that wait until they are told how they end."""

    num_begun: int = 0
    addresses: list[BulkAddress] = field(default_factory=lambda: [BulkAddress("127.0.0.1", 1)])
    may_end: trio.Event = field(default_factory=trio.Event)

    async def dial(self, _: PeerId) -> TlsSocket | None:
        self.num_begun += 1
        await self.may_end.wait()
        return None


@asynccontextmanager
async def _calls(dials: _Dials) -> AsyncIterator[DirectCalls]:
    async def admits(_: PeerId) -> bool:
        return True

    async def answer(_peer: PeerId, _channel: str, _request: bytes) -> tuple[Status, bytes]:
        return Status.FINE, b""

    host = CallsHost(admits, answer, frozenset({"open"}), lambda _: tuple(dials.addresses), dials.dial)
    async with trio.open_nursery() as nursery:
        yield DirectCalls(host, nursery)
        nursery.cancel_scope.cancel()


async def test_a_call_waits_a_moment_for_a_connection_and_the_next_ones_not_at_all(
    autojump_clock: trio.testing.MockClock,
) -> None:
    dials = _Dials()
    async with _calls(dials) as calls:
        began_s = trio.current_time()
        assert await calls.find(BOB.peer_id, "echo", 1.0) is None
        assert trio.current_time() - began_s == pytest.approx(WAIT_SHARE)
        assert await calls.find(BOB.peer_id, "echo", 60.0) is None
        assert trio.current_time() - began_s == pytest.approx(WAIT_S)
        assert await calls.find(BOB.peer_id, "echo", 60.0) is None
        assert trio.current_time() - began_s == pytest.approx(WAIT_S)
        assert dials.num_begun == 1


async def test_a_peer_that_cannot_be_connected_to_is_tried_ever_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    dials = _Dials()
    dials.may_end.set()
    async with _calls(dials) as calls:
        tried_s: list[float] = []
        while len(tried_s) < 4:
            num_before = dials.num_begun
            assert await calls.find(BOB.peer_id, "echo", 1.0) is None
            if dials.num_begun > num_before:
                tried_s.append(trio.current_time())
            await trio.sleep(0.5)
        pauses_s = [after - before for before, after in pairwise(tried_s)]
        assert pauses_s == [FIRST_PAUSE_S, FIRST_PAUSE_S * PAUSE_GROWTH, FIRST_PAUSE_S * PAUSE_GROWTH**2]


async def test_another_address_and_a_word_of_the_peer_end_the_wait_for_the_next_try(
    autojump_clock: trio.testing.MockClock,
) -> None:
    dials = _Dials()
    dials.may_end.set()
    async with _calls(dials) as calls:
        for num_expected in (1, 1):
            assert await calls.find(BOB.peer_id, "echo", 1.0) is None
            assert dials.num_begun == num_expected
        dials.addresses[:] = [BulkAddress("127.0.0.1", 2)]
        assert await calls.find(BOB.peer_id, "echo", 1.0) is None
        assert dials.num_begun == 2
        calls.forget(BOB.peer_id)
        assert await calls.find(BOB.peer_id, "echo", 1.0) is None
        assert dials.num_begun == 3


async def test_what_strangers_are_asked_waits_for_no_connection() -> None:
    dials = _Dials()
    async with _calls(dials) as calls:
        assert await calls.find(BOB.peer_id, "open", 60.0) is None
        assert dials.num_begun == 0


async def test_a_verdict_is_asked_for_once_for_all_who_wait_and_again_when_it_is_old(
    autojump_clock: trio.testing.MockClock,
) -> None:
    answers: list[bool | None] = [True, False, None, True]
    num_asked = 0

    async def admits(_: PeerId) -> bool | None:
        nonlocal num_asked
        num_asked += 1
        await trio.sleep(1.0)
        return answers[num_asked - 1]

    verdicts = RecentVerdicts(admits)
    for expected, lasts_s in zip(answers, (LET_IN_FOR_S, REFUSED_FOR_S, NOT_ASKED_FOR_S, LET_IN_FOR_S), strict=True):
        found: list[bool | None] = []

        async def ask(found: list[bool | None] = found) -> None:
            found.append(await verdicts.admits(BOB.peer_id))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert found == [expected] * 3
        await trio.sleep(lasts_s * 0.9)
        assert await verdicts.admits(BOB.peer_id) is expected
        await trio.sleep(lasts_s * 0.2)
    assert num_asked == len(answers)
