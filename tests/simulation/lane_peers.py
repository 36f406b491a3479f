"""Peers of a pipeline run in lanes over the network in memory: their lanes are real, and so is what waits for a round in each
(peer/pipeline/lane_rounds.py); the round of a stage is one place that takes what its holders bring and gives the commit to who is
there.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, cast

import torch
import trio

from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from averaging.network.seams.interfaces import NoPart
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.state import UnitState
from peer.pipeline.lane_rounds import StageRounds
from peer.pipeline.lane_service import LaneRole, LaneService
from peer.pipeline.lane_shares import StageShares
from peer.pipeline.stage.lane_compute import LaneShape
from peer.pipeline.transport.lane_network import OwnLoop
from peer.pipeline.transport.lane_work import LaneContext, LaneShare
from protocol.ids import CommitId, PeerId, Root
from protocol.pipeline.lanes.lane_machine import Dissolve
from protocol.pipeline.stage_machine import LaneConfig
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages import lane_parts
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.record import Ballot, CommitRecord, Contributor, OuterStep, SliceRecord
from protocol.tensors.stage_schema import stage_unit
from tests.peer.lane_swarm import SHAPE
from tests.peer.lane_world import NUM_STAGES, averaged
from tests.peer.stage_world import ANCHOR_N, RUN, STAGES, part_of
from tests.simulation.lane_numbers import NumberWork
from tests.simulation.lane_oracle import LaneLedger, LaneOracle
from tests.simulation.virtual_time import PROCESS, Process, driven_timers
from tests.virtual import InlineOffload

GENESIS = CommitId(b"g" * 32)
LOOK_EVERY_S = 0.2
LONGEST_INTERVAL_S = 30.0
EXCHANGE_S = (0.3, 1.5)
SECOND_ATTEMPT, WHOLE_BEFORE_DEATH = 0.3, 0.5
TARGET_TOKENS = 1
ROOT = Root(bytes(32))


@dataclass
class _Chain:
    """The part of a unit's chain that is read."""

    state: UnitState
    links: list[ChainLink]

    @property
    def head(self) -> ChainLink:
        return self.links[-1]


@dataclass
class LanePeer:
    """A peer that holds a stage.

    Attributes:
        pace_s: of a pass.
        why_not: why it takes no seat.
    """

    peer: PeerId
    stage: int
    chain: _Chain
    shares: StageShares
    pace_s: float = 0.1
    why_not: str = ""
    is_frozen: bool = False
    begun: int | None = None
    process: Process = field(default_factory=Process)
    service: LaneService = field(init=False)
    rounds: StageRounds = field(init=False)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


@dataclass(frozen=True)
class FetchedResults:
    """A holder's contribution to a round, once for each base."""

    tokens: int
    lanes: tuple[LanePart, ...]
    shares: list[LaneShare]


