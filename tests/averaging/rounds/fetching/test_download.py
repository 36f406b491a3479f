from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Network, Stream
from averaging.rounds.fetching.download import MAX_DONORS, DownloadContext, download_state
from averaging.rounds.lineage.earlier_states import state_at
from averaging.rounds.lineage.round_reports import DownloadProgress
from averaging.rounds.traffic.transfer import (
    FETCH_CHANNEL,
    HASHES_WITHIN_S,
    TransferService,
    ask_generation,
    read_request,
)
from averaging.state.generations import SHARED_S
from averaging.state.partial_download import PartialDownload
from averaging.state.state import STATE_BYTES_PER_VALUE, UnitState, state_chunks, state_root
from averaging.storage.memory_storage import MemoryStorage
from protocol.errors import UnreachableError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.requests import FetchHashes, FetchState
from protocol.rounds.schedule.asking_order import asking_order
from tests.averaging.rounds.round_world import GRID, UNIT, MadeCommit, Party, RoundWorld, open_world
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
ALL_BYTES = STATE_BYTES_PER_VALUE * GRID.num_elements
SLOW = LinkSpeed(0.001, 400.0)
FAST = LinkSpeed(0.001, 4000.0)


@pytest.fixture(autouse=True)
def _one_chunk_a_stripe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("averaging.rounds.fetching.download.STRIPE_BYTES", 1)
    monkeypatch.setattr("averaging.rounds.fetching.download.REQUESTS_EACH", 1)


@dataclass
class Scene:
    """Three peers at the head of a chain that serve, and one that has nothing."""

    world: RoundWorld
    made: list[MadeCommit]

    @property
    def me(self) -> Party:
        return self.world.parties[-1]

    @property
    def donors(self) -> list[Party]:
        return self.world.parties[:-1]

    @property
    def root(self) -> Root:
        return self.donors[0].chain.root

    @property
    def wanted(self) -> dict[CommitId, Root]:
        return {self.made[-1].link.commit: self.root}

    def tools(self) -> DownloadContext:
        storage = MemoryStorage(self.me.disk)
        return DownloadContext(self.me.network, InlineOffload(), UNIT, GRID, PartialDownload(storage, GRID))

    async def download(self, *donors: Party, reported: list[DownloadProgress] | None = None) -> UnitState:
        peers = [party.peer for party in donors or self.donors]
        return await download_state(self.tools(), peers, self.wanted, (reported if reported is not None else []).append)

    async def chunks_take_s(self, *donors: Party) -> float:
        """How long the chunks of a new download are on their way."""
        reported_s: list[float] = []
        tools = self.tools()
        assert tools.incoming is not None
        await tools.incoming.clear()
        peers = [party.peer for party in donors]
        state = await download_state(tools, peers, self.wanted, lambda progress: reported_s.append(trio.current_time()))
        assert state_root(state, GRID) == self.root
        return reported_s[-1] - reported_s[0]

    def chunks_asked_of(self, party: Party) -> list[int]:
        return [r.first_chunk for _, r in party.asked if isinstance(r, FetchState) and r.stop_chunk > 0]


@asynccontextmanager
async def _scene(num_commits: int = 2) -> AsyncIterator[Scene]:
    async with open_world(4) as world:
        made = world.commits(num_commits)
        for party in world.parties[:-1]:
            for commit in made:
                await party.apply(commit)
            party.serve_fetches()
        yield Scene(world, made)


@contextmanager
def _lying_chunks(party: Party) -> Iterator[list[FetchState]]:
    """A donor that names the right hashes and sends other bytes."""
    lies: list[FetchState] = []
    party.serve_fetches()
    honest = party.network._host.handlers[FETCH_CHANNEL]  # type: ignore[attr-defined]

    async def serve(peer: PeerId, stream: Stream) -> None:
        class Peeked:
            remote = stream.remote

            def __init__(self, first: bytes) -> None:
                self.first: bytes | None = first

            async def receive_frame(self) -> bytes | None:
                first, self.first = self.first, None
                return first if first is not None else await stream.receive_frame()

            def count_as(self, unit: str, codec: str) -> None:
                pass

            async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
                await stream.send_frame(data, head)

            async def aclose(self) -> None:
                await stream.aclose()

        first = await stream.receive_frame() or b""
        request = await read_request(Peeked(first))
        if isinstance(request, FetchState) and request.stop_chunk > 0:
            lies.append(request)
            for _ in range(request.first_chunk, request.stop_chunk):
                await stream.send_frame(bytes(80))
            return
        await honest(peer, Peeked(first))

    party.network.serve_streams(FETCH_CHANNEL, serve)
    yield lies


