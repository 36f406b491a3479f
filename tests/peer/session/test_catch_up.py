"""A newcomer beside a running swarm in virtual time: a whole state where replaying would move more bytes."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import Offload, Stream
from averaging.rounds.fetching.answering_donors import ANSWER_WITHIN_S
from averaging.rounds.fetching.download import MAX_DONORS
from averaging.rounds.lineage.round_reports import DownloadProgress
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.state.generations import SHARED_S, Generations
from averaging.state.log_entries import LoggedContribution
from averaging.state.state import is_absent, state_root
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from peer.session.catch_up import COMMITS_WITHIN_S, catch_up_by_snapshot
from protocol.errors import StorageError
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage import lineage
from protocol.rounds.lineage.chain import attested_roots
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.requests import FetchCommits, FetchMilestones, FetchRequest
from protocol.rounds.messages.wire import decode_certificate, encode_certificate
from tests.averaging.rounds.round_world import (
    GRID,
    UNIT,
    MadeCommit,
    Party,
    RoundWorld,
    apply_whole,
    open_world,
    raws_of,
)
from tests.simulation import virtual_time
from tests.simulation.node import SimulatedOffload
from tests.simulation.swarm import World

Clock = trio.testing.MockClock
T = TypeVar("T")
NEWCOMER = PeerId("newcomer")
SEED = 3


def new_chain(world: World, disk: MemoryDisk, unit: UnitName | None = None) -> UnitChain:
    """Of the spine, or of this unit."""
    timers = world.swarm.timers
    storage, offload = MemoryStorage(disk, timers=timers), SimulatedOffload(timers)
    log, generations = UnitLog(storage), Generations(storage, world.grid, offload)
    unit = unit or world.layout.spine
    tools = UnitContext(world.run_id, unit, world.verifier, world.codec, world.grid, offload, log, generations)
    return UnitChain(tools, world.start_record, world.genesis(unit))


class _LyingFiles(dict[str, bytes]):
    """Every generation has one bit wrong: those that are there, and those that later rounds write."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        for name, data in files.items():
            self[name] = data

    def __setitem__(self, name: str, data: bytes) -> None:
        if name.startswith("generations/"):
            data = data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]
        super().__setitem__(name, data)


def after_rounds(num_rounds: int, check: Callable[[World], Awaitable[None]]) -> str:
    """Let three peers run so many rounds, then check; returns the hash of all that happened."""

    async def tell() -> str:
        async with trio.open_nursery() as nursery:
            world = World(SEED, nursery, num_peers=3, num_founders=3)
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: min(node.index for node in world.nodes) >= num_rounds, 900.0, "the rounds")
            await check(world)
            nursery.cancel_scope.cancel()
        return world.trace.digest()

    return virtual_time.run(SEED, tell)


def test_a_newcomer_takes_an_attested_state_and_restarts_from_it() -> None:
    async def check(world: World) -> None:
        disk, reported, failures = MemoryDisk(), list[DownloadProgress](), list[str]()
        chain = new_chain(world, disk)
        await chain.restore()
        donor, us = world.nodes[0], world.swarm.start(NEWCOMER)

        def report(progress: DownloadProgress) -> None:
            assert is_absent(chain.state), "the one that comes has its memory"
            reported.append(progress)

        await catch_up_by_snapshot(us, chain, [PeerId("nobody"), donor.peer], report, failures.append)
        assert failures == [], "whoever is not there is passed over"
        assert chain.head.index >= 9
        assert donor.service is not None
        roots = attested_roots(donor.service.chain.links)
        assert world.observed.roots[chain.head.commit] == chain.root == roots.get(chain.head.commit, chain.root)
        assert reported
        again = new_chain(world, disk)
        await again.restore()
        assert (again.head.commit, again.root) == (chain.head.commit, chain.root)
        world.trace.add(chain.head.commit.hex())

    assert after_rounds(10, check) == after_rounds(10, check)


def test_a_newcomer_at_the_beginning_replays_and_takes_no_state() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [world.nodes[0].peer], lambda progress: None)
        assert chain.head.index == 0

    after_rounds(2, check)


def test_a_donor_that_lies_about_its_state_is_not_believed() -> None:
    async def check(world: World) -> None:
        liar = world.nodes[0]
        liar.disk.files = _LyingFiles(liar.disk.files)
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [liar.peer], lambda progress: None)
        assert chain.head.index == 0
        first = world.genesis(chain.tools.unit)
        assert torch.equal(chain.state.anchor_N, first.anchor_N)
        assert (chain.root, chain.is_sound) == (state_root(first, world.grid), True)
        honest = world.nodes[1]
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [liar.peer, honest.peer], lambda progress: None)
        assert chain.head.index >= 9

    after_rounds(10, check)


