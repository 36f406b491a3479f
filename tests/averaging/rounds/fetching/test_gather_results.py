from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed
from averaging.network.seams.interfaces import Stream
from averaging.rounds.fetching.gather_results import (
    EXCHANGE_PATIENCE_S,
    FIRST_OPEN_WITHIN_S,
    GATHER_WITHIN_S,
    ExchangeView,
    Gatherer,
    _sources,
)
from averaging.rounds.lineage.round_context import Changes
from averaging.rounds.traffic.arrivals import Arrivals
from averaging.rounds.traffic.transfer import (
    ANSWER_WITHIN_S,
    FETCH_CHANNEL,
    FRAME_WITHIN_S,
    LEAST_BYTES_PER_S,
    read_request,
)
from averaging.storage.memory_storage import UNBOUNDED_BYTES
from protocol.errors import StorageError
from protocol.ids import PeerId
from protocol.rounds.messages.record import SliceRecord
from protocol.rounds.messages.requests import FetchResult
from protocol.rounds.schedule.liveness_timing import STALLED_STREAM_S
from tests.averaging.rounds.round_world import MadeCommit, Party, RoundWorld, open_world
from tests.protocol.rounds.made_commits import signed_record
from tests.protocol.rounds.round_table import Table

Clock = trio.testing.MockClock


def _gatherer(party: Party, exchange: ExchangeView | None = None) -> Gatherer:
    return Gatherer(party.network, party.chain, exchange)


@contextmanager
def _coming(*parts: SliceRecord, of: Arrivals | None = None) -> Iterator[Arrivals]:
    """Arrivals of an exchange in which the streams of these slices stall."""
    arrivals = of or Arrivals()
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(arrivals.coming(part.result_hash))
        yield arrivals


@asynccontextmanager
async def _one_commit() -> AsyncIterator[tuple[RoundWorld, MadeCommit, Party]]:
    """A commit that everybody serves but nobody holds yet; the last party gathers."""
    async with open_world() as world:
        for party in world.parties:
            party.serve_fetches()
        yield world, world.commits(1)[0], world.parties[2]


async def _holds_all(party: Party, commit: MadeCommit) -> bool:
    held = [
        await party.log.read_result(commit.record.parent, part.result_hash) == data
        for part, data in zip(commit.record.slices, commit.results, strict=True)
    ]
    return all(held)


def _asked(world: RoundWorld) -> list[tuple[int, int]]:
    """(number of the peer asked, first chunk of the slice), peer by peer."""
    return [
        (number, request.first_chunk)
        for number, party in enumerate(world.parties)
        for _, request in party.asked
        if isinstance(request, FetchResult)
    ]


