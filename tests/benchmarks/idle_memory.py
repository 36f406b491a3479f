"""The bytes that peers send each other between two rounds, counted in virtual time: production services on in-memory seams, 2 to 32
peers.

Their own payload alone, both ways, and nothing of what libp2p, TLS and TCP put around it. Messages to the directory are included, but
with empty records: those of real peers are 0.9 kB. Rounds are ten minutes apart. The first span begins a second after a commit, when
everybody tells everybody once where it stands now; the others are steady.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from tests.benchmarks.results import Row
from tests.simulation import virtual_time
from tests.simulation.profiles import Profile
from tests.simulation.swarm import World

IN_MEMORY: Final = "in memory"
NUM_PEERS: Final = (2, 4, 8, 16, 32)
SPANS_S: Final = ((1.0, 46.0), (60.0, 240.0), (240.0, 480.0))
"""Of the ten minutes, after the commit."""

SEED: Final = 5
TOKENS_PER_S: Final = 50.0
CALM: Final = Profile(
    "idle", round_s=600.0, longest_interval_s=1200.0, list_every_s=60.0, tokens_per_s=TOKENS_PER_S, heartbeat_s=1.0
)


@dataclass(frozen=True)
class Said:
    """Bytes a second, up and down together, in one span of the ten minutes: of the peer that says most, and of all in the mean."""

    span_s: tuple[float, float]
    most: float
    mean: float


async def _said(num_peers: int, spans_s: Sequence[tuple[float, float]]) -> list[Said]:
    async with trio.open_nursery() as nursery:
        world = World(SEED, nursery, num_peers, num_peers, CALM)
        for node in world.nodes:
            node.tokens_per_s = TOKENS_PER_S
            world.boot(node)

        def spent() -> list[int]:
            counts = [node.traffic for node in world.nodes]
            return [count.bytes_up + count.bytes_down for count in counts]

        is_committed = lambda: min(node.index for node in world.nodes) == 1  # noqa: E731
        await world.wait_for(is_committed, 2 * CALM.longest_interval_s, "the first round")
        begun_s, found = trio.current_time(), []
        for begin_s, end_s in spans_s:
            await trio.sleep(begun_s + begin_s - trio.current_time())
            before = spent()
            await trio.sleep(begun_s + end_s - trio.current_time())
            rates = [(b - a) / (end_s - begin_s) for a, b in zip(before, spent(), strict=True)]
            found.append(Said((begin_s, end_s), max(rates), sum(rates) / len(rates)))
        if max(node.index for node in world.nodes) > 1:
            raise AssertionError(f"a round in the spans: {world.describe()}")
        nursery.cancel_scope.cancel()
    return found


def said_in_memory(num_peers: int, spans_s: Sequence[tuple[float, float]] = SPANS_S) -> list[Said]:
    """Of so many peers between their first and second round."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return virtual_time.run(SEED, lambda: _said(num_peers, spans_s))


def memory_rows(bench: str, limit_bytes_per_s: float) -> list[Row]:
    """A row for each number of peers and each span."""
    rows = []
    for num_peers in NUM_PEERS:
        for said in said_in_memory(num_peers):
            begin_s, end_s = said.span_s
            metric = f"{IN_MEMORY}, N = {num_peers}: idle bytes a peer, {begin_s:.0f} to {end_s:.0f} s after a commit"
            settings = {"mean": round(said.mean, 1)}
            target = f"<= {limit_bytes_per_s:g}"
            met = said.most <= limit_bytes_per_s
            rows.append(Row(bench, metric, round(said.most, 1), "B/s", target=target, met=met, settings=settings))
    return rows