def test_a_state_that_cannot_be_read_again_after_a_failed_download_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(world: World) -> None:
        liar = world.nodes[0]
        liar.disk.files = _LyingFiles(liar.disk.files)
        chain = new_chain(world, MemoryDisk())
        await chain.restore()

        async def refuse(_generations: Generations, *_arguments: object) -> None:
            raise StorageError("an unreadable folder", "a readable one")

        monkeypatch.setattr(Generations, "load_newest", refuse)
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [liar.peer], lambda progress: None)
        assert (chain.is_sound, chain.held.is_torn) == (False, True)

    after_rounds(10, check)


def _serve_commits(world: World, name: str, answers: Iterator[Sequence[bytes]]) -> tuple[PeerId, list[FetchRequest]]:
    """A peer that gives the next of these answers whenever commits are asked of it, and nothing else; returns what it is asked."""
    network, asked = world.swarm.start(PeerId(name)), list[FetchRequest]()

    async def serve(peer: PeerId, stream: Stream) -> None:
        asked.append(await read_request(stream))
        for raw in next(answers, ()) if isinstance(asked[-1], FetchCommits) else ():
            await stream.send_frame(raw)

    network.serve_streams(FETCH_CHANNEL, serve)
    return network.peer_id, asked


class _WatchedOffload:
    """Tells whether it is at work."""

    def __init__(self, inner: Offload) -> None:
        self._inner = inner
        self.is_inside = False

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        def inside() -> T:
            self.is_inside = True
            try:
                return function()
            finally:
                self.is_inside = False

        return await self._inner.run(inside, cost_s=cost_s)


def test_a_donor_that_invents_commits_is_asked_for_no_second_answer_and_for_no_state() -> None:
    async def check(world: World) -> None:
        honest = world.nodes[0]
        assert honest.service is not None
        good = raws_of(honest.service.chain)
        invented = encode_certificate(replace(decode_certificate(good[3]), ack=b"", votes=()))
        endless = itertools.chain([good[:3]], itertools.repeat([invented]))
        liar, asked = _serve_commits(world, "liar", endless)
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        began_s = trio.current_time()
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [liar, honest.peer], lambda progress: None)
        assert chain.head.index >= 9
        assert [type(request) for request in asked] == [FetchMilestones, FetchCommits, FetchCommits]
        assert trio.current_time() - began_s < COMMITS_WITHIN_S / 2

    after_rounds(10, check)


def test_commits_are_read_and_verified_away_from_the_thread_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        offload = _WatchedOffload(chain.tools.offload)
        chain.tools = replace(chain.tools, offload=offload)
        places: list[bool] = []

        def decode(raw: bytes) -> Certificate:
            places.append(offload.is_inside)
            return decode_certificate(raw)

        monkeypatch.setattr("peer.session.catch_up.decode_certificate", decode)
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [world.nodes[0].peer], lambda progress: None)
        assert chain.head.index >= 9
        assert places
        assert all(places)

    after_rounds(10, check)


def test_only_so_many_donors_are_asked_for_their_commits() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        empty = [_serve_commits(world, f"empty-{number}", iter(())) for number in range(MAX_DONORS + 3)]
        await catch_up_by_snapshot(
            world.swarm.start(NEWCOMER), chain, [peer for peer, _ in empty], lambda progress: None
        )
        for_commits = [sum(isinstance(each, FetchCommits) for each in asked) for _, asked in empty]
        assert for_commits == [1] * MAX_DONORS + [0] * 3

    after_rounds(1, check)


@pytest.mark.parametrize("are_listed_later", [False, True])
def test_donors_that_do_not_answer_cost_seconds_and_those_that_are_there_now_are_asked(are_listed_later: bool) -> None:
    """The list is older than the peers: all that it names but one sleep, or all do and the directory lists another one by now."""

    async def check(world: World) -> None:
        chain, silent = new_chain(world, MemoryDisk()), [PeerId(f"silent-{number}") for number in range(MAX_DONORS - 1)]
        await chain.restore()
        for peer in silent:
            world.swarm.start(peer)
            world.swarm.freeze(peer)
        honest, began_s = world.nodes[0].peer, trio.current_time()

        async def others() -> list[PeerId]:
            return [*silent, honest]

        donors = silent if are_listed_later else [*silent, honest]
        us = world.swarm.start(NEWCOMER)
        assert await catch_up_by_snapshot(us, chain, donors, lambda progress: None, others=others)
        assert chain.head.index >= 9
        assert trio.current_time() - began_s < 4 * ANSWER_WITHIN_S

    after_rounds(10, check)