async def test_each_slice_comes_from_its_reducer_when_it_answers(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        await commit.write_results(world.parties[1])
        assert await _gatherer(gathering).gather(commit.record, (world.parties[0].peer, world.parties[1].peer))
        assert await _holds_all(gathering, commit)
        assert _asked(world) == [(0, 0), (1, 4)]


async def test_bytes_that_are_on_disk_are_not_fetched(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        await commit.write_results(gathering, slices=[0])
        assert await _gatherer(gathering).gather(commit.record, (world.parties[0].peer,))
        assert await _holds_all(gathering, commit)
        assert (0, 0) not in _asked(world)
        before = _asked(world)
        assert await _gatherer(gathering).gather(commit.record, (world.parties[0].peer,))
        assert _asked(world) == before, "nothing is missing any more, so nobody is asked"


async def test_a_holder_is_asked_when_the_reducer_is_dead_or_has_nothing(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        world.swarm.kill(world.parties[0].peer)
        await commit.write_results(world.stranger)
        world.stranger.serve_fetches()
        assert await _gatherer(gathering).gather(commit.record, (world.stranger.peer,))
        assert await _holds_all(gathering, commit)


async def test_bytes_with_another_hash_are_not_taken_and_another_holder_is_asked(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        reducer, holder = world.parties[0], world.parties[1]
        spoilt = bytearray(commit.results[0])
        spoilt[7] ^= 1
        reducer.serve_frames([bytes(spoilt)])
        await commit.write_results(holder)
        assert await _gatherer(gathering).gather(commit.record, (holder.peer,))
        assert len(reducer.asked) == 1
        assert await _holds_all(gathering, commit)


async def test_an_answer_longer_or_shorter_than_the_slice_is_not_taken(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.stranger)
        world.stranger.serve_fetches()
        world.parties[0].serve_frames([commit.results[0]] * 1000)
        world.parties[1].serve_frames([commit.results[1][:-4]])
        assert await _gatherer(gathering).gather(commit.record, (world.stranger.peer,))
        assert await _holds_all(gathering, commit)


async def test_bytes_that_nobody_has_are_given_up_within_the_deadline(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        assert not await _gatherer(gathering).gather(commit.record, (world.parties[0].peer, PeerId("nobody")))
        assert GATHER_WITHIN_S <= trio.current_time() < GATHER_WITHIN_S + 2.0
        assert not await _holds_all(gathering, commit)


async def test_a_disk_that_takes_no_more_is_said_by_itself_and_nothing_is_asked_for_again(
    autojump_clock: Clock,
) -> None:
    async with _one_commit() as (world, commit, gathering):
        for party, number in zip(world.parties, (0, 1), strict=False):
            await commit.write_results(party, slices=[number])
        gathering.disk.fail_with_disk_full_after(10)
        with pytest.raises(StorageError, match="no space"):
            await _gatherer(gathering).gather(commit.record, (world.parties[0].peer,))
        assert sorted(_asked(world)) == [(0, 0), (1, 4)]
        gathering.disk.capacity_bytes = UNBOUNDED_BYTES
        assert await _gatherer(gathering).gather(commit.record, (world.parties[0].peer,))


async def test_a_holder_that_went_silent_does_not_hold_up_the_deadline(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        for party in world.parties[:2]:
            world.swarm.freeze(party.peer)
        assert not await _gatherer(gathering).gather(commit.record, ())
        assert trio.current_time() < GATHER_WITHIN_S + 2.0


async def test_a_reducer_that_was_cut_off_a_moment_ago_costs_little_where_another_has_the_bytes(
    autojump_clock: Clock,
) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[1])
        world.swarm.cut((world.parties[0].peer,), (gathering.peer,))
        assert await _gatherer(gathering).gather(commit.record, (world.parties[1].peer,))
        assert trio.current_time() < FIRST_OPEN_WITHIN_S + 0.5


async def test_a_slow_line_to_the_only_one_who_has_the_bytes_gets_its_time_when_it_is_asked_again(
    autojump_clock: Clock,
) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        world.swarm.speeds[world.parties[0].peer] = LinkSpeed(latency_s=FIRST_OPEN_WITHIN_S * 1.25)
        assert await _gatherer(gathering).gather(commit.record, (world.parties[1].peer, world.parties[0].peer))


def _trickle(party: Party, frame: bytes, every_s: float) -> None:
    """Answer everything with this frame, again and again, and remember who asked."""

    async def serve(peer: PeerId, stream: Stream) -> None:
        party.asked.append((peer, await read_request(stream)))
        while True:
            await stream.send_frame(frame)
            await trio.sleep(every_s)

    party.network.serve_streams(FETCH_CHANNEL, serve)


async def test_a_reducer_that_sends_a_byte_now_and_then_is_given_up_for_a_holder(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        _trickle(world.parties[0], b"x", FRAME_WITHIN_S - 5.0)
        await commit.write_results(world.parties[1])
        assert await _gatherer(gathering).gather(commit.record, (world.parties[1].peer,))
        assert trio.current_time() < ANSWER_WITHIN_S + 2.0
        assert len(world.parties[0].asked) == 1


async def test_who_took_all_the_time_there_was_is_asked_after_the_others_next_time(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice may be so large that its slow source is within its deadline when the gathering's own ends."""
    monkeypatch.setattr("averaging.rounds.fetching.gather_results.GATHER_WITHIN_S", ANSWER_WITHIN_S / 2)
    async with _one_commit() as (world, commit, gathering):
        _trickle(world.parties[0], b"x", 5.0)
        await commit.write_results(world.parties[1])
        gatherer, holders = _gatherer(gathering), (world.parties[1].peer,)
        assert not await gatherer.gather(commit.record, holders)
        began_s = trio.current_time()
        assert await gatherer.gather(commit.record, holders)
        assert trio.current_time() - began_s < 2.0
        assert len(world.parties[0].asked) == 1


async def test_results_that_a_thin_line_carries_in_minutes_are_taken_while_their_bytes_come(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be begun anew for ever. A byte now and then earns nothing: see the test above."""
    monkeypatch.setattr("averaging.rounds.fetching.gather_results.GATHER_WITHIN_S", 0.5)
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        part, data = commit.record.slices[0], commit.results[0]
        piece_bytes = -(-len(data) // 8)

        async def serve(peer: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            assert isinstance(request, FetchResult)
            whole = commit.results[[s.first_chunk for s in commit.record.slices].index(request.first_chunk)]
            for begin in range(0, len(whole), piece_bytes):
                await trio.sleep(0.2)
                await stream.send_frame(whole[begin : begin + piece_bytes])
            await stream.aclose()

        monkeypatch.setattr("averaging.rounds.fetching.gather_results.LEAST_BYTES_PER_S", piece_bytes / 0.5)
        for party in world.parties[:2]:
            party.network.serve_streams(FETCH_CHANNEL, serve)
        assert await _gatherer(gathering).gather(commit.record, (world.parties[0].peer,))
        assert trio.current_time() > 1.5
        assert await gathering.log.read_result(commit.record.parent, part.result_hash) == data


async def test_bytes_that_turn_up_later_are_found_by_asking_again(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):

        async def turn_up() -> None:
            await trio.sleep(10.0)
            await commit.write_results(world.parties[1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn_up)
            assert await _gatherer(gathering).gather(commit.record, (world.parties[1].peer,))
        assert trio.current_time() < 12.0


async def test_gathering_ends_when_the_head_has_moved(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):

        async def move() -> None:
            await trio.sleep(5.0)
            await gathering.apply(commit)

        other = world.commit_on(gathering.chain.head, 77)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(move)
            assert not await _gatherer(gathering).gather(other.record, (world.parties[0].peer,))
        assert trio.current_time() < 7.0


async def test_bytes_of_another_lineage_are_gathered_for_as_long_as_they_are_wanted(autojump_clock: Clock) -> None:
    """This holds even if our own head moves meanwhile."""
    async with _one_commit() as (world, commit, gathering):
        await gathering.apply(world.commit_on(world.start, 77))
        wanted = trio.Event()

        async def lose_interest() -> None:
            await trio.sleep(5.0)
            wanted.set()

        gatherer, holders = _gatherer(gathering), (world.parties[0].peer, world.parties[1].peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose_interest)
            assert not await gatherer.gather(commit.record, holders, lambda: not wanted.is_set())
        assert 5.0 <= trio.current_time() < 7.0
        await commit.write_results(world.parties[0])
        assert not await gatherer.gather(commit.record, holders)
        assert await gatherer.gather(commit.record, holders, lambda: True)
        assert await _holds_all(gathering, commit)


async def test_a_running_exchange_may_bring_the_bytes_before_anybody_is_asked(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        ended, changes = trio.Event(), Changes()

        async def deliver() -> None:
            await trio.sleep(EXCHANGE_PATIENCE_S / 2)
            await commit.write_results(gathering)
            ended.set()
            changes.notify()

        gatherer = _gatherer(gathering, ExchangeView(lambda base: not ended.is_set(), changes))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))
        assert _asked(world) == []


async def test_an_exchange_that_delivers_nothing_is_waited_for_no_longer_than_its_patience(
    autojump_clock: Clock,
) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        assert await _gatherer(gathering, ExchangeView(lambda base: True)).gather(
            commit.record, (world.parties[0].peer,)
        )
        assert trio.current_time() < 2 * EXCHANGE_PATIENCE_S + 1.0


async def test_we_never_ask_ourselves(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, _):
        reducer = world.parties[0]
        await commit.write_results(world.parties[1])
        assert await _gatherer(reducer).gather(commit.record, (reducer.peer, world.parties[1].peer))
        assert reducer.asked == []


async def test_what_a_running_exchange_brings_is_gathered_at_once_and_not_fetched(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        changes = Changes()

        async def bring() -> None:
            await trio.sleep(0.1)
            await commit.write_results(gathering)
            changes.notify()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring)
            gatherer = _gatherer(gathering, ExchangeView(lambda base: True, changes))
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))
        assert trio.current_time() < 0.2, "everybody's ack waits for it"
        assert _asked(world) == []


async def test_an_exchange_that_still_brings_something_is_waited_for_and_one_that_stalls_is_not(
    autojump_clock: Clock,
) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        moves_until_s, arrivals = 5 * EXCHANGE_PATIENCE_S, Arrivals()

        async def bring() -> None:
            while trio.current_time() < moves_until_s:
                arrivals.came(world.parties[0].peer, memoryview(b"another slice"))
                await trio.sleep(EXCHANGE_PATIENCE_S / 6)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring)
            gatherer = _gatherer(gathering, ExchangeView(lambda base: True, arrivals=lambda: arrivals))
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))
        assert moves_until_s <= trio.current_time() < moves_until_s + 3 * EXCHANGE_PATIENCE_S


async def test_what_an_exchange_brings_gives_an_errand_more_time(autojump_clock: Clock) -> None:
    """Results that weigh more than a thin line carries in a minute would else be begun anew for ever."""
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        ends_s, arrivals = 2 * GATHER_WITHIN_S, Arrivals()
        frame = memoryview(bytes(2 * int(LEAST_BYTES_PER_S * EXCHANGE_PATIENCE_S / 2)))

        async def bring() -> None:
            while trio.current_time() < ends_s:
                arrivals.came(world.parties[0].peer, frame)
                await trio.sleep(EXCHANGE_PATIENCE_S / 2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring)
            gatherer = _gatherer(gathering, ExchangeView(lambda base: True, arrivals=lambda: arrivals))
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))
        assert trio.current_time() >= ends_s


async def test_on_a_thin_line_a_running_exchange_may_bring_nothing_for_longer(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        gatherer = _gatherer(gathering, ExchangeView(lambda base: True, patience_s=lambda: 10.0))
        assert await gatherer.gather(commit.record, (world.parties[0].peer,))
        assert 10.0 <= trio.current_time() < 10.0 + 3 * EXCHANGE_PATIENCE_S


async def test_a_frozen_reducer_that_is_suspected_is_neither_waited_for_nor_asked_first(autojump_clock: Clock) -> None:
    """Found by freezing processes: the survivors' acks came 2.5 s late, 1 s for an exchange that could bring nothing any more and
    1.5 s for a connection that the frozen process's kernel took.
    """
    async with _one_commit() as (world, commit, gathering):
        frozen = world.parties[0].peer
        await commit.write_results(world.parties[1])
        world.swarm.freeze(frozen)
        view = ExchangeView(lambda base: True, is_silent=lambda peer: peer == frozen)
        await commit.write_results(gathering, slices=[1])
        assert await _gatherer(gathering, view).gather(commit.record, (frozen, world.parties[1].peer))
        assert trio.current_time() < 0.5
        assert await _holds_all(gathering, commit)


async def test_what_one_gathering_fetched_another_that_waits_for_the_exchange_has_at_once(
    autojump_clock: Clock,
) -> None:
    """Found by freezing processes: a leader's ack fetched the bytes, its commit waited on for the exchange, and all others for it."""
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        gatherer = _gatherer(gathering, ExchangeView(lambda base: True))

        async def for_the_ack() -> None:
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(for_the_ack)
            await trio.sleep(EXCHANGE_PATIENCE_S * 0.9)
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))
            assert trio.current_time() < EXCHANGE_PATIENCE_S + 0.5


async def test_what_a_stream_has_begun_to_bring_is_not_fetched_while_its_reducer_lives_though_it_pauses(
    autojump_clock: Clock,
) -> None:
    """Of 32 members on two cores each fetched results that were on their way: a tenth of all bytes were moved twice."""
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        changes, part = Changes(), commit.record.slices[1]

        async def bring() -> None:
            await trio.sleep(STALLED_STREAM_S - 0.1)
            await commit.write_results(gathering, slices=[1])
            changes.notify()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring)
            with _coming(part) as arrivals:
                view = ExchangeView(lambda base: True, changes, lambda: arrivals)
                assert await _gatherer(gathering, view).gather(commit.record, (world.parties[0].peer,))
        assert part.first_chunk not in [first_chunk for _, first_chunk in _asked(world)]


async def test_what_a_stream_has_begun_to_bring_is_fetched_when_it_stands_still(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        with _coming(*commit.record.slices) as arrivals:
            view = ExchangeView(lambda base: True, arrivals=lambda: arrivals)
            assert await _gatherer(gathering, view).gather(commit.record, (world.parties[0].peer,))
        assert STALLED_STREAM_S <= trio.current_time() < STALLED_STREAM_S + 0.5


@pytest.mark.parametrize("silent_from_s", [0.0, 0.5], ids=["from the beginning", "while it is waited for"])
async def test_what_a_silent_reducers_stream_had_begun_to_bring_is_waited_for_no_longer(
    silent_from_s: float, autojump_clock: Clock
) -> None:
    """No change tells of it: everybody's ack would wait for as long as a stream may pause."""
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[1])
        with _coming(*commit.record.slices) as arrivals:
            view = ExchangeView(
                lambda base: True,
                arrivals=lambda: arrivals,
                is_silent=lambda peer: trio.current_time() >= silent_from_s,
            )
            assert await _gatherer(gathering, view).gather(commit.record, (world.parties[1].peer,))
        assert silent_from_s <= trio.current_time() < silent_from_s + EXCHANGE_PATIENCE_S


async def test_a_stream_that_breaks_while_it_is_waited_for_is_waited_for_no_longer(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[1])
        broken_s, arrivals = 1.0, Arrivals()

        async def bring_until_it_breaks() -> None:
            with _coming(*commit.record.slices, of=arrivals):
                await trio.sleep_until(broken_s)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bring_until_it_breaks)
            await trio.testing.wait_all_tasks_blocked()
            view = ExchangeView(lambda base: True, arrivals=lambda: arrivals)
            assert await _gatherer(gathering, view).gather(commit.record, (world.parties[1].peer,))
        assert broken_s <= trio.current_time() < broken_s + EXCHANGE_PATIENCE_S + 0.5


async def test_what_a_stream_begins_to_bring_while_somebody_is_about_to_fetch_it_is_not_fetched(
    autojump_clock: Clock,
) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        changes, part, arrivals = Changes(), commit.record.slices[1], Arrivals()
        world.swarm.speeds[world.parties[0].peer] = LinkSpeed(latency_s=0.3)
        view = ExchangeView(lambda base: True, changes, lambda: arrivals, patience_s=lambda: 0.0)
        gatherer = _gatherer(gathering, view)
        # its turn comes when another errand's fetch of the same bytes is over
        over = gatherer._fetching[part.result_hash] = trio.Event()

        async def begin() -> None:
            await trio.sleep(0.2)
            with _coming(part, of=arrivals):
                del gatherer._fetching[part.result_hash]
                over.set()
                await trio.sleep(1.0)
                await commit.write_results(gathering, slices=[1])
                changes.notify()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))
        assert part.first_chunk not in [first_chunk for _, first_chunk in _asked(world)]


async def test_two_that_gather_the_same_bytes_at_the_same_time_fetch_them_once(autojump_clock: Clock) -> None:
    """For the ack and for the commit."""
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        gatherer = _gatherer(gathering)

        async def gather() -> None:
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gather)
            nursery.start_soon(gather)
        asked = [first_chunk for number, first_chunk in _asked(world) if number == 0]
        assert sorted(asked) == sorted(set(asked))


async def test_who_is_offered_a_result_that_is_being_fetched_waits_until_that_is_over(autojump_clock: Clock) -> None:
    async with _one_commit() as (world, commit, gathering):
        await commit.write_results(world.parties[0])
        world.swarm.speeds[world.parties[0].peer] = LinkSpeed(latency_s=0.2)
        gatherer, held = _gatherer(gathering), list[bool]()
        part = commit.record.slices[0]

        async def offered() -> None:
            await trio.sleep(0.01)
            await gatherer.until_fetched(part.result_hash)
            held.append(await gathering.log.holds_results(commit.record.parent, [part.result_hash]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(offered)
            assert await gatherer.gather(commit.record, (world.parties[0].peer,))
        assert held == [True]
        with trio.fail_after(0.1):
            await gatherer.until_fetched(part.result_hash)


# --- the order of asking ----------------------------------------------------------------------------------------------------------


def test_members_ask_the_reducer_first_and_all_others_any_peer_that_took_part_but_the_leader_last() -> None:
    table = Table(8)
    seats = table.live()
    record = signed_record(table.genesis, seats)
    holders = tuple(seat.peer for seat in seats)
    for part in record.slices:
        assert _sources(seats[3].peer, record, part, holders)[0] == part.reducer
    others = [PeerId(f"other {number}") for number in range(192)]
    asked = Counter(_sources(me, record, part, holders)[0] for me in others for part in record.slices)
    leader = record.ballot.peer
    assert set(asked) == {*holders} - {leader}
    assert max(asked.values()) < 1.3 * len(others) * len(record.slices) / (len(holders) - 1)
    assert {_sources(me, record, part, ())[-1] for me in others for part in record.slices} == {leader}
    assert set(_sources(others[0], record, record.slices[0], (others[1],))) == {*holders, others[1]}
