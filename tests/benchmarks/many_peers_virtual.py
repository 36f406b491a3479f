"""The cost of many peers for one another: whole swarms in virtual time, production services on in-memory seams.

Bytes are the peers' own payload, without TLS and TCP. They are counted over whole turns: as many rounds as it takes until every peer
has had a place in one, since a round takes 64 at most. A round is due when all peers together have trained for ROUND_S. A target of
fewer peers' work would be met again at once, since the work of those that had no place waits: a whole turn would pass within seconds,
in which leaders cannot hear of all, and places would be even over several turns only. Here the next round is due after a quarter of
ROUND_S or more, which is longer than the eight seconds in which 256 peers tell a leader what they have ready.

Heartbeats are sent by all alike, so long rounds would hide the busiest peer. Each row therefore also has the figure without calls.

A peer dies while no round is near and heartbeats are as rare as they become. It stops without a word: it refuses no connection, and
answers nothing.

All peers of a swarm share one process here. Each of them looks at all others at every tick, so a swarm costs the square of its size.
Large sizes are best run alone.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import structlog
import trio

from protocol.rounds.messages.bounds import MAX_MEMBERS
from protocol.rounds.queries import idle_patience_s, is_alive
from tests.benchmarks.results import Row, machine
from tests.simulation import swarm as worlds
from tests.simulation import trainer, virtual_time
from tests.simulation.node import Node
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.swarm import World

BENCH: Final = "many_peers"
SEED: Final = 5
NUM_ELEMENTS: Final = 1 << 19
FEW_ELEMENTS: Final = 1 << 14

NUM_CHUNKS: Final = 64
"""A slice for each member of a full round, as in a real run."""

NUM_DIRECTIONS: Final = 16
"""Of the trainers' work: bytes are the same wherever it goes."""

ROUND_S: Final = 120.0
LONGEST_ROUNDS: Final = 4
"""The longest interval, in rounds."""

MANY: Final = Profile(
    "many",
    num_elements=NUM_ELEMENTS,
    round_s=ROUND_S,
    longest_interval_s=LONGEST_ROUNDS * ROUND_S,
    list_every_s=60.0,
    tokens_per_s=50.0,
)
QUIET_ROUND_S: Final = 600.0
QUIET: Final = replace(
    MANY, num_elements=FEW_ELEMENTS, round_s=QUIET_ROUND_S, longest_interval_s=LONGEST_ROUNDS * QUIET_ROUND_S
)
"""A world in which heartbeats alone matter."""

QUIET_AFTER_S: Final = 60.0
"""From the start on heartbeats become rarer for so long, until they are SLOWEST_BEAT_S apart."""

LEAST_ROUNDS: Final = 2
MOST_TIMES_MEDIAN: Final = 3.0
MOST_NOTICE_S: Final = 120.0
LOOK_EVERY_S: Final = 1.0
GIVE_UP_S: Final = 3600.0


def _sent(world: World) -> list[Counter[str]]:
    """Bytes that each peer has sent so far, by channel; calls are one."""
    sent = []
    for node in world.nodes:
        counts = Counter({"calls": node.traffic.control_bytes_up})
        for each in node.traffic.bulk:
            counts[each.kind.channel] += each.bytes_up
        sent.append(counts)
    return sent


async def _round(world: World, index: int) -> None:
    await world.wait_for(lambda: min(node.index for node in world.live_nodes()) >= index, GIVE_UP_S, f"round {index}")


async def _noticed(world: World, dead: Node) -> list[float]:
    """How long each other peer that took it for alive takes to notice a peer that stops without a word."""
    unit, begun_s, found = world.layout.spine, trio.current_time(), dict[str, float]()

    def takes_for_alive(node: Node) -> bool:
        state = node.services[unit].state
        return is_alive(state, dead.peer, trio.current_time(), idle_patience_s(state))

    others = [node for node in world.live_nodes() if node is not dead and takes_for_alive(node)]
    dead.freeze()
    while len(found) < len(others):
        await world.swarm.timers.sleep(LOOK_EVERY_S)
        now_s = trio.current_time()
        if now_s > begun_s + GIVE_UP_S / 6:
            break
        for node in others:
            if node.name not in found and not takes_for_alive(node):
                found[node.name] = now_s - begun_s
    dead.thaw()  # a world with a frozen node never ends
    missing = [GIVE_UP_S] * (len(others) - len(found))
    return sorted([*found.values(), *missing])