async def test_a_state_comes_whole_and_each_chunk_once_from_all_who_have_it(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        reported: list[DownloadProgress] = []
        state = await scene.download(reported=reported)
        chain = scene.donors[0].chain
        assert state.header == chain.state.header
        torch.testing.assert_close(state.anchor_N, chain.state.anchor_N, rtol=0, atol=0)
        torch.testing.assert_close(state.momentum_N, chain.state.momentum_N, rtol=0, atol=0)
        asked = [scene.chunks_asked_of(donor) for donor in scene.donors]
        assert sorted(chunk for chunks in asked for chunk in chunks) == list(range(GRID.num_chunks))
        assert all(asked)
        assert [progress.bytes_here for progress in reported] == [
            ALL_BYTES * number // GRID.num_chunks for number in range(GRID.num_chunks + 1)
        ]
        assert re.fullmatch(
            r"fetching the run's state of round 2: [0-9.]+ k?B of [0-9.]+ k?B from 3 peers", str(reported[3])
        )


async def test_three_donors_give_it_in_a_third_of_the_time(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        for donor in scene.donors:
            scene.world.swarm.speeds[donor.peer] = FAST
        alone_s = await scene.chunks_take_s(scene.donors[0])
        assert await scene.chunks_take_s(*scene.donors) < alone_s / 2.5


async def test_the_slowest_donor_does_not_decide_when_it_ends(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        for donor, speed in zip(scene.donors, (FAST, FAST, SLOW), strict=True):
            scene.world.swarm.speeds[donor.peer] = speed
        chunk_s = 80 / SLOW.bytes_per_s
        assert await scene.chunks_take_s(scene.donors[2]) > GRID.num_chunks * chunk_s
        assert await scene.chunks_take_s(*scene.donors) < 1.5 * chunk_s


async def test_a_donor_that_sends_other_bytes_is_asked_nothing_more(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        with _lying_chunks(scene.donors[0]) as lies:
            state = await scene.download()
        assert state_root(state, GRID) == scene.root
        assert len(lies) == 1


async def test_a_donor_that_names_hashes_of_another_root_is_left_out(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        liar, honest = scene.donors[:2]
        offer = (await ask_generation(scene.me.network, honest.peer, UNIT))[0]

        async def lie(peer: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            if isinstance(request, FetchHashes):
                await stream.send_frame(bytes(32 * GRID.num_chunks))
            elif isinstance(request, FetchState) and request.stop_chunk == 0:
                await stream.send_frame(offer.root + offer.header.to_bytes())

        liar.network.serve_streams(FETCH_CHANNEL, lie)
        assert state_root(await scene.download(liar, honest), GRID) == scene.root
        with pytest.raises(UnreachableError, match="hashes of another root"):
            await scene.download(liar)


async def test_a_donor_that_dies_in_the_middle_is_replaced(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        for donor in scene.donors:
            scene.world.swarm.speeds[donor.peer] = SLOW
        async with trio.open_nursery() as nursery:

            async def die() -> None:
                await trio.sleep(1.0)
                scene.world.swarm.kill(scene.donors[1].peer)

            nursery.start_soon(die)
            assert state_root(await scene.download(), GRID) == scene.root


async def test_a_download_goes_on_after_a_crash_where_it_was(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        for donor in scene.donors:
            scene.world.swarm.speeds[donor.peer] = SLOW
        with trio.CancelScope() as scope:

            def reported_half(progress: DownloadProgress) -> None:
                if progress.bytes_here >= ALL_BYTES / 2:
                    scope.cancel()

            await download_state(scene.tools(), [scene.donors[0].peer], scene.wanted, reported_half)
        before = scene.me.network.traffic().bulk_bytes_down
        scene.me.boot()
        reported: list[DownloadProgress] = []
        state = await scene.download(scene.donors[1], reported=reported)
        assert state_root(state, GRID) == scene.root
        assert 0 < reported[0].bytes_here <= before
        asked = scene.chunks_asked_of(scene.donors[1])
        assert len(asked) == len(set(asked)) == GRID.num_chunks - reported[0].bytes_here * GRID.num_chunks // ALL_BYTES


async def test_what_was_spoilt_on_our_disk_meanwhile_is_fetched_again(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        await scene.download(scene.donors[0])
        names = sorted(name for name in scene.me.disk.files if name.startswith("incoming/"))
        assert len(names) == GRID.num_chunks
        scene.me.spoil(names[2])
        assert state_root(await scene.download(scene.donors[1]), GRID) == scene.root
        assert scene.chunks_asked_of(scene.donors[1]) == [2]


async def test_what_is_left_of_another_download_makes_room(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        await scene.download(scene.donors[0])
        last = {scene.made[0].link.commit: state_root(await _state_at(scene, 0), GRID)}
        await download_state(scene.tools(), [scene.donors[0].peer], last)
        commits = {name.split("/")[1] for name in scene.me.disk.files if name.startswith("incoming/")}
        assert commits == {scene.made[0].link.commit.hex()}


async def _state_at(scene: Scene, number: int) -> UnitState:
    state = await state_at(scene.donors[0].chain, scene.made[number].link.commit)
    assert state is not None
    return state


async def test_the_newest_state_that_most_have_is_taken(autojump_clock: Clock) -> None:
    async with _scene(num_commits=3) as scene:
        newest = scene.world.commit_on(scene.donors[0].chain.head, 9)
        await scene.donors[0].apply(newest)
        wanted = {newest.link.commit: scene.donors[0].chain.root}
        wanted[scene.made[-1].link.commit] = scene.donors[1].chain.root
        peers = [donor.peer for donor in scene.donors]
        state = await download_state(scene.tools(), peers, wanted)
        assert state.head == scene.made[-1].link.commit
        await scene.donors[1].apply(newest)
        tools = scene.tools()
        assert tools.incoming is not None
        await tools.incoming.clear()
        await trio.sleep(SHARED_S)
        state = await download_state(tools, peers, wanted)
        assert state.head == newest.link.commit


async def test_newcomers_within_ten_minutes_take_the_same_state_though_rounds_go_on(autojump_clock: Clock) -> None:
    async with _scene(num_commits=3) as scene:
        shared = scene.made[-1].link.commit
        wanted = {shared: scene.root}
        assert (await scene.download()).head == shared
        await trio.sleep(SHARED_S / 3)
        for seed in range(3):  # so many would leave the generation to nobody
            commit = scene.world.commit_on(scene.donors[0].chain.head, seed)
            for donor in scene.donors:
                await donor.apply(commit)
            wanted[commit.link.commit] = scene.root
        peers, tools = [donor.peer for donor in scene.donors], scene.tools()
        assert tools.incoming is not None
        await tools.incoming.clear()
        assert (await download_state(tools, peers, wanted)).head == shared
        await trio.sleep(SHARED_S)
        await tools.incoming.clear()
        assert (await download_state(tools, peers, wanted)).head == scene.donors[0].chain.head.commit


async def test_a_donor_keeps_what_is_being_downloaded_while_it_goes_on(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        donor = scene.donors[0]
        scene.world.swarm.speeds[donor.peer] = SLOW
        async with trio.open_nursery() as nursery:

            async def go_on() -> None:
                for seed in range(4):
                    await trio.sleep(0.5)
                    await donor.apply(scene.world.commit_on(donor.chain.head, seed))

            nursery.start_soon(go_on)
            root = scene.root
            assert state_root(await scene.download(donor), GRID) == root


async def test_a_state_with_another_root_than_the_attested_one_is_not_fetched(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        wanted = {scene.made[-1].link.commit: Root(b"x" * 32)}
        with pytest.raises(UnreachableError, match="does not hold it"):
            await download_state(scene.tools(), [donor.peer for donor in scene.donors], wanted)
        assert not any(scene.chunks_asked_of(donor) for donor in scene.donors)


async def test_where_none_of_the_first_many_has_it_the_next_ones_are_asked(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        peers = [*(PeerId(f"nobody-{number}") for number in range(2 * MAX_DONORS)), scene.donors[0].peer]
        state = await download_state(scene.tools(), peers, scene.wanted)
        assert state_root(state, GRID) == scene.root


async def test_each_newcomer_asks_many_donors_of_a_state_in_an_order_of_its_own(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    donors = [PeerId(f"donor-{number}") for number in range(4 * MAX_DONORS)]
    firsts: Counter[PeerId] = Counter()

    async def nothing_here(_network: Network, peer: PeerId, _unit: UnitName) -> None:
        asked.append(peer)
        raise UnreachableError(f"nothing at {peer}", "a state")

    monkeypatch.setattr("averaging.rounds.fetching.download.ask_generation", nothing_here)
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        for number in range(32):
            me, asked = PeerId(f"newcomer-{number}"), list[PeerId]()
            tools = DownloadContext(swarm.start(me), InlineOffload(), UNIT, GRID, None)
            with pytest.raises(UnreachableError):
                await download_state(tools, donors, {CommitId(b"?" * 32): Root(bytes(32))})
            order = asking_order(me, donors)
            for begin in range(0, len(donors), MAX_DONORS):
                assert set(asked[begin : begin + MAX_DONORS]) == set(order[begin : begin + MAX_DONORS])
            firsts.update(order[:MAX_DONORS])
        nursery.cancel_scope.cancel()
    assert set(firsts) == set(donors), "each donor is among the first that somebody asks"


async def test_nobody_to_ask_is_said_in_one_error_that_names_each_reason(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.donors[0].serve_frames([b"no header"])
        peers = [scene.donors[0].peer, scene.donors[1].peer, PeerId("nobody")]
        with pytest.raises(UnreachableError) as caught:
            await download_state(scene.tools(), peers, {CommitId(b"?" * 32): Root(bytes(32))})
        for reason in ("state header", "does not hold it", "refused"):
            assert reason in str(caught.value)


async def test_more_chunks_than_were_asked_for_end_the_download(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        num_sent = 0

        async def flood(peer: PeerId, stream: Stream) -> None:
            nonlocal num_sent
            request = await read_request(stream)
            if isinstance(request, FetchState) and request.stop_chunk == 0:
                await stream.send_frame(scene.root + scene.donors[1].chain.state.header.to_bytes())
                return
            while True:
                await stream.send_frame(bytes(80))
                num_sent += 1

        scene.donors[0].network.serve_streams(FETCH_CHANNEL, flood)
        with pytest.raises(UnreachableError, match="more than"):
            await scene.download(scene.donors[0])
        assert num_sent < 20


async def test_numbers_beside_the_right_commit_and_root_are_those_that_the_root_proves(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        liars, honest = (scene.donors[0], scene.donors[2]), scene.donors[1]
        offer = (await ask_generation(scene.me.network, honest.peer, UNIT))[0]
        forged = replace(offer.header, index=offer.header.index + 7, total_tokens=1 << 40)
        for liar in liars:
            _offer_only(liar, offer.root + forged.to_bytes())
        state = await scene.download(*liars, honest)
        assert (state.header, state_root(state, GRID)) == (offer.header, scene.root)
        assert not any(scene.chunks_asked_of(liar) for liar in liars)


async def test_a_donor_that_says_its_offer_twice_is_still_one_donor(autojump_clock: Clock) -> None:
    async with _scene(num_commits=3) as scene:
        newest = scene.world.commit_on(scene.donors[0].chain.head, 9)
        older = {scene.made[-1].link.commit: scene.root}
        loud = scene.donors[2]
        offer = (await ask_generation(scene.me.network, loud.peer, UNIT))[0]
        for donor in scene.donors[:2]:
            await donor.apply(newest)
        _offer_only(loud, offer.root + offer.header.to_bytes(), times=5)
        reported: list[DownloadProgress] = []
        wanted = {newest.link.commit: scene.root}
        state = await download_state(scene.tools(), [d.peer for d in scene.donors], older | wanted, reported.append)
        assert state.head == newest.link.commit, "three have the older one, whoever says so five times"
        await download_state(scene.tools(), [loud.peer], older, reported.append)
        assert reported[-1].num_donors == 1


async def test_a_donor_that_is_slow_with_its_hashes_gives_way_to_the_next(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        slow, honest = scene.donors[:2]
        offer = (await ask_generation(scene.me.network, honest.peer, UNIT))[0]

        async def trickle(peer: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            if isinstance(request, FetchState) and request.stop_chunk == 0:
                await stream.send_frame(offer.root + offer.header.to_bytes())
                return
            while True:
                await stream.send_frame(b"x")
                await trio.sleep(HASHES_WITHIN_S / 2)

        slow.network.serve_streams(FETCH_CHANNEL, trickle)
        assert state_root(await scene.download(slow, honest), GRID) == scene.root
        assert trio.current_time() < 2 * HASHES_WITHIN_S


def _offer_only(party: Party, lie: bytes, times: int = 1) -> None:
    """Honest in everything but what it offers, and how often."""
    service = TransferService(UNIT, party.log, party.generations, GRID, lambda known: party.chain.line.after(known))

    async def serve(peer: PeerId, stream: Stream) -> None:
        request = await read_request(stream)
        party.asked.append((peer, request))
        if isinstance(request, FetchState) and request.stop_chunk == 0:
            for _ in range(times):
                await stream.send_frame(lie)
            return
        await service.serve(peer, request, stream)

    party.network.serve_streams(FETCH_CHANNEL, serve)


@pytest.mark.parametrize(("num_here", "num_again"), [(GRID.num_chunks - 1, 1), (0, GRID.num_chunks)])
async def test_after_a_crash_and_a_round_a_download_goes_on_with_the_state_of_which_less_is_left(
    autojump_clock: Clock, num_here: int, num_again: int
) -> None:
    """The donors still have the state before that round, and one update leads on from there."""
    async with _scene() as scene:
        older = scene.donors[0].chain.state
        roots = {older.head: scene.root}
        chunks = [b"".join(map(bytes, parts)) for parts in state_chunks(older, GRID)]
        incoming = PartialDownload(MemoryStorage(scene.me.disk), GRID)
        for number in range(num_here):
            await incoming.keep(older.head, number, [chunks[number]])
        newer = scene.world.commit_on(scene.donors[0].chain.head, 9)
        for donor in scene.donors:
            await donor.apply(newer)
        roots[newer.link.commit] = scene.root
        tools = replace(scene.tools(), update_bytes=ALL_BYTES // 3)
        state = await download_state(tools, [donor.peer for donor in scene.donors], roots)
        assert state.head == (older.head if num_here else newer.link.commit)
        asked = {chunk for donor in scene.donors for chunk in scene.chunks_asked_of(donor)}
        assert len(asked) == num_again


async def test_of_a_download_that_was_hardly_begun_the_newer_state_is_taken(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        older = scene.donors[0].chain.state
        roots = {older.head: scene.root}
        first = b"".join(map(bytes, next(iter(state_chunks(older, GRID)))))
        await PartialDownload(MemoryStorage(scene.me.disk), GRID).keep(older.head, 0, [first])
        newer = scene.world.commit_on(scene.donors[0].chain.head, 9)
        for donor in scene.donors:
            await donor.apply(newer)
        roots[newer.link.commit] = scene.root
        tools = replace(scene.tools(), update_bytes=ALL_BYTES // 3)
        state = await download_state(tools, [donor.peer for donor in scene.donors], roots)
        assert state.head == newer.link.commit
