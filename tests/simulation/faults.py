"""The faults: each begins, lasts, and takes itself back, also when its story is cut short."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from averaging.network.memory.memory_network import LinkSpeed
from averaging.rounds.unit_service import RoundService
from protocol.ids import PeerId, UnitName
from tests.simulation.bad_donor import HARMS
from tests.simulation.full_disk import full_disk
from tests.simulation.invariants import Violation
from tests.simulation.node import Node
from tests.simulation.seeds import seed_dead
from tests.simulation.swarm import World

RETURNS = 0.3
"""Share of those who left that come back."""

UNHEARD = 0.5
"""Share of the identities with two processes that the host does not hear until one is left."""

MID_ROUND_WITHIN_S = 15.0
"""How long a fault waits for the middle of a round."""

SLOW_LEAVE_BYTES_PER_S = (200.0, 6_000.0)
"""Of a vector of 16384 values a slice takes from half a second to as long as rounds have."""

SLOW_LEAVE_WITHIN_S = 4.0
"""How long after the beginning of an exchange a peer says goodbye at the latest."""

Fault = Callable[[World, random.Random, float], Awaitable[None]]
"""(world, chooser, how long it lasts in seconds)."""


def _awake(world: World) -> list[Node]:
    return [node for node in world.live_nodes() if not node.process.is_frozen]


def _may_be_too_few(world: World) -> bool:
    """Whether one more that is away could leave a roster of which liars are half."""
    honest = [node for node in world.nodes if node.peer not in world.liars]
    return bool(world.liars) and any(not node.is_up or node.process.is_frozen for node in honest)


async def _join(world: World, chooser: random.Random, lasts_s: float) -> None:
    node = world.add_node()
    world.happened("join", node.name)
    world.boot(node)


async def _leave(world: World, chooser: random.Random, lasts_s: float) -> None:
    nodes = _awake(world)
    if len(nodes) < 3:
        return
    node = chooser.choice(nodes)
    world.happened("leave", node.name)
    node.leave()
    await world.swarm.timers.sleep(lasts_s)
    if node.has_left and chooser.random() < RETURNS:
        world.boot(node)


async def _slow_leave(world: World, chooser: random.Random, lasts_s: float) -> None:
    """A peer says goodbye while the bytes of a round are on their way over a slow line, its own or another's: within the exchange,
    or as soon as it acked a record whose bytes others may not have.
    """
    nodes = _awake(world)
    if len(nodes) < 3:
        return
    slow = chooser.choice(nodes)
    leaver = chooser.choice([slow, chooser.choice(nodes)])
    has_acked = chooser.random() < 0.5
    later_s = 0.0 if has_acked else chooser.uniform(0.0, SLOW_LEAVE_WITHIN_S)
    world.swarm.speeds[slow.peer] = LinkSpeed(chooser.uniform(0.02, 0.3), chooser.uniform(*SLOW_LEAVE_BYTES_PER_S))
    try:
        await _mid_round(world, [leaver], world.layout.spine, _has_acked if has_acked else _exchanges)
        await world.swarm.timers.sleep(later_s)
        if leaver not in _awake(world) or len(_awake(world)) < 3:
            return
        world.happened("slow leave", f"{leaver.name}, while the line of {slow.name} is slow")
        leaver.leave()
        await world.swarm.timers.sleep(lasts_s)
    finally:
        world.swarm.speeds.pop(slow.peer, None)
    if leaver.has_left and chooser.random() < RETURNS:
        world.boot(leaver)


def _exchanges(service: RoundService) -> bool:
    return service.state.open.exchange is not None


def _has_acked(service: RoundService) -> bool:
    return service.state.open.acked is not None and service.state.open.committing is None


async def _mid_round(
    world: World, nodes: list[Node], unit: UnitName, is_there: Callable[[RoundService], bool] = _exchanges
) -> None:
    """Until one of these comes to a place in a round of a unit, where that comes soon."""

    def is_any() -> bool:
        return any(is_there(node.services[unit]) for node in nodes if node.is_up and unit in node.services)

    deadline_s = trio.current_time() + MID_ROUND_WITHIN_S
    while not is_any() and trio.current_time() < deadline_s:
        await world.swarm.timers.sleep(0.2)


async def _crash(world: World, chooser: random.Random, lasts_s: float) -> None:
    nodes = world.live_nodes()
    if not nodes or _may_be_too_few(world):
        return
    node = chooser.choice(nodes)
    world.happened("crash", node.name)
    node.crash()
    await world.swarm.timers.sleep(lasts_s)
    restart(world, node)


async def _holders_die(world: World, chooser: random.Random, lasts_s: float) -> None:
    """All holders of one expert die, in the middle of its round where that comes soon, and are back one after another."""
    unit = chooser.choice(world.layout.units[1:])
    await _mid_round(world, world.nodes, unit)
    nodes = list(world.holders(unit))
    if not nodes:
        return
    world.happened("holders die", f"{unit} {[node.name for node in nodes]}")
    for node in nodes:
        node.crash()
    await world.swarm.timers.sleep(lasts_s)
    for node in nodes:
        restart(world, node)
        await world.swarm.timers.sleep(chooser.uniform(0.0, 2.0))


def restart(world: World, node: Node) -> None:
    """Start a crashed process again on the disk that it left."""
    if node.is_up or node.has_left:
        return
    world.happened("restart", node.name)
    world.boot(node)


async def _blackout(world: World, chooser: random.Random, lasts_s: float) -> None:
    """The power goes for everybody at once, and comes back for one after another."""
    nodes = world.live_nodes()
    if not nodes:
        return
    world.happened("blackout")
    for node in nodes:
        node.crash()
    chooser.shuffle(nodes)
    for node in nodes:
        await world.swarm.timers.sleep(lasts_s / len(nodes))
        restart(world, node)


async def _disk_rot(world: World, chooser: random.Random, lasts_s: float) -> None:
    """A bit flips on the disk of a peer that is down."""
    nodes = world.live_nodes()
    if len(nodes) < 3:
        return
    node = chooser.choice(nodes)
    node.crash()
    await world.swarm.timers.sleep(lasts_s)
    if not node.is_up:
        world.happened("disk rot", f"{node.name} {node.damage_disk(chooser)}")
        restart(world, node)


async def _freeze(world: World, chooser: random.Random, lasts_s: float) -> None:
    nodes = _awake(world)
    if not nodes or _may_be_too_few(world):
        return
    node = chooser.choice(nodes)
    session = node.session
    world.happened("freeze", node.name)
    node.freeze()
    try:
        await world.swarm.timers.sleep(lasts_s)
    finally:
        if node.session == session:
            node.thaw()


async def _bit_rot(world: World, chooser: random.Random, lasts_s: float) -> None:
    nodes = [node for node in _awake(world) if node.service is not None]
    if len(nodes) < 3 or any(node.is_rotten for node in world.nodes):
        return  # two wrong states of four would outvote nobody, and be nobody's fault
    node = chooser.choice(nodes)
    world.happened("bit rot", node.name)
    node.rot(chooser)


async def _bad_donor(world: World, chooser: random.Random, lasts_s: float) -> None:
    """One peer harms whoever fetches from it."""
    nodes = [node for node in _awake(world) if node.donor.harm is None]
    if len(nodes) < 3:
        return
    node, harm = chooser.choice(nodes), chooser.choice(HARMS)
    world.happened("bad donor", f"{node.name} {harm}")
    node.donor.harm = harm
    try:
        await world.swarm.timers.sleep(lasts_s)
    finally:
        node.donor.harm = None


async def _ban(world: World, chooser: random.Random, lasts_s: float) -> None:
    """The host sends one peer away for good. Their reports get through one after another, its own last: it goes on until then."""
    nodes = _awake(world)
    if len(nodes) < 4 or world.host.has_banned or world.has_dead_seed:
        return  # a second one might take half of a roster away that waits for both for ever
    node = chooser.choice(nodes)
    node.has_left = True
    others = [other for other in world.nodes if other is not node]
    chooser.shuffle(others)
    world.happened("ban", node.name)
    host = world.host
    host.cut_off |= {other.peer for other in world.nodes}
    host.ban(node.peer)
    try:
        for other in others:
            host.cut_off.discard(other.peer)
            await world.swarm.timers.sleep(lasts_s / len(others))
    finally:
        host.cut_off.clear()
    host.ban(node.peer)  # once more where the host came back with an old copy before anybody had heard of it
    if node.is_up:
        host.hear(node)


async def _second_process(world: World, chooser: random.Random, lasts_s: float) -> None:
    """Somebody copies an identity to another machine and starts it there while it runs here: the newer closes the older, which hears
    of it from the host, or where that does not hear it from the directory.
    """
    nodes = [
        node
        for node in _awake(world)
        if node.index > 0 and not node.has_left and not node.is_rotten and world.host.hears(node)
    ]
    nodes = [node for node in nodes if node.donor.harm is None and not world.host.is_banned(node.peer)]
    if not nodes:
        return
    older = chooser.choice(nodes)
    world.happened("second process", older.name)
    newer = world.start_elsewhere(older)
    if older.standing is not None and chooser.random() < UNHEARD:
        world.host.cut_off.add(older.peer)
    try:
        await world.wait_for(lambda: not older.is_up, world.profile.converge_s, f"the end of {older.name}")
    finally:
        world.host.cut_off.discard(older.peer)
    if newer.is_up and newer.session <= older.session:
        raise Violation(f"{newer.name} has session {newer.session}, the older one had {older.session}")


# --- links --------------------------------------------------------------------------------------------------------------------


@contextmanager
def _cut(world: World, one: list[PeerId], other: list[PeerId], *, both_ways: bool = True) -> Iterator[None]:
    world.swarm.cut(one, other, both_ways=both_ways)
    try:
        yield
    finally:
        world.swarm.mend(one, other, both_ways=both_ways)
        world.trace.add("a cut heals")


def _shuffled(world: World, chooser: random.Random) -> list[PeerId]:
    peers = [node.peer for node in world.nodes]
    chooser.shuffle(peers)
    return peers


async def _two_sides(world: World, chooser: random.Random, lasts_s: float) -> None:
    peers = _shuffled(world, chooser)
    middle = chooser.randint(1, len(peers) - 1)
    world.happened("two sides", f"{peers[:middle]}")
    with _cut(world, peers[:middle], peers[middle:]):
        await world.swarm.timers.sleep(lasts_s)


async def _three_sides(world: World, chooser: random.Random, lasts_s: float) -> None:
    peers = _shuffled(world, chooser)
    if len(peers) < 3:
        return
    first, second = sorted(chooser.sample(range(1, len(peers)), 2))
    world.happened("three sides", f"{peers} {first} {second}")
    one, two, three = peers[:first], peers[first:second], peers[second:]
    with _cut(world, one, two), _cut(world, two, three), _cut(world, one, three):
        await world.swarm.timers.sleep(lasts_s)


async def _one_way(world: World, chooser: random.Random, lasts_s: float) -> None:
    """One peer sends and hears nobody, or hears and cannot send."""
    peers = _shuffled(world, chooser)
    one, others = peers[:1], peers[1:]
    is_deaf = chooser.random() < 0.5
    world.happened("one way", f"{one} {'deaf' if is_deaf else 'mute'}")
    with _cut(world, others if is_deaf else one, one if is_deaf else others, both_ways=False):
        await world.swarm.timers.sleep(lasts_s)


async def _pair(world: World, chooser: random.Random, lasts_s: float) -> None:
    peers = _shuffled(world, chooser)
    world.happened("pair", f"{peers[:2]}")
    with _cut(world, peers[:1], peers[1:2]):
        await world.swarm.timers.sleep(lasts_s)


async def _coordinator(world: World, chooser: random.Random, lasts_s: float) -> None:
    """Nobody reaches the host, nor the directory that it answers for: peers go on with whom they know, newcomers wait."""
    world.happened("coordinator")
    with world.host.away():
        await world.swarm.timers.sleep(lasts_s * 3)


async def _host_restart(world: World, chooser: random.Random, lasts_s: float) -> None:
    """The host's machine is away for a time, and its process starts again on the disk that it left."""
    world.happened("host restart")
    with world.host.away():
        await world.swarm.timers.sleep(lasts_s)
        world.host.restart()


