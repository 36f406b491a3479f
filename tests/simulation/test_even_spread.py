"""Rounds of staggered fragments lie evenly over one round's work, and do so again soon after whatever befell the swarm."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from averaging.rounds.lineage.adoption import Mixing
from protocol.ids import CommitId, UnitName
from protocol.rounds import machine as core
from protocol.rounds.events import Event
from protocol.rounds.messages.messages import Proposal
from protocol.rounds.orders import Send
from protocol.rounds.state import RoundState, RoundStep
from tests.simulation import virtual_time
from tests.simulation.layouts import FRAGMENTS
from tests.simulation.profiles import Profile
from tests.simulation.swarm import World

ROUND_S = 20.0
PROFILE = Profile("spread", round_s=ROUND_S, longest_interval_s=300.0, layout=FRAGMENTS, mixing=Mixing(0.5, 500))
NUM_PEERS = 3
OFF = 0.08
"""Of a round's work: rounds are opened when a heartbeat has told of the tokens, a second late at most."""

Befalls = Callable[[World], Awaitable[None]]
Opened = dict[UnitName, list[float]]


async def _everybody_restarts(world: World) -> None:
    """At once: nothing is ready at anybody, so that all units are due at one time."""
    for node in world.nodes:
        node.crash()
    await world.swarm.timers.sleep(3.0)
    for node in world.nodes:
        world.boot(node)


async def _trainers_die(world: World) -> None:
    """One after another, each in another part of the round: of each unit other tokens are lost."""
    for number in range(6):
        for trainer in world.nodes[number % NUM_PEERS].trainers.values():
            trainer.lose_work()
        await world.swarm.timers.sleep(0.4 * ROUND_S)


async def _opened(befalls: Befalls, monkeypatch: pytest.MonkeyPatch) -> tuple[Opened, float]:
    """When the rounds of each unit were opened, and when whatever befell the swarm was over."""
    opened: Opened = {unit: [] for unit in FRAGMENTS.units}
    seen = set[tuple[UnitName, CommitId]]()
    real = core.step

    def step(before: RoundState, event: Event, now_s: float) -> RoundStep:
        taken = real(before, event, now_s)
        place = before.config.unit, before.link.commit
        is_one = any(isinstance(order, Send) and isinstance(order.message, Proposal) for order in taken.actions)
        if is_one and place not in seen:
            seen.add(place)
            opened[before.config.unit].append(trio.current_time())
        return taken

    monkeypatch.setattr(core, "step", step)
    async with trio.open_nursery() as nursery:
        world = World(3, nursery, NUM_PEERS, NUM_PEERS, PROFILE)
        nursery.start_soon(world.host.serve)
        for node in world.nodes:
            world.boot(node)
        await world.swarm.timers.sleep(2.0 * ROUND_S)
        await befalls(world)
        over_s, spine = trio.current_time(), opened[FRAGMENTS.spine]
        await world.wait_for(lambda: sum(at_s > over_s for at_s in spine) >= 5, 300.0, "five rounds")
        nursery.cancel_scope.cancel()
    return opened, over_s


@pytest.mark.parametrize("befalls", [_everybody_restarts, _trainers_die])
def test_two_rounds_after_whatever_befell_the_swarm_its_fragments_are_evenly_spread_again(
    befalls: Befalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They once stayed together for good where all were restarted at once, since all had the same tokens ready from then on."""
    opened, over_s = virtual_time.run(3, partial(_opened, befalls, monkeypatch))
    spine = [at_s for at_s in opened[FRAGMENTS.spine] if at_s > over_s]
    for begin_s, end_s in itertools.pairwise(spine[2:]):
        for place, unit in enumerate(FRAGMENTS.units):
            own = [(at_s - begin_s) / (end_s - begin_s) for at_s in opened[unit] if begin_s <= at_s < end_s]
            assert len(own) == 1
            assert abs(own[0] - place / len(FRAGMENTS.units)) < OFF
