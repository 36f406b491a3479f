"""What the host keeps of experts, beside a swarm in virtual time: fetched from holders, kept over a restart, given on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from averaging.network.memory_storage import MemoryDisk, MemoryStorage
from averaging.rounds.transfer import fetch_commits
from averaging.rounds.unit import UnitChain
from averaging.state import state_root
from averaging.unit_log import LOG_NAME
from coordinator.stood_on import PATIENCE_S
from coordinator.unit_keeper import KeeperView, KeptPlace, UnitKeeper
from coordinator.unit_keeper_core import UnitLook, look_of
from peer.kept_unit import take_kept
from protocol.errors import PotluckError
from protocol.ids import PeerId, UnitName
from tests.averaging.rounds.round_world import UNIT, open_world
from tests.averaging.rounds.test_trailing import begin, grow
from tests.peer.test_snapshot_join import NEWCOMER, new_chain
from tests.simulation import virtual_time
from tests.simulation.keeping import KEEPER, SimulatedKeeper
from tests.simulation.layouts import EXPERTS
from tests.simulation.profiles import Profile
from tests.simulation.swarm import World

SEED = 5
EXPERT = UnitName("expert-0")


def _index(world: World) -> int:
    return max(node.index_of(EXPERT) for node in world.nodes)


async def _newcomer(world: World) -> UnitChain:
    chain = new_chain(world, MemoryDisk(), EXPERT)
    await chain.restore()
    return chain


def _run(num_rounds: int, every_rounds: int) -> None:
    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            world, disk = World(SEED, nursery, num_peers=6, num_founders=6, profile=PROFILE), MemoryDisk()
            host = SimulatedKeeper(world, disk, every_rounds)
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: _index(world) >= num_rounds, 900.0, "the rounds")
            for node in list(world.holders(EXPERT)):
                node.crash()
            last = _index(world)
            await world.swarm.timers.sleep(60.0)
            kept = host.kept[EXPERT]
            assert last - every_rounds <= kept <= last
            await _check(world, kept)
            world.swarm.kill(KEEPER)
            again = SimulatedKeeper(world, disk, every_rounds)
            await world.wait_for(lambda: again.kept.get(EXPERT) == kept, 60.0, "the restart")
            await _check(world, kept)
            state = await again.keeper.newest(EXPERT)
            assert state is not None, "for the next checkpoint"
            assert (state.index, state_root(state, world.grid)) == (kept, world.observed_of[EXPERT].roots[state.head])
            nursery.cancel_scope.cancel()

    virtual_time.run(SEED, tell)


PROFILE = Profile("experts", layout=EXPERTS)


async def _check(world: World, kept: int) -> None:
    chain = await _newcomer(world)
    network = world.swarm.start(NEWCOMER)
    assert await take_kept(network, chain, KEEPER)
    assert chain.head.index == kept
    assert world.observed_of[EXPERT].roots[chain.head.commit] == chain.root
    assert not await take_kept(network, chain, KEEPER), "there is no more of it"
    world.swarm.end(network)


@pytest.mark.parametrize(("num_rounds", "every_rounds"), [(3, 1), (9, 3)])
def test_who_takes_up_an_expert_that_nobody_holds_has_what_its_holders_had_also_after_a_restart_of_the_host(
    num_rounds: int, every_rounds: int
) -> None:
    _run(num_rounds, every_rounds)


def test_what_is_read_for_a_checkpoint_beside_the_visits_is_whole_and_changes_none() -> None:
    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            world = World(SEED, nursery, num_peers=6, num_founders=6, profile=PROFILE)
            host = SimulatedKeeper(world, MemoryDisk())
            assert await host.keeper.newest(EXPERT) is None
            for node in world.nodes:
                world.boot(node)
            read: set[int] = set()
            with trio.fail_after(900.0):
                while len(read) < 4:
                    await trio.sleep(0.3)
                    state = await host.keeper.newest(EXPERT)
                    if state is not None:
                        assert state_root(state, world.grid) == world.observed_of[EXPERT].roots[state.head]
                        read.add(state.index)
            nursery.cancel_scope.cancel()

    virtual_time.run(SEED, tell)


def test_a_damaged_log_is_fetched_anew_and_strangers_are_given_nothing() -> None:
    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            world, disk = World(SEED, nursery, num_peers=6, num_founders=6, profile=PROFILE), MemoryDisk()
            await MemoryStorage(disk, EXPERT).append(LOG_NAME, b"?")
            host = SimulatedKeeper(world, disk)
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: host.kept.get(EXPERT, 0) >= 2, 900.0, "the rounds")
            stranger = world.swarm.start(PeerId("stranger"))
            with pytest.raises(PotluckError):
                await fetch_commits(stranger, KEEPER, EXPERT, [world.genesis(EXPERT).head])
            nursery.cancel_scope.cancel()

    virtual_time.run(SEED, tell)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_lineage_whose_holders_are_gone_is_given_up_after_a_minute_for_the_one_that_is_held() -> None:
    async with open_world(target_tokens=300) as world, trio.open_nursery() as nursery:
        light, heavy, keeper = world.parties
        await begin(light, heavy)
        await grow(world, [light, heavy], 2)
        await grow(world, [light], 2, 50)
        await grow(world, [heavy], 8, 80)
        live, kept = [heavy, light], dict[UnitName, int]()

        def looks() -> list[UnitLook]:
            told = {party.peer: party.chain.head.index for party in live}
            return [look_of(UNIT, told, {party.peer: party.chain.head.commit for party in live})]

        async def chain() -> UnitChain:
            keeper.boot()
            return keeper.chain

        async def reach(_peers: Sequence[PeerId]) -> None: ...

        async def is_member(_peer: PeerId) -> bool:
            return True

        view = KeeperView(looks, is_member, kept.__setitem__, reach)
        place = KeptPlace(MemoryStorage(keeper.disk), chain)
        host = UnitKeeper(world.stranger.network, {UNIT: place}, view, 1)
        nursery.start_soon(host.run)
        await trio.sleep(10.0)
        assert kept == {UNIT: heavy.chain.head.index}
        await trio.sleep(2 * PATIENCE_S)
        assert kept == {UNIT: heavy.chain.head.index}, "a holder of it is there"
        heavy.crash()
        live.remove(heavy)
        await trio.sleep(PATIENCE_S)
        assert kept == {UNIT: heavy.chain.head.index}, "it may come back"
        await trio.sleep(PATIENCE_S)
        assert kept == {UNIT: light.chain.head.index}
        await grow(world, [light], 1, 60)
        await trio.sleep(PATIENCE_S)
        assert keeper.chain.head == light.chain.head, "what comes after it is kept as ever"
        nursery.cancel_scope.cancel()
