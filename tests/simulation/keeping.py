"""The host's keeper of experts in a simulated world: production code on a disk of its own, at an address of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.transfer import FETCH_CHANNEL
from averaging.state.generations import Generations
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from coordinator.experts.unit_keeper import KeeperView, KeptPlace, UnitKeeper
from coordinator.progress.unit_keeper_core import UnitClaims, claims_on
from protocol.host.calls import NO_COMMIT
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.lineage import SpineView
from tests.simulation.node import SimulatedOffload

if TYPE_CHECKING:
    from tests.simulation.swarm import World

KEEPER: Final = PeerId("host")


def _no_spine() -> None: ...


class SimulatedKeeper:
    """One process of the host's keeper; another one begins on the same `disk`. `kept` are the rounds that it can give on;
    `follows_spine`: it is told of the lineage of the spine that most peers follow, without which it goes by the work alone.
    """

    def __init__(self, world: World, disk: MemoryDisk, every_rounds: int = 1, *, follows_spine: bool = False) -> None:
        self._world = world
        self._disk = disk
        self.kept: dict[UnitName, int] = {}
        places = {
            unit: replace(self._place(unit, unit), holders_lineage=self._place(unit, f"{unit}.beside"))
            for unit in world.layout.kept
        }
        self.network = world.swarm.start(KEEPER)
        spine = self._spine if follows_spine else _no_spine
        view = KeeperView(self.units, self._is_member, self.kept.__setitem__, self._reach, spine)
        self.keeper = UnitKeeper(self.network, places, view, every_rounds)
        self.network.serve_streams(FETCH_CHANNEL, self.keeper.serve_fetch)
        world.nursery.start_soon(self.keeper.run)

    def _place(self, unit: UnitName, folder: str) -> KeptPlace:
        world, timers = self._world, self._world.swarm.timers
        storage, offload = MemoryStorage(self._disk, folder, timers=timers), SimulatedOffload(timers)
        log, generations = UnitLog(storage), Generations(storage, world.grid, offload)
        tools = UnitContext(
            world.run_id,
            unit,
            world.verifier,
            world.codec,
            world.grid,
            offload,
            log,
            generations,
            results=world.results,
        )

        async def chain() -> UnitChain:
            return UnitChain(tools, world.start_record, world.genesis(unit))

        return KeptPlace(storage, chain)

    def units(self) -> Sequence[UnitClaims]:
        """As the reports of live holders say it."""
        world = self._world
        return [
            claims_on(
                unit,
                {node.peer: node.index_of(unit) for node in world.holders(unit)},
                {node.peer: node.head_of(unit) or NO_COMMIT for node in world.holders(unit)},
            )
            for unit in world.layout.kept
        ]

    def _spine(self) -> SpineView | None:
        """As its holders have it who are most: the host itself follows the records."""
        unit = self._world.layout.spine
        states = [node.services[unit].state for node in self._world.holders(unit) if unit in node.services]
        if not states:
            return None
        heads = [state.link.commit for state in states]
        state = max(states, key=lambda each: sum(head in each.tree.nodes for head in heads))
        return SpineView(state.link.commit, state.tree)

    async def _is_member(self, peer: PeerId) -> bool:
        return any(node.peer == peer for node in self._world.nodes) or peer == PeerId("newcomer")

    async def _reach(self, peers: Sequence[PeerId]) -> None:
        """All are in reach here."""
