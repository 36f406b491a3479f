"""A newcomer beside a running swarm in virtual time: a whole state where replaying would move more bytes."""

from __future__ import annotations

import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.generations import Generations
from averaging.network.memory_storage import MemoryDisk, MemoryStorage
from averaging.network.offload import InlineOffload
from averaging.rounds.unit import UnitChain, UnitTools
from averaging.unit_log import UnitLog
from peer.snapshot_join import attested_roots, catch_up_by_snapshot
from protocol.ids import PeerId
from tests.simulation.swarm import GRID, RUN_ID, UNIT, World

NEWCOMER = PeerId("newcomer")


def _chain(world: World, disk: MemoryDisk) -> UnitChain:
    storage, offload = MemoryStorage(disk), InlineOffload()
    tools = UnitTools(
        RUN_ID,
        UNIT,
        world.verifier,
        codec_by_name("int8"),
        GRID,
        offload,
        UnitLog(storage),
        Generations(storage, GRID, offload),
    )
    return UnitChain(tools, world.start_record, world.genesis)


class _LyingFiles(dict[str, bytes]):
    """Every generation has one bit wrong: those that are there, and those that later rounds write."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        for name, data in files.items():
            self[name] = data

    def __setitem__(self, name: str, data: bytes) -> None:
        super().__setitem__(
            name, data[:-50] + bytes([data[-50] ^ 1]) + data[-49:] if name.startswith("generations/") else data
        )


async def _after(num_rounds: int, check: object) -> None:
    async with trio.open_nursery() as nursery:
        world = World(3, nursery, num_peers=3, num_founders=3)
        for node in world.nodes:
            world.boot(node)
        await world.wait_for(lambda: min(node.index for node in world.nodes) >= num_rounds, 900.0, "the rounds")
        await check(world)  # type: ignore[operator]
        nursery.cancel_scope.cancel()


async def test_a_newcomer_takes_an_attested_state_and_restarts_from_it(autojump_clock: trio.testing.MockClock) -> None:
    async def check(world: World) -> None:
        disk, told = MemoryDisk(), []
        chain = _chain(world, disk)
        await chain.restore()
        donor = world.nodes[0]
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [PeerId("nobody"), donor.peer], told.append)
        assert chain.head.index >= 9
        assert donor.service is not None
        roots = attested_roots(donor.service.chain.links)
        assert world.observed.roots[chain.head.commit] == chain.root == roots.get(chain.head.commit, chain.root)
        assert told
        again = _chain(world, disk)
        await again.restore()
        assert (again.head.commit, again.root) == (chain.head.commit, chain.root)

    await _after(10, check)


async def test_a_newcomer_at_the_beginning_replays_and_takes_no_state(autojump_clock: trio.testing.MockClock) -> None:
    async def check(world: World) -> None:
        chain = _chain(world, MemoryDisk())
        await chain.restore()
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [world.nodes[0].peer], lambda text: None)
        assert chain.head.index == 0

    await _after(2, check)


async def test_a_donor_that_lies_about_its_state_is_not_believed(autojump_clock: trio.testing.MockClock) -> None:
    async def check(world: World) -> None:
        liar = world.nodes[0]
        liar.disk.files = _LyingFiles(liar.disk.files)
        chain = _chain(world, MemoryDisk())
        await chain.restore()
        await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [liar.peer], lambda text: None)
        assert chain.head.index == 0
        await catch_up_by_snapshot(
            world.swarm.start(NEWCOMER), chain, [liar.peer, world.nodes[1].peer], lambda text: None
        )
        assert chain.head.index >= 9

    await _after(10, check)