def _booted(nursery: trio.Nursery, num_peers: int, profile: Profile) -> World:
    """A swarm that has just started; all its peers train equally fast."""
    world = World(SEED, nursery, num_peers, num_peers, profile)
    for node in world.nodes:
        node.tokens_per_s = profile.tokens_per_s
        world.boot(node)
    return world


async def _bytes_up(num_peers: int, num_rounds: int) -> list[Counter[str]]:
    async with trio.open_nursery() as nursery:
        world = _booted(nursery, num_peers, MANY)
        await _round(world, 1)
        before = _sent(world)
        await _round(world, 1 + num_rounds)
        sent = [after - first for after, first in zip(_sent(world), before, strict=True)]
        nursery.cancel_scope.cancel()
    return sent


async def _death(num_peers: int) -> list[float]:
    async with trio.open_nursery() as nursery:
        world = _booted(nursery, num_peers, QUIET)
        unit = world.layout.spine

        def know_each_other() -> bool:
            return all(
                unit in node.services and len(node.services[unit].state.peers) == num_peers - 1 for node in world.nodes
            )

        await world.wait_for(know_each_other, QUIET_ROUND_S / 4, "that all peers know each other")
        await world.swarm.timers.sleep(QUIET_AFTER_S)
        roster = world.nodes[0].services[unit].state.link.roster
        idle = [node for node in world.nodes if node.peer not in roster]
        noticed_s = await _noticed(world, (idle or world.nodes)[0])
        nursery.cancel_scope.cancel()
    return noticed_s


T = TypeVar("T")


def _played(world: Callable[[], Awaitable[T]]) -> T:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with replaced(worlds, NUM_CHUNKS=NUM_CHUNKS), replaced(trainer, MIN_DIRECTIONS=NUM_DIRECTIONS):
        return virtual_time.run(SEED, world)


def bytes_up(num_peers: int, num_rounds: int) -> list[Counter[str]]:
    """Bytes sent by each peer of a swarm over so many rounds after the first, by channel; the busiest peer comes last."""
    return sorted(_played(partial(_bytes_up, num_peers, num_rounds)), key=Counter.total)


def noticed(num_peers: int) -> list[float]:
    """Seconds until each other peer of a swarm took one that died for dead, in order."""
    return _played(partial(_death, num_peers))


def virtual_rows(sizes: Sequence[int]) -> Iterator[Row]:
    """The bytes of swarms of these sizes, each as it comes."""
    for num_peers in sizes:
        num_rounds = max(LEAST_ROUNDS, -(-num_peers // MAX_MEMBERS))
        sent = bytes_up(num_peers, num_rounds)
        most, median = sent[-1].total(), statistics.median(map(Counter.total, sent))
        seen = {"rounds": num_rounds, "most_bytes": most, "median_bytes": round(median), "busiest": dict(sent[-1])}
        about = seen | {"without_calls": round(_times_median(sent), 3), "machine": machine()}
        name = f"{num_peers} simulated peers: most bytes sent by one over the median"
        yield _row(name, most / median, "times", MOST_TIMES_MEDIAN, about)


def _times_median(sent: Sequence[Counter[str]]) -> float:
    """The most bytes of one peer over the median, without calls."""
    bulk = [each.total() - each["calls"] for each in sent]
    return max(bulk) / statistics.median(bulk)


def death_rows(sizes: Sequence[int]) -> Iterator[Row]:
    """How soon a death is noticed in swarms of these sizes."""
    for num_peers in sizes:
        noticed_s = noticed(num_peers)
        seen = {"first_s": noticed_s[0], "median_s": statistics.median(noticed_s), "peers": len(noticed_s)}
        name = f"{num_peers} simulated peers: a peer that stops without a word is dead to all after"
        yield _row(name, noticed_s[-1], "s", MOST_NOTICE_S, seen | {"machine": machine()})


def _row(metric: str, value: float, unit: str, limit: float, about: dict[str, object]) -> Row:
    met = value <= limit
    return Row(BENCH, metric, round(value, 3), unit, target=f"<= {limit:g}", met=met, trials=1, settings=about)
