"""The bytes that a peer downloads after it missed n rounds, over the fewer bytes of replay and snapshot; in the memory world, which
counts exactly.

Both ways need the certificates, and what is committed meanwhile, so these are counted on both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.gather_results import Gatherer
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.transfer import fetch_commits
from averaging.state.generations import Generations
from averaging.state.state import STATE_BYTES_PER_VALUE
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from peer.session.catch_up import catch_up_by_snapshot
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.rounds.lineage.chain import attested_roots, verify_certificate
from protocol.rounds.messages.wire import decode_certificate
from tests.averaging.rounds.round_world import raws_of
from tests.benchmarks.results import Row
from tests.simulation import virtual_time
from tests.simulation.node import SimulatedOffload
from tests.simulation.profiles import PROFILES
from tests.simulation.swarm import World

BENCH: Final = "recovery"
SEED: Final = 11
NUM_VALUES: Final = 1 << 16
FIRST: Final = 3
MISSED: Final = tuple(range(1, 21))
MOST_OVER: Final = 1.05
LATE: Final = PeerId("late")


@dataclass(frozen=True, slots=True)
class Caught:
    """One catch-up: how many rounds were missed, what came in, and what the shorter way weighs."""

    missed: int
    num_bytes: int
    least_bytes: int
    is_equal: bool

    @property
    def over(self) -> float:
        """1 is perfect."""
        return self.num_bytes / self.least_bytes


def measure(missed: Sequence[int] = MISSED) -> list[Caught]:
    """Let three peers run, then catch up with them from each distance."""
    caught: list[Caught] = []

    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            profile = replace(PROFILES["calm"], num_elements=NUM_VALUES)
            world = World(SEED, nursery, num_peers=3, num_founders=3, profile=profile)
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: _head(world) >= FIRST, 3600.0, "the first rounds")
            late = {number: await _chain_at_head(world) for number in missed}
            for number, chain in late.items():
                until = chain.head.index + number
                await world.wait_for(lambda until=until: _stands_still(world, until), 900.0, "rounds")  # type: ignore[misc]
                caught.append(await _catch_up(world, chain))
            nursery.cancel_scope.cancel()

    virtual_time.run(SEED, tell)
    return caught


def _stands_still(world: World, index: int) -> bool:
    """Everybody is there or further, and at the same commit: no donor is about to go on."""
    return _head(world) >= index and len({node.index for node in world.nodes}) == 1


def _head(world: World) -> int:
    return min(node.index for node in world.nodes)


async def _chain_at_head(world: World) -> UnitChain:
    """The chain of a peer that is at the head now, and is not there from now on."""
    donor, chain = _served(world), _chain(world)
    await chain.restore()
    vectors = {name: getattr(donor.state, name).clone() for name in ("anchor_N", "momentum_N")}
    state = replace(donor.state, **vectors)  # the donor's own may move
    await chain.start_from(state, donor.line.certificates)
    return chain


def _served(world: World) -> UnitChain:
    service = world.nodes[0].service
    if service is None:
        raise LocalProtocolError("a peer without rounds", "a running one")
    return service.chain


async def _catch_up(world: World, chain: UnitChain) -> Caught:
    donors = [node.peer for node in world.nodes]
    network, begin = world.swarm.start(LATE), chain.head.index
    links = tuple(_served(world).links)
    newest = max(link.index for link in links if link.commit in attested_roots(links))
    before = network.traffic().bulk_bytes_down
    await catch_up_by_snapshot(network, chain, donors, lambda progress: None)
    await _replay(chain, network, donors, _head(world))
    num_bytes = network.traffic().bulk_bytes_down - before
    spans = map(world.grid.bounds, range(world.grid.num_chunks))
    update_bytes = sum(world.codec.encoded_bytes(stop - start) for start, stop in spans)
    by_snapshot = STATE_BYTES_PER_VALUE * NUM_VALUES + (chain.head.index - newest) * update_bytes
    certificates = raws_of(_served(world))[begin : chain.head.index]
    least = min(len(certificates) * update_bytes, by_snapshot) + sum(map(len, certificates))
    is_equal = world.observed.roots[chain.head.commit] == chain.root
    return Caught(len(certificates), num_bytes, least, is_equal)


def _chain(world: World) -> UnitChain:
    timers = world.swarm.timers
    storage, offload = MemoryStorage(MemoryDisk(), timers=timers), SimulatedOffload(timers)
    log, generations = UnitLog(storage), Generations(storage, world.grid, offload)
    unit = world.layout.spine
    tools = UnitContext(world.run_id, unit, world.verifier, world.codec, world.grid, offload, log, generations)
    return UnitChain(tools, world.start_record, world.genesis(unit))


async def _replay(chain: UnitChain, network: Network, donors: Sequence[PeerId], until: int) -> None:
    """Fetch and apply one commit after another, as the round service does."""
    gatherer = Gatherer(network, chain)
    while chain.head.index < until:
        for raw in await fetch_commits(network, donors[0], chain.tools.unit, [chain.head.commit]):
            certificate = decode_certificate(raw)
            link = verify_certificate(certificate, chain.head, verifier=chain.tools.verifier, run_id=chain.tools.run_id)
            if link.index > until:
                return
            if link.record is None or not await gatherer.gather(link.record, tuple(donors)):
                raise LocalProtocolError("a commit whose bytes nobody has", "bytes")
            await chain.prove(await chain.apply(link, certificate))
            await chain.keep()


def rows(caught: Sequence[Caught], settings: dict[str, object]) -> list[Row]:
    """The worst of all distances decides."""
    over = sorted(one.over for one in caught)
    if not over:
        return []
    each = {f"bytes over least, {one.missed} missed": round(one.over, 3) for one in caught}
    return [
        Row(
            BENCH,
            f"missed {min(MISSED)} to {max(MISSED)} rounds: bytes over the fewer of replay and snapshot",
            round(statistics.median(over), 4),
            "ratio",
            1.0,
            round(statistics.median(over), 4),
            f"<= {MOST_OVER}",
            over[-1] <= MOST_OVER and all(one.is_equal for one in caught),
            len(over),
            {"best": round(over[0], 4), "worst": round(over[-1], 4)},
            {**settings, "values": NUM_VALUES, **each},
        )
    ]
