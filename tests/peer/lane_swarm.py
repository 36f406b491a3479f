"""Lanes over the network in memory: peers with a seat or to spare, a keeper, and rounds in one place that average what lanes bring."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import trio

from averaging.codecs.rows.boundary import BoundaryCodec
from averaging.network.memory.memory_network import MemoryNetwork, MemorySwarm
from peer.pipeline.seats.lane_keeper import LaneKeepers
from peer.pipeline.seats.lane_member import LaneMember
from peer.pipeline.stage.lane_compute import ComputeContext, LaneShape, LaneWork
from peer.pipeline.stage.stage_passes import StagePasses
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.pipeline.transport.lane_network import OwnLoop
from peer.pipeline.transport.lane_work import Confirm, LaneContext, LaneShare
from protocol.ids import PeerId
from protocol.pipeline.lanes import lane_machine as lane
from protocol.pipeline.micro_batch import MicroBatch
from protocol.pipeline.schedule import most_in_flight
from protocol.pipeline.stage_machine import LaneConfig, Point
from tests.peer.lane_world import INNER, NUM_MICRO_BATCHES, NUM_STAGES, averaged, tokens_of
from tests.peer.offloaded_work import OffloadedWork
from tests.peer.stage_world import ANCHOR_N, MODEL, RUN, STAGES, part_of, stage_model
from tests.virtual import InlineOffload

KEEPER = PeerId("keeper")
SHAPE = (2, MODEL.context_tokens)
ANY_STAGE = frozenset(range(NUM_STAGES))

Hook = Callable[[PeerId, int, MicroBatch, bool], None]


def nothing(peer: PeerId, stage: int, batch: MicroBatch, is_backward: bool) -> None:
    """No pass is disturbed."""


class WatchedPasses(StagePasses):
    """Says what it is about to do."""

    def __init__(self, about: Callable[[MicroBatch, bool], None], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._about = about

    def forward(self, batch: MicroBatch, arrived: torch.Tensor, **options: Any) -> torch.Tensor:
        self._about(batch, False)
        return super().forward(batch, arrived, **options)

    def backward(self, batch: MicroBatch, grad_BTD: torch.Tensor | None = None) -> torch.Tensor | None:
        self._about(batch, True)
        return super().backward(batch, grad_BTD)


@dataclass
class Rounds:
    """The rounds of all stages, once every lane has brought its share; each lane counts once."""

    num_lanes: int
    takes_s: float = 0.0
    shares: dict[tuple[int, int], dict[int, LaneShare]] = field(default_factory=dict)
    anchors: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    brought: trio.Event = field(default_factory=trio.Event)

    async def average(self, share: LaneShare) -> torch.Tensor:
        if self.takes_s:
            await trio.sleep(self.takes_s)
        place = (share.round, share.stage)
        before = self.shares.setdefault(place, {}).setdefault(share.lane, share)
        assert before.tokens == share.tokens
        assert torch.equal(before.theta_N, share.theta_N)
        if len(self.shares[place]) == self.num_lanes and place not in self.anchors:
            anchor_N, momentum_N = self._base(*place)
            contributions = [(one.theta_N, one.tokens) for _, one in sorted(self.shares[place].items())]
            self.anchors[place] = averaged(anchor_N, momentum_N, contributions)
            self._wake()
        while place not in self.anchors:
            await self.brought.wait()
        return self.anchors[place][0]

    async def anchor(self, round_: int) -> torch.Tensor:
        """(N,) of the whole model, once this round is over at all stages."""
        places = [(round_, stage) for stage in range(NUM_STAGES)]
        while not all(place in self.anchors for place in places):
            await self.brought.wait()
        return torch.cat([self.anchors[place][0] for place in places])

    def _base(self, round_: int, stage: int) -> tuple[torch.Tensor, torch.Tensor]:
        start_N = part_of(ANCHOR_N.double(), stage)
        return self.anchors[round_ - 1, stage] if round_ else (start_N, torch.zeros_like(start_N))

    def _wake(self) -> None:
        self.brought.set()
        self.brought = trio.Event()


@dataclass
class LaneSwarm:
    """Peers of lanes over one network.

    Attributes:
        about: told before each pass; may kill.
        listed: spares that the keeper knows of.
        ended: how each lane ended, by its number.
    """

    swarm: MemorySwarm
    nursery: trio.Nursery
    config: LaneConfig
    rounds: Rounds
    codecs: tuple[BoundaryCodec, BoundaryCodec]
    about: Hook = nothing
    listed: list[PeerId] = field(default_factory=list)
    members: dict[PeerId, LaneMember] = field(default_factory=dict)
    ended: dict[int, lane.LaneState] = field(default_factory=dict)
    networks: dict[PeerId, MemoryNetwork] = field(default_factory=dict)
    scopes: dict[PeerId, list[trio.CancelScope]] = field(default_factory=dict)
    keepers: LaneKeepers | None = None
    killed: set[PeerId] = field(default_factory=set)

    def begin(self, num_lanes: int) -> None:
        """The keeper, and lanes whose members are named after lane and stage."""
        network = self.swarm.start(KEEPER)
        self.keepers = LaneKeepers(network, self.config, lambda: tuple((peer, ANY_STAGE) for peer in self.listed))
        self.keepers.serve()
        for number in range(num_lanes):
            members = tuple(PeerId(f"lane{number}stage{stage}") for stage in range(NUM_STAGES))
            for member in members:
                self.open(member)
            self.start(KEEPER, partial(self._keep, self.keepers, number, members))

    def spare(self, name: str) -> PeerId:
        """A peer with room for any stage, which the keeper knows of."""
        peer = PeerId(name)
        self.open(peer)
        self.listed.append(peer)
        return peer

    def tools(self, peer: PeerId) -> LaneContext:
        """A new peer, and what it works with in lanes."""
        network = self.networks[peer] = self.swarm.start(peer)
        form, offload = LaneShape(RUN, self.config, STAGES, SHAPE, *self.codecs), InlineOffload()
        compute = ComputeContext(form, partial(self._trainer, peer), tokens_of, lambda at: INNER.learning_rate)

        def work_of(number: int, stage: int) -> OffloadedWork:
            return OffloadedWork(LaneWork(compute, number, stage), offload)

        return LaneContext(OwnLoop(network), offload, form, work_of, self.rounds.average, self._take_gift)

    async def bring(self, share: LaneShare) -> None:
        """Of a lane that is no more: the rounds stand for the holder that it is given to."""
        await self.rounds.average(share)

    async def _take_gift(self, giver: PeerId, share: LaneShare, confirm: Confirm) -> str:
        self.nursery.start_soon(self.rounds.average, share)
        return ""

    def open(self, peer: PeerId) -> LaneMember:
        """A peer that can take a seat."""
        member = self.members[peer] = LaneMember(self.tools(peer), lambda number: KEEPER, self.bring)
        member.serve()
        self.start(peer, member.run)
        return member

    def kill(self, peer: PeerId) -> None:
        """kill -9."""
        self.killed.add(peer)
        self.swarm.kill(peer)
        for scope in self.scopes[peer]:
            scope.cancel()

    def break_streams(self) -> None:
        """All that are open; nobody dies."""
        for network in self.networks.values():
            for pipe in list(network.host.pipes.values()):
                pipe.reset()

    def lane(self, number: int) -> lane.LaneState:
        """As its keeper knows it."""
        assert self.keepers is not None
        state = self.keepers.state_of(number)
        return self.ended[number] if state is None else state

    async def _keep(self, keepers: LaneKeepers, number: int, members: tuple[PeerId, ...]) -> None:
        self.ended[number] = await keepers.keep(number, members, Point(0, 0))

    def start(self, peer: PeerId, function: Any) -> None:
        """Something that ends when the peer is killed."""
        scope = trio.CancelScope()
        self.scopes.setdefault(peer, []).append(scope)

        async def run() -> None:
            with scope:
                await function()

        self.nursery.start_soon(run)

    def _trainer(self, peer: PeerId, stage: int) -> StageTrainer:
        kept = most_in_flight(self.config.schedule, stage, NUM_STAGES, NUM_MICRO_BATCHES)
        model = stage_model(stage)
        trainer = StageTrainer(model, INNER, most_kept=kept)
        trainer.passes = WatchedPasses(partial(self._about, peer, stage), model, trainer.replica, most_kept=kept)
        return trainer

    def _about(self, peer: PeerId, stage: int, batch: MicroBatch, is_backward: bool) -> None:
        self.about(peer, stage, batch, is_backward)


@asynccontextmanager
async def open_lanes(
    config: LaneConfig,
    *,
    num_lanes: int = 1,
    is_kept: bool = True,
    codecs: tuple[BoundaryCodec, BoundaryCodec] = ("fp64", "fp64"),
    seed: int = 1,
    within_s: float = 600.0,
) -> AsyncIterator[LaneSwarm]:
    """A swarm whose lanes have begun, in the time of whatever clock runs; everything ends with the block."""
    with trio.fail_after(within_s):
        async with trio.open_nursery() as nursery:
            world = LaneSwarm(MemorySwarm(nursery, random.Random(seed)), nursery, config, Rounds(num_lanes), codecs)
            if is_kept:
                world.begin(num_lanes)
            yield world
            nursery.cancel_scope.cancel()