async def _host_restored(world: World, chooser: random.Random, lasts_s: float) -> None:
    """The host's disk is lost, and it starts again from a copy of before: peers bring what the copy lacks."""
    copy = world.host.copy()
    await world.swarm.timers.sleep(lasts_s)
    world.happened("host restored")
    with world.host.away():
        await world.swarm.timers.sleep(lasts_s / 2)
        world.host.restart(copy)


async def _slow_link(world: World, chooser: random.Random, lasts_s: float) -> None:
    peer = chooser.choice(world.nodes).peer
    speed = LinkSpeed(chooser.uniform(0.1, 1.0), chooser.uniform(2_000.0, 50_000.0))
    world.happened("slow link", f"{peer} {speed.latency_s:.2f} s")
    world.swarm.speeds[peer] = speed
    try:
        await world.swarm.timers.sleep(lasts_s)
    finally:
        world.swarm.speeds.pop(peer, None)


async def _lossy_link(world: World, chooser: random.Random, lasts_s: float) -> None:
    peer, loss = chooser.choice(world.nodes).peer, chooser.uniform(0.05, 0.5)
    world.happened("lossy link", f"{peer} {loss:.2f}")
    world.swarm.losses[peer] = loss
    try:
        await world.swarm.timers.sleep(lasts_s)
    finally:
        world.swarm.losses.pop(peer, None)


