"""A newcomer beside a running swarm in virtual time: a whole state where replaying would move more bytes."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
import trio

from averaging.network.seams.interfaces import Offload, Stream
from averaging.rounds.fetching.download import MAX_DONORS
from averaging.rounds.lineage.round_reports import DownloadProgress
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, read_request
from averaging.state.generations import Generations
from averaging.state.state import is_absent, state_root
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from peer.session.catch_up import COMMITS_WITHIN_S, catch_up_by_snapshot
from protocol.errors import StorageError
from protocol.identity.names import peer_name
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.chain import attested_roots
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.requests import FetchCommits, FetchRequest
from protocol.rounds.messages.wire import decode_certificate, encode_certificate
from tests.averaging.rounds.round_world import raws_of
from tests.simulation import virtual_time
from tests.simulation.node import SimulatedOffload
from tests.simulation.swarm import World

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


def _after(num_rounds: int, check: Callable[[World], Awaitable[None]]) -> str:
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
        assert len(failures) == 1
        assert failures[0].startswith(f"{peer_name(PeerId('nobody'))} cannot help: ")
        assert chain.head.index >= 9
        assert donor.service is not None
        roots = attested_roots(donor.service.chain.links)
        assert world.observed.roots[chain.head.commit] == chain.root == roots.get(chain.head.commit, chain.root)
        assert reported
        again = new_chain(world, disk)
        await again.restore()
        assert (again.head.commit, again.root) == (chain.head.commit, chain.root)
        world.trace.add(chain.head.commit.hex())

    assert _after(10, check) == _after(10, check)


def test_a_newcomer_at_the_beginning_replays_and_takes_no_state() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [world.nodes[0].peer], lambda progress: None)
        assert chain.head.index == 0

    _after(2, check)


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

    _after(10, check)


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

    _after(10, check)


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
        assert [type(request) for request in asked] == [FetchCommits, FetchCommits]
        assert trio.current_time() - began_s < COMMITS_WITHIN_S / 2

    _after(10, check)


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

    _after(10, check)


def test_only_so_many_donors_are_asked_for_their_commits() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        empty = [_serve_commits(world, f"empty-{number}", iter(())) for number in range(MAX_DONORS + 3)]
        await catch_up_by_snapshot(
            world.swarm.start(NEWCOMER), chain, [peer for peer, _ in empty], lambda progress: None
        )
        assert [len(asked) for _, asked in empty] == [1] * MAX_DONORS + [0] * 3

    _after(1, check)


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

    _after(10, check)


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

    _after(10, check)


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

    _after(10, check)