@dataclass
class StageUnit:
    """The rounds of one stage: due as the round service has it, when the holders have ready what they say that is due."""

    world: LaneWorld
    stage: int
    state: UnitState
    links: list[ChainLink]
    first_ready_s: float | None = None

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_EVERY_S)
            if self._is_due():
                await self._commit()

    def _is_due(self) -> bool:
        reported = [one.rounds.progress() for one in self.world.awake(self.stage)]
        ready, due = sum(one.tokens_ready for one in reported), max((one.due_tokens for one in reported), default=0)
        now_s = trio.current_time()
        self.first_ready_s = (now_s if self.first_ready_s is None else self.first_ready_s) if ready else None
        is_late = self.first_ready_s is not None and now_s - self.first_ready_s >= LONGEST_INTERVAL_S
        return ready > 0 and ((due > 0 and ready >= due) or is_late)

    async def _commit(self) -> None:
        """Each holder brings what it has within the exchange, once, whatever the attempts; of those who die or freeze meanwhile all
        may have come, or nothing.
        """
        brought = dict[PeerId, FetchedResults]()
        for _ in range(self.world.num_attempts()):
            async with trio.open_nursery() as nursery:
                for one in self.world.awake(self.stage):
                    if one.peer not in brought:
                        nursery.start_soon(self._bring, one, brought)
                await trio.sleep(self.world.draw.uniform(*self.world.exchange_s))
                nursery.cancel_scope.cancel()
        awake = self.world.awake(self.stage)
        here = {one.peer for one in awake}
        whole = {peer: of for peer, of in sorted(brought.items()) if peer in here or self.world.came_whole()}
        twice = lane_parts.brought_twice({peer: of.lanes for peer, of in whole.items()})
        counted = {peer: of for peer, of in whole.items() if peer not in twice}
        if counted and awake:
            self._advance(counted)
        for one in awake if counted else ():
            await self.give(one, counted[one.peer].tokens if one.peer in counted else 0)

    def _advance(self, counted: Mapping[PeerId, FetchedResults]) -> None:
        shares = [(share, peer) for peer, of in counted.items() for share in of.shares]
        for share, peer in shares:
            self.world.ledger.counts(self.stage, share, peer, self.state.anchor_N)
        if self.world.ledger.violations:
            return
        thetas = [(share.theta_N, share.tokens) for share, _ in shares]
        anchor_N, momentum_N = averaged(self.state.anchor_N.double(), self.state.momentum_N.double(), thetas)
        record = self._record(counted)
        head = CommitId(sha256(self.state.head + record.index.to_bytes(8, "little")).digest())
        self.state = UnitState(self.state.unit, head, record.index, record.total_tokens, anchor_N, momentum_N)
        self.links.append(
            ChainLink(record.unit, head, record.index, record.roster, record.total_tokens, TARGET_TOKENS, record)
        )
        self.first_ready_s = None

    def _record(self, counted: Mapping[PeerId, FetchedResults]) -> CommitRecord:
        """The real one, with one slice: it cannot be made with a lane twice."""
        first, total = min(counted), sum(of.tokens for of in counted.values())
        of = tuple(Contributor(peer, 1, ROOT, one.tokens, one.tokens, one.lanes) for peer, one in counted.items())
        return CommitRecord(
            self.state.unit, self.state.head, self.state.index + 1, Ballot(0, first),
            (SliceRecord(0, 1, first, ROOT, ()),), of, "fp64", total, self.state.total_tokens + total,
            OuterStep("nesterov", 0.7, 0.9), TARGET_TOKENS, tuple(counted), (1,) * len(counted),
        )  # fmt: skip

    async def _bring(self, one: LanePeer, brought: dict[PeerId, FetchedResults]) -> None:
        try:
            snapshot = await one.rounds.snapshot()
        except NoPart:
            return
        brought[one.peer] = FetchedResults(snapshot.tokens, snapshot.lanes, list(one.shares.brought))

    async def give(self, one: LanePeer, credited_tokens: int = 0) -> None:
        """A holder comes to stand where the stage does."""
        one.chain.state, one.chain.links = self.state, list(self.links)
        await one.rounds.set_anchor(self.state.anchor_N)
        await one.rounds.shift(torch.zeros(0), credited_tokens=credited_tokens, schedule_tokens=0)