async def _duplicates(world: World, chooser: random.Random, lasts_s: float) -> None:
    world.happened("duplicates")
    world.swarm.duplicated = chooser.uniform(0.1, 0.6)
    try:
        await world.swarm.timers.sleep(lasts_s)
    finally:
        world.swarm.duplicated = 0.0


async def _resets(world: World, chooser: random.Random, lasts_s: float) -> None:
    world.happened("resets")
    world.swarm.broken = chooser.uniform(0.02, 0.3)
    try:
        await world.swarm.timers.sleep(lasts_s)
    finally:
        world.swarm.broken = 0.0


async def _reordering(world: World, chooser: random.Random, lasts_s: float) -> None:
    world.happened("reordering")
    world.swarm.reorder_s = chooser.choice((0.05, 0.3, 1.0))
    try:
        await world.swarm.timers.sleep(lasts_s)
    finally:
        world.swarm.reorder_s = 0.0


FAULTS: dict[str, Fault] = {
    "join": _join,
    "leave": _leave,
    "slow leave": _slow_leave,
    "crash": _crash,
    "freeze": _freeze,
    "bit rot": _bit_rot,
    "bad donor": _bad_donor,
    "ban": _ban,
    "blackout": _blackout,
    "holders die": _holders_die,
    "second process": _second_process,
    "disk rot": _disk_rot,
    "full disk": full_disk,
    "seed dead": seed_dead,
    "two sides": _two_sides,
    "three sides": _three_sides,
    "one way": _one_way,
    "pair": _pair,
    "coordinator": _coordinator,
    "host restart": _host_restart,
    "host restored": _host_restored,
    "slow link": _slow_link,
    "lossy link": _lossy_link,
    "duplicates": _duplicates,
    "resets": _resets,
    "reordering": _reordering,
}
