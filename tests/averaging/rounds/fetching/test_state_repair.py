"""A state that is damaged in memory, in a swarm in virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from averaging.rounds.traffic.transfer import ask_generation
from protocol.ids import PeerId
from tests.simulation import virtual_time
from tests.simulation.profiles import Profile
from tests.simulation.swarm import World

NUM_PEERS = 4


async def _swarm(story: Callable[[World], Awaitable[None]], seed: int) -> None:
    async with trio.open_nursery() as nursery:
        world = World(seed, nursery, NUM_PEERS, NUM_PEERS, Profile("healing"))
        for node in world.nodes:
            world.boot(node)
        await world.wait_for(lambda: min(node.index for node in world.nodes) >= 3, 200.0, "three rounds")
        await story(world)
        nursery.cancel_scope.cancel()


def _run(story: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    virtual_time.run(seed, partial(_swarm, story, seed))


async def _see_it_healed(world: World, num_rounds: int) -> None:
    index = world.rounds()
    await world.wait_for(lambda: world.faults["healing"] >= 1, 200.0, "healing")
    await world.wait_for(lambda: min(node.index for node in world.nodes) >= index + num_rounds, 200.0, "rounds")
    last = world.observed.lineage(world.nodes[0].service.chain.head.commit)[-1]  # type: ignore[union-attr]
    assert len(last.record.contributors) == NUM_PEERS


def test_a_flipped_value_is_found_by_the_attested_root_and_the_state_is_made_again_from_the_own_disk() -> None:
    async def story(world: World) -> None:
        node = world.nodes[0]
        node.rot(random.Random(1))
        await _see_it_healed(world, 4)

    _run(story)


def test_where_the_own_disk_has_lost_what_it_was_made_of_the_state_comes_from_others() -> None:
    async def story(world: World) -> None:
        node = world.nodes[0]
        node.rot(random.Random(1))
        index = node.index
        await world.wait_for(lambda: node.index > index, 100.0, "one round on the damaged state")
        # what the state was made of is gone: only the damaged generation is left
        for name in [name for name in node.disk.files if f"{index + 1:012d}" not in name]:
            del node.disk.files[name]
        await _see_it_healed(world, 4)

    _run(story)


def test_meanwhile_it_serves_no_state() -> None:
    async def story(world: World) -> None:
        node = world.nodes[0]
        assert node.service is not None
        asker = world.swarm.start(PeerId("asker"))
        node.service.chain.is_sound = False
        assert await ask_generation(asker, node.peer, world.layout.spine) == ()
        node.service.chain.is_sound = True
        assert len(await ask_generation(asker, node.peer, world.layout.spine)) > 0

    _run(story)