@dataclass
class LaneWorld:
    """Peers of one run; `open` makes one. An exchange takes as long as `exchange_s` has it."""

    swarm: MemorySwarm
    nursery: trio.Nursery
    config: LaneConfig
    draw: random.Random
    exchange_s: tuple[float, float] = EXCHANGE_S
    peers: dict[PeerId, LanePeer] = field(default_factory=dict)
    killed: set[PeerId] = field(default_factory=set)
    networks: list[MemoryNetwork] = field(default_factory=list)
    virtual_s: float = 0.0

    def __post_init__(self) -> None:
        self.ledger = LaneLedger(LaneOracle(self.config), ended_of=self._ended_of)
        firsts = [_first_state(stage) for stage in range(NUM_STAGES)]
        self.units = [
            StageUnit(self, stage, first, [ChainLink(first.unit, first.head, 0, (), 0, TARGET_TOKENS)])
            for stage, first in enumerate(firsts)
        ]
        for unit in self.units:
            self.nursery.start_soon(unit.run)

    def num_attempts(self) -> int:
        """Of one exchange: a reducer may die, where there is time for that."""
        return 2 if self.exchange_s != EXCHANGE_S and self.draw.random() < SECOND_ATTEMPT else 1

    def came_whole(self) -> bool:
        """Whether all that a member sent had come before it died."""
        return self.exchange_s != EXCHANGE_S and self.draw.random() < WHOLE_BEFORE_DEATH

    def _ended_of(self, lane: int) -> Dissolve | None:
        for one in self.peers.values():
            ended = one.service.keepers.ended.get(lane)
            if ended is not None:
                return ended.end
        return None

    def awake(self, stage: int) -> list[LanePeer]:
        """Its holders that take part in rounds."""
        return [
            one for peer, one in sorted(self.peers.items())
            if one.stage == stage and peer not in self.killed and not one.is_frozen
        ]  # fmt: skip

    def holders(self, stage: int) -> list[PeerId]:
        """As the roster has them: whoever is frozen is still listed."""
        return [peer for peer, one in self.peers.items() if one.stage == stage and peer not in self.killed]

    def open(self, peer: PeerId, stage: int, pace_s: float = 0.1) -> LanePeer:
        """A peer that holds a stage, and the newest state of it."""
        unit = self.units[stage]
        chain, context = _Chain(unit.state, list(unit.links)), copy_context()
        one = LanePeer(peer, stage, chain, StageShares(cast("UnitChain", chain), self.config), pace_s)
        context.run(PROCESS.set, one.process)
        tools = self._tools(one, context.run(self.swarm.start, peer))
        role = LaneRole(stage, len(self.peers), GENESIS, self.holders, lambda: chain.state.index, lambda: one.why_not)
        service = one.service = LaneService(tools, role)
        one.rounds = StageRounds(one.shares, service)
        service.serve()
        self.peers[peer] = one
        self.nursery.start_soon(one.rounds.set_anchor, unit.state.anchor_N)
        context.run(self.nursery.start_soon, self._run, one)
        return one

    async def _run(self, one: LanePeer) -> None:
        with one.scope:
            await one.service.run()

    def kill(self, peer: PeerId) -> None:
        """kill -9."""
        self.killed.add(peer)
        self.ledger.said |= {(share.lane, share.stage) for share in self.peers[peer].shares.brought}
        self.peers[peer].process.kill()
        self.swarm.kill(peer)
        self.peers[peer].scope.cancel()

    def freeze(self, peer: PeerId) -> None:
        """SIGSTOP, as others see it."""
        self.peers[peer].is_frozen = True
        self.peers[peer].process.freeze()
        self.swarm.freeze(peer)

    async def thaw(self, peer: PeerId) -> None:
        """It goes on, and catches up with its stage."""
        one = self.peers[peer]
        if not one.is_frozen:
            return
        one.is_frozen = False
        one.process.thaw()
        self.swarm.thaw(peer)
        if one.chain.state.head != self.units[one.stage].state.head:
            await self.units[one.stage].give(one)

    def break_streams(self) -> None:
        """All that are open; nobody dies."""
        for network in self.networks:
            for pipe in list(network.host.pipes.values()):
                pipe.reset()

    def partial(self) -> dict[tuple[int, int], list[int]]:
        """Lanes' rounds that count at some stages, and at which not, nor wait there for a round to come."""
        waiting = {
            (share.lane, share.round, share.stage)
            for peer, one in self.peers.items() if peer not in self.killed
            for share in one.shares.brought
        }  # fmt: skip
        found = {
            place: [stage for stage in range(NUM_STAGES) if stage not in of and (*place, stage) not in waiting]
            for place, of in self.ledger.counted.items()
        }
        return {place: stages for place, stages in found.items() if stages}

    def log(self, _logger: object, _method: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Every reported loss has a reason (a structlog processor)."""
        if event["event"] in ("lane_share_lost", "lane_share_withdrawn"):
            for lane in event.get("lanes", [event.get("lane")]):
                self.ledger.said.add((lane, event.get("stage", -1)))
        return event

    def _tools(self, one: LanePeer, network: MemoryNetwork) -> LaneContext:
        form, offload = LaneShape(RUN, self.config, STAGES, SHAPE, "fp64", "fp64"), InlineOffload()

        def work_of(number: int, stage: int) -> NumberWork:
            return NumberWork(form, number, stage, partial(self._newest, one, number), lambda: one.pace_s)

        def begins(round_: int) -> None:
            one.begun = round_
            one.shares.begins(round_)

        async def average(share: LaneShare) -> torch.Tensor:
            anchor_N = await one.shares.average(share)
            self.ledger.oracle.begins(share.lane, share.round + 1, share.stage, anchor_N)
            return anchor_N

        self.networks.append(network)
        return LaneContext(OwnLoop(network), offload, form, work_of, average, one.shares.take_gift, begins)

    def _newest(self, one: LanePeer, number: int) -> torch.Tensor:
        anchor_N = one.shares.newest()[0].double()
        if one.begun is not None:  # a spare goes on from a snapshot instead
            self.ledger.oracle.begins(number, one.begun, one.stage, anchor_N)
            one.begun = None
        return anchor_N


def _first_state(stage: int) -> UnitState:
    anchor_N = part_of(ANCHOR_N.double(), stage)
    return UnitState(stage_unit(stage), CommitId(bytes([stage]) * 32), 0, 0, anchor_N, torch.zeros_like(anchor_N))


@asynccontextmanager
async def open_lane_world(
    config: LaneConfig, *, replicas: tuple[int, ...], seed: int, exchange_s: tuple[float, float] = EXCHANGE_S
) -> AsyncIterator[LaneWorld]:
    """A run that begins by itself, in the time of whatever clock runs; everything ends with the block."""
    draw = random.Random(seed)
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(seed), timers=driven_timers())
        world = LaneWorld(swarm, nursery, config, draw, exchange_s)
        for stage, num in enumerate(replicas):
            for number in range(num):
                world.open(PeerId(f"stage{stage}peer{number}"), stage, draw.uniform(0.02, 0.25))
        yield world
        for one in world.peers.values():
            one.process.thaw()
        nursery.cancel_scope.cancel()
