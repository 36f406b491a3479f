"""Which messages share a call, and that each of them has its own answer."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.rounds.lineage.round_context import Tasks
from averaging.rounds.outbox import GATHER_S, ROUND_CHANNEL, Outbox, Parcel, parcels
from protocol.errors import CallTimeout, PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.rounds.messages.bundle import MAX_BUNDLE_BYTES, MAX_BUNDLED, decode_bundle, encode_answer, is_bundle

Clock = trio.testing.MockClock
ME, ONE, TWO, THREE = (PeerId(name) for name in ("me", "one", "two", "three"))
LATENCY_S = 0.02
TRUNK, EXPERT, BAD = b"of the trunk", b"of an expert", b"refused"


# --- which go together --------------------------------------------------------------------------------------------------------


def test_peers_that_get_the_same_messages_are_called_together() -> None:
    assert parcels([((ONE, TWO, THREE), 100), ((TWO,), 100)]) == (
        Parcel((ONE, THREE), (0,)),
        Parcel((TWO,), (0, 1)),
    )


def test_to_a_peer_that_knows_no_bundles_every_message_goes_alone() -> None:
    assert parcels([((ONE, TWO), 100), ((ONE, TWO), 100)], {TWO}) == (
        Parcel((ONE,), (0, 1)),
        Parcel((TWO,), (0,)),
        Parcel((TWO,), (1,)),
    )


def test_what_is_too_long_for_a_bundle_goes_in_another_call_and_the_rest_goes_on_together() -> None:
    found = parcels([((ONE,), 100), ((ONE,), MAX_BUNDLE_BYTES), ((ONE,), 100), ((ONE,), 100)])
    assert [parcel.numbers for parcel in found] == [(0,), (1,), (2, 3)]


def test_no_bundle_has_more_messages_than_it_may() -> None:
    found = parcels([((ONE,), 10)] * (2 * MAX_BUNDLED + 1))
    assert [len(parcel.numbers) for parcel in found] == [MAX_BUNDLED, MAX_BUNDLED, 1]


# --- how they travel ----------------------------------------------------------------------------------------------------------


class Others:
    """Peers that note each call and answer it, and the outbox that is tried."""

    def __init__(self, swarm: MemorySwarm, outbox: Outbox) -> None:
        self.swarm = swarm
        self.outbox = outbox
        self.calls: dict[PeerId, list[tuple[bytes, ...]]] = defaultdict(list)
        self.came_s: list[float] = []
        self.replies: dict[bytes, list[tuple[PeerId, bytes | PotluckError]]] = defaultdict(list)

    def serve(self, peer: PeerId, *, knows_bundles: bool = True) -> None:
        """Start a process of this peer."""

        async def take(sender: PeerId, request: bytes) -> bytes:
            self.came_s.append(trio.current_time())
            if not is_bundle(request):
                self.calls[peer].append((request,))
                if request == BAD:
                    raise RemoteProtocolError("a bad message", "a good one")
                return b""
            if not knows_bundles:
                raise RemoteProtocolError("an envelope for b'potluck bundle'", "'potluck round'")
            messages = decode_bundle(request)
            self.calls[peer].append(messages)
            return encode_answer("a bad message" if message == BAD else "" for message in messages)

        self.swarm.start(peer).serve_calls(ROUND_CHANNEL, take)

    async def say(self, *messages: tuple[Sequence[PeerId], bytes], pause_s: float = 0.0, gathers: bool = True) -> None:
        """All of them one after another, until all are answered."""

        async def one(to: Sequence[PeerId], raw: bytes) -> None:
            async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
                self.replies[raw].append((peer, reply))

            await self.outbox.deliver(to, raw, took, gathers=gathers)

        async with trio.open_nursery() as nursery:
            for to, raw in messages:
                nursery.start_soon(one, to, raw)
                await trio.sleep(pause_s)

    def failed_with(self, raw: bytes) -> list[type]:
        """The errors of a message at peers that did not take it."""
        return [type(reply) for _, reply in self.replies[raw] if isinstance(reply, PotluckError)]


@asynccontextmanager
async def _others() -> AsyncIterator[Others]:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(LATENCY_S))
        tasks = Tasks(lambda *_: None)
        tasks.use(nursery)

        async def lose(peer: PeerId) -> None:
            others.replies[b"lost"].append((peer, b""))

        others = Others(swarm, Outbox(swarm.start(ME), tasks, lambda peer: peer == THREE, lose))
        for peer in (ONE, TWO, THREE):
            others.serve(peer)
        yield others
        nursery.cancel_scope.cancel()


async def test_messages_of_one_moment_to_the_same_peer_are_one_call(autojump_clock: Clock) -> None:
    async with _others() as others:
        await others.say(((ONE, TWO), TRUNK), ((ONE,), EXPERT))
        assert others.calls == {ONE: [(TRUNK, EXPERT)], TWO: [(TRUNK,)]}
        assert others.replies[EXPERT] == [(ONE, b"")]
        assert sorted(others.replies[TRUNK]) == [(ONE, b""), (TWO, b"")]


async def test_a_message_waits_for_others_no_longer_than_a_moment(autojump_clock: Clock) -> None:
    async with _others() as others:
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT), pause_s=2 * GATHER_S)
        assert others.calls == {ONE: [(TRUNK,), (EXPERT,)]}
        first_s, second_s = others.came_s
        assert LATENCY_S + GATHER_S <= first_s <= 1.2 * LATENCY_S + GATHER_S + 0.001
        assert second_s - first_s < 3 * GATHER_S, "and not for the answer to the one before"


async def test_what_need_not_wait_goes_at_once_and_alone(autojump_clock: Clock) -> None:
    async with _others() as others:
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT), gathers=False)
        assert sorted(others.calls[ONE]) == [(EXPERT,), (TRUNK,)]
        assert max(others.came_s) <= 1.2 * LATENCY_S + 0.001


async def test_a_message_that_is_refused_loses_none_of_those_beside_it(autojump_clock: Clock) -> None:
    async with _others() as others:
        await others.say(((ONE,), TRUNK), ((ONE,), BAD), ((ONE,), EXPERT))
        assert others.calls[ONE] == [(TRUNK, BAD, EXPERT)]
        assert [others.replies[raw] for raw in (TRUNK, EXPERT)] == [[(ONE, b"")]] * 2
        assert others.failed_with(BAD) == [RemoteProtocolError]


async def test_a_peer_that_knows_no_bundles_is_told_one_after_another_until_its_process_changes(
    autojump_clock: Clock,
) -> None:
    async with _others() as others:
        others.serve(ONE, knows_bundles=False)
        for _ in range(2):
            await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        assert sorted(others.calls.pop(ONE)) == [(EXPERT,), (EXPERT,), (TRUNK,), (TRUNK,)]
        assert len(others.came_s) == 5, "it is asked once whether it knows them"
        assert [reply for raw in (TRUNK, EXPERT) for _, reply in others.replies[raw]] == [b""] * 4
        others.swarm.kill(ONE)
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        others.serve(ONE)
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        assert others.calls[ONE] == [(TRUNK, EXPERT)]


async def test_a_death_that_any_message_meets_is_the_end_of_what_was_known_of_the_process(
    autojump_clock: Clock,
) -> None:
    async with _others() as others:
        others.serve(ONE, knows_bundles=False)
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        others.swarm.kill(ONE)
        await others.say(((ONE,), b"a heartbeat"), gathers=False)
        others.serve(ONE)
        others.calls.clear()
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        assert others.calls[ONE] == [(TRUNK, EXPERT)]


async def test_a_peer_that_turns_everything_away_is_not_taken_for_one_that_knows_no_bundles(
    autojump_clock: Clock,
) -> None:
    async with _others() as others:

        async def refuse(sender: PeerId, request: bytes) -> bytes:
            raise RemoteProtocolError("a peer without a credential", "a member")

        others.swarm.start(ONE).serve_calls(ROUND_CHANNEL, refuse)
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        assert others.failed_with(TRUNK) == others.failed_with(EXPERT) == [RemoteProtocolError]
        others.serve(ONE)
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        assert others.calls[ONE] == [(TRUNK, EXPERT)]


async def test_a_dead_peer_and_a_silent_one_fail_every_message_and_nobody_waits_longer_for_them(
    autojump_clock: Clock,
) -> None:
    async with _others() as others:
        others.swarm.kill(ONE)
        others.swarm.freeze(TWO)
        await others.say(((ONE, TWO), TRUNK), ((ONE, TWO), EXPERT))
        for raw in (TRUNK, EXPERT):
            assert others.failed_with(raw) == [PeerUnreachable, CallTimeout]
        assert trio.current_time() <= 2.0 + GATHER_S + 0.001


async def test_behind_a_broken_connection_each_message_is_said_once_more(autojump_clock: Clock) -> None:
    async with _others() as others:

        async def break_it(sender: PeerId, request: bytes) -> bytes:
            others.swarm.kill(ONE)
            others.serve(ONE)
            await trio.sleep_forever()

        others.swarm.start(ONE).serve_calls(ROUND_CHANNEL, break_it)
        await others.say(((ONE,), TRUNK), ((ONE,), EXPERT))
        assert sorted(others.calls[ONE]) == [(EXPERT,), (TRUNK,)]
        assert [others.replies[raw] for raw in (TRUNK, EXPERT)] == [[(ONE, b"")]] * 2


async def test_whoever_was_sent_away_is_told_nothing_and_is_lost(autojump_clock: Clock) -> None:
    async with _others() as others:
        await others.say(((ONE, THREE), TRUNK), ((THREE,), EXPERT))
        assert list(others.calls) == [ONE]
        assert others.replies[b"lost"] == [(THREE, b"")] * 2


async def test_where_our_own_network_is_gone_each_message_fails_with_that(autojump_clock: Clock) -> None:
    async with _others() as others:
        others.swarm.kill(ME)
        caught: list[PotluckError] = []

        async def say(raw: bytes) -> None:
            async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
                raise AssertionError("it did not leave")

            caught.extend(await _caught(lambda: others.outbox.deliver((ONE,), raw, took, gathers=True)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(say, TRUNK)
            nursery.start_soon(say, EXPERT)
        assert [type(error) for error in caught] == [PeerUnreachable] * 2


async def _caught(function: Callable[[], Awaitable[None]]) -> list[PotluckError]:
    found: list[PotluckError] = []
    try:
        await function()
    except* PotluckError as group:
        found.extend(error for error in group.exceptions if isinstance(error, PotluckError))
    return found