@asynccontextmanager
async def one_slow_donor(world: World) -> AsyncIterator[list[PeerId]]:
    """Donors: one that has nothing answers at once, and one that has all of it somewhat late."""
    slow, empty = world.nodes[0], world.swarm.start(PeerId("empty"))

    async def has_nothing(_: PeerId, stream: Stream) -> None:
        await read_request(stream)

    empty.serve_streams(FETCH_CHANNEL, has_nothing)
    world.swarm.freeze(slow.peer)
    async with trio.open_nursery() as nursery:

        async def wake() -> None:
            await trio.sleep(ANSWER_WITHIN_S + 0.5)
            world.swarm.thaw(slow.peer)

        nursery.start_soon(wake)
        yield [empty.peer_id, slow.peer]


def test_a_donor_that_is_only_slow_gives_its_commits_and_its_state_where_the_quick_ones_have_none() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        async with one_slow_donor(world) as donors:
            await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, donors, lambda progress: None)
        assert chain.head.index >= 9

    after_rounds(10, check)


def _slow_donor(world: World, name: str, good: Sequence[bytes], answer_after_s: float) -> tuple[PeerId, list[int]]:
    """A peer that gives one commit an answer, each after so long; returns the places of the chain after which it was asked."""
    assert world.nodes[0].service is not None
    links, asked = world.nodes[0].service.chain.links, list[int]()
    places = {link.commit: place for place, link in enumerate(links)}
    network = world.swarm.start(PeerId(name))

    async def serve(peer: PeerId, stream: Stream) -> None:
        request = await read_request(stream)
        if isinstance(request, FetchCommits):
            asked.append(max(places[commit] for commit in request.known if commit in places))
            await trio.sleep(answer_after_s)
            for raw in good[asked[-1] : asked[-1] + 1]:
                await stream.send_frame(raw)

    network.serve_streams(FETCH_CHANNEL, serve)
    return network.peer_id, asked


def test_what_a_donor_that_was_given_up_has_brought_is_not_asked_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.session.catch_up.LEAST_BYTES_PER_S", 1e9)

    async def check(world: World) -> None:
        assert world.nodes[0].service is not None
        good = tuple(raws_of(world.nodes[0].service.chain))
        one, asked_of_one = _slow_donor(world, "one", good, 8.0)
        two, asked_of_two = _slow_donor(world, "two", good, 8.0)
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        shown = await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [one, two], lambda progress: None)
        assert asked_of_one == list(range(8))
        assert asked_of_two[0] == 7
        assert shown == len(good)

    after_rounds(10, check)


def test_a_donor_whose_good_commits_keep_coming_is_heard_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.session.catch_up.LEAST_BYTES_PER_S", 100)

    async def check(world: World) -> None:
        assert world.nodes[0].service is not None
        good = tuple(raws_of(world.nodes[0].service.chain))
        donor, asked = _slow_donor(world, "one", good, 8.0)
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        began_s = trio.current_time()
        shown = await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [donor], lambda progress: None)
        assert asked == list(range(len(good) + 1))
        assert shown == len(good)
        assert trio.current_time() - began_s > COMMITS_WITHIN_S

    after_rounds(10, check)


def test_a_donor_with_less_of_the_same_lineage_takes_nothing_away() -> None:
    async def check(world: World) -> None:
        assert world.nodes[0].service is not None
        good = tuple(raws_of(world.nodes[0].service.chain))
        long, _ = _serve_commits(world, "long", iter([good]))
        behind, asked = _serve_commits(world, "behind", iter([good[4:7]]))
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        network = world.swarm.start(NEWCOMER)
        shown = await catch_up_by_snapshot(network, chain, [long, behind], lambda progress: None)
        assert shown == len(good)
        assert [type(request) for request in asked].count(FetchCommits) == 1

    after_rounds(10, check)


# --- from a milestone on ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _pruned(
    monkeypatch: pytest.MonkeyPatch, length: int = 12
) -> AsyncIterator[tuple[RoundWorld, list[MadeCommit]]]:
    """Party 0 has so many commits, and has forgotten those before the milestone of round 6. Party 1 has none of them."""
    monkeypatch.setattr(lineage, "MAX_DEPTH", 4)
    async with open_world() as world:
        donor = world.parties[0]
        made = await world.grow([donor], 6)
        donor.milestones.take([world.milestone_at(made[5])], "the host")
        made += await world.grow([donor], length - 6)
        assert donor.chain.line.root.index == 6
        donor.serve_fetches()
        yield world, made


def _serve_without_milestones(donor: Party) -> None:
    service = TransferService(UNIT, donor.log, donor.generations, GRID, donor.chain.line.after)

    async def serve(peer: PeerId, stream: Stream) -> None:
        await service.serve(peer, await read_request(stream), stream)

    donor.network.serve_streams(FETCH_CHANNEL, serve)


async def _catches_up(world: RoundWorld, newcomer: Party) -> int:
    donors = [world.parties[0].peer]
    return await catch_up_by_snapshot(newcomer.network, newcomer.chain, donors, lambda progress: None)


