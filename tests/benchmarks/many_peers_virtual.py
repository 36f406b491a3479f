"""The cost of many peers for one another: whole swarms in virtual time, production services on in-memory seams.

Bytes are the peers' own payload, without TLS and TCP. They are counted over whole turns: as many rounds as it takes until every peer
has had a place in one, since a round takes 64 at most. A peer that dies stops without a word: it refuses no connection, and answers
nothing.

All peers of a swarm share one process here. Each of them looks at all others at every tick, so a swarm costs the square of its size.
Among more peers each hears of another's tokens more rarely, and its first round comes later, too. Large sizes are best run alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

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
"""Of a world in which heartbeats alone matter."""

NUM_CHUNKS: Final = 64
"""A slice for each member of a full round, as in a real run."""

NUM_DIRECTIONS: Final = 16
"""Of the trainers' work: bytes are the same wherever it goes."""

ROUND_S: Final = 300.0
MANY: Final = Profile(
    "many",
    num_elements=NUM_ELEMENTS,
    round_s=ROUND_S,
    longest_interval_s=4 * ROUND_S,
    list_every_s=60.0,
    tokens_per_s=50.0,
)
LEAST_ROUNDS: Final = 2
MOST_TIMES_MEDIAN: Final = 3.0
MOST_NOTICE_S: Final = 120.0
LOOK_EVERY_S: Final = 1.0
GIVE_UP_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Told:
    """Figures of one swarm.

    Attributes:
        bytes_up: sent by each peer, over `num_rounds` rounds.
        noticed_s: seconds until each other peer took the one that died for dead, in order.
    """

    num_peers: int
    num_rounds: int
    bytes_up: tuple[int, ...]
    noticed_s: tuple[float, ...]


def _sent(world: World) -> list[int]:
    return [node.traffic.bytes_up for node in world.nodes]


async def _round(world: World, index: int) -> None:
    await world.wait_for(lambda: min(node.index for node in world.live_nodes()) >= index, GIVE_UP_S, f"round {index}")


async def _noticed(world: World, dead: Node) -> list[float]:
    """How long each other peer takes to notice a peer that stops without a word."""
    unit, begun_s, found = world.layout.spine, trio.current_time(), dict[str, float]()
    dead.freeze()
    others = [node for node in world.live_nodes() if node is not dead]
    while len(found) < len(others):
        await world.swarm.timers.sleep(LOOK_EVERY_S)
        now_s = trio.current_time()
        if now_s > begun_s + GIVE_UP_S / 6:
            break
        for node in others:
            state = node.services[unit].state
            if node.name not in found and not is_alive(state, dead.peer, now_s, idle_patience_s(state)):
                found[node.name] = now_s - begun_s
    dead.thaw()  # a world with a frozen node never ends
    missing = [GIVE_UP_S] * (len(others) - len(found))
    return sorted([*found.values(), *missing])


async def _played(num_peers: int, num_rounds: int, *, dies: bool) -> Told:
    profile = replace(MANY, num_elements=FEW_ELEMENTS) if dies else MANY
    async with trio.open_nursery() as nursery:
        world = World(SEED, nursery, num_peers, num_peers, profile)
        world.target_tokens = int(MANY.tokens_per_s * min(num_peers, MAX_MEMBERS) * MANY.round_s)
        for node in world.nodes:
            node.tokens_per_s = MANY.tokens_per_s
            world.boot(node)
        await _round(world, 1)
        before = _sent(world)
        await _round(world, 1 + num_rounds)
        sent = [after - first for after, first in zip(_sent(world), before, strict=True)]
        noticed: list[float] = []
        if dies:
            head = world.nodes[0].services[world.layout.spine].state.link
            idle = [node for node in world.nodes if node.peer not in head.roster]
            noticed = await _noticed(world, (idle or world.nodes)[0])
        nursery.cancel_scope.cancel()
    return Told(num_peers, num_rounds, tuple(sent), tuple(noticed))


def played(num_peers: int, num_rounds: int, *, dies: bool = False) -> Told:
    """A swarm of so many peers over so many rounds after the first; then one dies, if asked for. Vectors are short there."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with replaced(worlds, NUM_CHUNKS=NUM_CHUNKS), replaced(trainer, MIN_DIRECTIONS=NUM_DIRECTIONS):
        return virtual_time.run(SEED, partial(_played, num_peers, num_rounds, dies=dies))


def virtual_rows(sizes: Sequence[int]) -> Iterator[Row]:
    """The bytes of swarms of these sizes, each as it comes."""
    for num_peers in sizes:
        told = played(num_peers, max(LEAST_ROUNDS, -(-num_peers // MAX_MEMBERS)))
        most, median = max(told.bytes_up), statistics.median(told.bytes_up)
        about = {"rounds": told.num_rounds, "most_bytes": most, "median_bytes": round(median), "machine": machine()}
        name = f"{num_peers} simulated peers: most bytes sent by one over the median"
        yield _row(name, most / median, "times", MOST_TIMES_MEDIAN, about)


def death_rows(sizes: Sequence[int]) -> Iterator[Row]:
    """How soon a death is noticed in swarms of these sizes, after their first round."""
    for num_peers in sizes:
        noticed_s = played(num_peers, 0, dies=True).noticed_s
        seen = {"first_s": noticed_s[0], "median_s": statistics.median(noticed_s), "machine": machine()}
        name = f"{num_peers} simulated peers: a peer that stops without a word is dead to all after"
        yield _row(name, noticed_s[-1], "s", MOST_NOTICE_S, seen)


def _row(metric: str, value: float, unit: str, limit: float, about: dict[str, object]) -> Row:
    met = value <= limit
    return Row(BENCH, metric, round(value, 3), unit, target=f"<= {limit:g}", met=met, trials=1, settings=about)
