"""Seeds: by whom a peer comes to the directory. The host is one; the invite names others, or they were there when the peer was here.

In worlds with credentials a peer finds the directory by any of them that it can reach, as a DHT node does that dials its first peers.
One seed that is dead, for long or for good, must stop nobody: not a newcomer, and with the host away not one who comes back.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import trio

from protocol.ids import PeerId
from tests.simulation.invariants import Violation

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.swarm import World

FOUND_WITHIN_S: Final = 20.0
"""Of somebody that it knew being there all the time: records are looked up every second while there are none."""

FOR_GOOD: Final = 0.5
"""Share of the dead seeds that never come back."""

DEAD_FOR: Final = 3.0
"""Others are away for so many times the length of a fault."""

LOOK_EVERY_S: Final = 0.25


def has_way_in(world: World, peer: PeerId) -> bool:
    """Whether any of a peer's ways into the directory leads there."""
    if world.host.is_reachable:
        return True
    node = next(node for node in world.nodes if node.peer == peer)
    if node.standing is None:
        return False
    listed = node.roster.lasting_addresses() if node.roster is not None else ()
    return any(_leads(world, node, seed) for seed in _named((*node.standing.dialled, *listed)))


def _named(addresses: tuple[str, ...]) -> dict[str, None]:
    return dict.fromkeys(address.rpartition("/p2p/")[2] for address in addresses)


def _leads(world: World, node: Node, seed: str) -> bool:
    return any(
        other.peer == seed
        and other.is_up
        and not other.process.is_frozen
        and world.swarm.is_passable(node.peer, other.peer)
        and world.swarm.is_passable(other.peer, node.peer)
        for other in world.nodes
        if other is not node
    )


async def seed_dead(world: World, chooser: random.Random, lasts_s: float) -> None:
    """The seed that somebody names first dies. A newcomer comes whose invite names it, and with the host away that peer comes back."""
    awake = [node for node in world.live_nodes() if not node.process.is_frozen and not node.disk.is_full]
    names = {node: next(iter(_named(node.standing.disk.peer_addresses)), "") for node in awake if node.standing}
    backs = [(node, other) for node, name in names.items() for other in awake if other.peer == name]
    if len(awake) < 4 or not backs:
        return
    back, seed = chooser.choice(backs)
    is_for_good = chooser.random() < FOR_GOOD and not world.host.has_banned and not world.has_dead_seed
    world.happened("seed dead", f"{seed.name}{' for good' if is_for_good else ''}, first of {back.name}")
    seed.crash()
    if is_for_good:
        world.has_dead_seed = seed.has_left = True
    newcomer = world.add_node()
    if newcomer.standing is not None and back.standing is not None:
        newcomer.standing.invited_by = back.standing.disk.peer_addresses[:1]
    world.happened("join", newcomer.name)
    world.boot(newcomer)
    await _come_back(world, back)
    await world.wait_for(
        lambda: newcomer.has_left or not newcomer.is_up or _has_found(newcomer),
        world.profile.converge_s,
        f"{newcomer.name}, whose invite names {seed.name}, finds the run",
    )
    await world.swarm.timers.sleep(DEAD_FOR * lasts_s)
    if not seed.is_up and not seed.has_left:
        world.happened("restart", seed.name)
        world.boot(seed)


def _has_found(node: Node) -> bool:
    return node.roster is not None and bool(node.roster.listed())


async def _come_back(world: World, node: Node) -> None:
    """Raises Violation where it does not find the run, though some of those who were there when it went are there all the time."""
    known, before = node.roster.listed() if node.roster is not None else (), node.roster
    node.crash()
    with world.host.away():
        await world.swarm.timers.sleep(1.0)
        if node.is_up or node.has_left:
            return
        world.happened("restart", node.name)
        world.boot(node)
        since_s = trio.current_time()
        while node.roster is before or not _has_found(node):
            if not any(_leads(world, node, peer) for peer in known):
                since_s = trio.current_time()
                if not known:
                    return
            if trio.current_time() - since_s > FOUND_WITHIN_S:
                raise Violation(f"{node.name} does not find the run: of its ways in the first and the host are dead")
            await world.swarm.timers.sleep(LOOK_EVERY_S)
            if not node.is_up or node.process.is_frozen:
                return  # another fault has it
        world.happened("way in", node.name)