async def test_a_newcomer_begins_at_the_newest_milestone_that_the_host_gave_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        newcomer, donor = world.parties[1], world.parties[0]
        newcomer.milestones.take([world.milestone_at(made[8])], "the host")
        assert await _catches_up(world, newcomer) == 12
        chain = newcomer.chain
        assert chain.line.root == made[8].link
        assert chain.head.index == 11, "no commit attests the newest state"
        await made[11].write_results(newcomer)
        await apply_whole(chain, made[11].link, made[11].certificate)
        assert chain.root == donor.chain.root


async def test_a_newcomer_gets_milestones_from_members_while_the_host_is_away(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        newcomer = world.parties[1]
        assert await _catches_up(world, newcomer) == 12
        assert newcomer.chain.line.root == made[5].link
        assert newcomer.milestones.sealed == world.parties[0].milestones.sealed


async def test_a_milestone_that_a_donor_forged_begins_nothing(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        liar, newcomer = world.parties[0], world.parties[1]
        forged = world.milestone_at(made[6], liar.signer)
        service = TransferService(UNIT, liar.log, liar.generations, GRID, liar.chain.line.after, lambda: [forged, b"x"])

        async def serve(peer: PeerId, stream: Stream) -> None:
            await service.serve(peer, await read_request(stream), stream)

        liar.network.serve_streams(FETCH_CHANNEL, serve)
        with capture_logs() as logs:
            assert await _catches_up(world, newcomer) == 0
        assert [line["event"] for line in logs if "milestone" in line["event"]] == ["milestone_refused"] * 2
        assert newcomer.chain.head == world.start


async def test_who_can_go_on_from_its_own_commits_does_so_whatever_milestone_lies_ahead(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        late = world.parties[1]
        for commit in made[:8]:
            await late.apply(commit)
        late.milestones.take([world.milestone_at(made[9])], "the host")
        assert await _catches_up(world, late) == 12
        assert late.chain.line.root == world.start


async def test_who_was_away_for_too_long_begins_at_a_milestone_and_says_so(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        late = world.parties[1]
        for commit in made[:3]:
            await late.apply(commit)
        await late.chain.log_contribution(made[2].link.commit, LoggedContribution(made[2].record.parent, 1, 77))
        late.milestones.take([world.milestone_at(made[8])], "the host")
        with capture_logs() as logs:
            assert await _catches_up(world, late) == 12
        assert "begins_at_milestone" in [line["event"] for line in logs]
        assert (late.chain.line.root, late.chain.head.index) == (made[8].link, 11)
        assert late.chain.data_position() == 77, "no step is taken twice"
        await late.restart()
        assert (late.chain.line.root, late.chain.head.index) == (made[8].link, 11)


async def test_who_was_away_for_too_long_gets_a_milestone_from_a_member_while_the_host_is_away(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        late = world.parties[1]
        for commit in made[:3]:
            await late.apply(commit)
        assert not late.milestones.sealed
        assert await _catches_up(world, late) == 12
        assert (late.chain.line.root, late.chain.head.index) == (made[5].link, 11)


async def test_who_was_away_for_too_long_stays_where_it_is_if_no_donor_has_a_milestone(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        late, donor = world.parties[1], world.parties[0]
        for commit in made[:3]:
            await late.apply(commit)
        _serve_without_milestones(donor)
        assert await _catches_up(world, late) == 0
        assert late.chain.head == made[2].link


async def test_a_milestone_behind_our_own_head_moves_nobody_back(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        ahead = world.parties[1]
        for commit in made[:3]:
            await ahead.apply(commit)
        own = await world.grow([ahead], 0) or [world.commit_on(made[2].link, 50)]
        for number in range(8):
            await ahead.apply(own[-1])
            own.append(world.commit_on(own[-1].link, 60 + number))
        ahead.milestones.lines[UNIT] = ahead.chain.line.commit_at
        with capture_logs() as logs:
            ahead.milestones.take([world.milestone_at(made[8])], "the host")
            await _catches_up(world, ahead)
        assert "our certificates" in logs[0]["reason"]
        assert ahead.chain.head.index == 11
        assert ahead.chain.line.root == world.start


async def test_who_lost_its_state_after_a_milestone_takes_any_that_is_attested(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _pruned(monkeypatch) as (world, made):
        late, donor = world.parties[1], world.parties[0]
        late.milestones.take([world.milestone_at(made[5])], "the host")
        await _catches_up(world, late)
        for name in late.generation_names():
            late.spoil(name)
        await late.restart()
        assert late.chain.lacks_state
        await trio.sleep(SHARED_S)
        made += await world.grow([donor], 2)
        late.milestones.take([world.milestone_at(made[5])], "the host")
        assert await _catches_up(world, late) == 14
        assert (late.chain.lacks_state, late.chain.head.index) == (False, 13)
