"""Peers that hold stages make lanes of themselves, keep them, and make new ones of who is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from peer.pipeline.lane_service import LaneRole, LaneService
from peer.pipeline.transport.lane_calls import MEMBER_CHANNEL, whole_answer
from protocol.ids import CommitId, PeerId
from protocol.pipeline.lanes.lane_forming import keeper_order
from protocol.pipeline.lanes.lane_machine import LaneState
from protocol.pipeline.messages.lane_messages import LaneBegin
from protocol.pipeline.messages.lane_wire import encode_lane_message
from protocol.pipeline.stage_machine import Point
from tests.peer.lane_swarm import LaneSwarm, open_lanes
from tests.peer.lane_world import NUM_STAGES, lane_config

CONFIG = lane_config(inner_steps=3, snapshot_steps=2)
GENESIS = CommitId(b"g" * 32)
FIRST = tuple(PeerId(f"stage0peer{number}") for number in range(2))
PAUSED = (
    "the run pauses: nobody who is there holds stage 1; it goes on from its newest state that a peer or the host has"
    " as soon as somebody takes what is missing"
)
KEEPER, SUCCESSOR = keeper_order(GENESIS, FIRST)


@dataclass
class _Services:
    """Peers of a run, two a stage."""

    world: LaneSwarm
    of: dict[PeerId, LaneService] = field(default_factory=dict)
    sees_nobody: set[PeerId] = field(default_factory=set)

    def begin(self, peer: PeerId, stage: int) -> None:
        """A peer that holds a stage."""

        def holders(of: int) -> list[PeerId]:
            named = [PeerId(f"stage{of}peer{number}") for number in range(3)]
            named = [other for other in named if other == peer or peer not in self.sees_nobody]
            return [p for p in named if p in self.world.networks and p not in self.world.killed]

        def index() -> int:
            return sum(1 for _, of in self.world.rounds.anchors if of == stage)

        role = LaneRole(stage, 1, GENESIS, holders, index, lambda: "")
        service = self.of[peer] = LaneService(self.world.tools(peer), role)
        service.serve()
        self.world.start(peer, service.run)

    def seated(self) -> list[PeerId]:
        """The peers that serve a lane."""
        return sorted(peer for peer, service in self.of.items() if service.member.seat is not None)


@asynccontextmanager
async def _open(num_lanes: int) -> AsyncIterator[_Services]:
    async with open_lanes(CONFIG, num_lanes=num_lanes, is_kept=False) as world:
        services = _Services(world)
        for stage in range(NUM_STAGES):
            for number in range(2):
                services.begin(PeerId(f"stage{stage}peer{number}"), stage)
        yield services


async def test_six_peers_of_three_stages_make_two_lanes_and_average(autojump_clock: trio.testing.MockClock) -> None:
    async with _open(2) as services:
        await services.world.rounds.anchor(0)
        assert len(services.seated()) == 6
        assert {service.num_lanes for service in services.of.values()} == {2}
        assert {len(service.keepers.lanes) for peer, service in services.of.items() if peer != KEEPER} == {0}


async def test_a_keeper_keeps_its_lanes_when_one_joins_that_stands_before_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG, is_kept=False) as world:
        services = _Services(world)
        services.begin(SUCCESSOR, 0)
        for stage in (1, 2):
            services.begin(PeerId(f"stage{stage}peer0"), stage)
        with trio.fail_after(10.0):
            while not services.of[SUCCESSOR].keepers.lanes:
                await trio.sleep(0.05)
        services.begin(KEEPER, 0)
        with trio.fail_after(10.0):
            while services.of[KEEPER].reason != "free: waiting for a lane":
                await trio.sleep(0.05)
        assert not services.of[KEEPER].keepers.lanes
        assert len(services.of[SUCCESSOR].keepers.lanes) == 1


async def test_who_comes_back_and_keeps_lanes_before_it_has_seen_anybody_gives_way_to_who_keeps_some(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG, is_kept=False, num_lanes=2) as world:
        services = _Services(world)
        for peer, stage in ((SUCCESSOR, 0), (PeerId("stage1peer0"), 1), (PeerId("stage2peer0"), 2)):
            services.begin(peer, stage)
        with trio.fail_after(10.0):
            while not services.of[SUCCESSOR].keepers.lanes:
                await trio.sleep(0.05)
        services.sees_nobody.add(KEEPER)
        services.begin(KEEPER, 0)
        with trio.fail_after(10.0):
            while not services.of[KEEPER].is_needed:
                await trio.sleep(0.05)
        services.sees_nobody.clear()
        with trio.fail_after(10.0):
            while services.of[KEEPER].is_needed:
                await trio.sleep(0.05)
        assert len(services.of[SUCCESSOR].keepers.lanes) == 1
        assert services.of[KEEPER].reason == "free: waiting for a lane"


async def test_a_lane_of_a_round_that_a_member_has_left_behind_since_it_said_where_it_stands_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG, is_kept=False) as world:
        services, spare = _Services(world), PeerId("stage1peer0")
        services.begin(KEEPER, 0)
        services.begin(spare, 1)
        with trio.fail_after(10.0):
            while services.of[spare].reason != "free: waiting for a lane":
                await trio.sleep(0.05)
        world.rounds.anchors[0, 1] = (torch.zeros(1), torch.zeros(1))  # its stage's commit comes
        begin = LaneBegin(7, 0, Point(0, 0), (KEEPER, spare, PeerId("stage2peer0")))
        reply = await world.networks[KEEPER].call(spare, MEMBER_CHANNEL, encode_lane_message(begin), timeout_s=1.0)
        assert "a lane of round 1, here it is 2" in whole_answer(reply).reason
        assert services.of[spare].member.seat is None
        await trio.sleep(2.0)
        again = LaneBegin(7, 0, Point(1, 0), begin.members)
        reply = await world.networks[KEEPER].call(spare, MEMBER_CHANNEL, encode_lane_message(again), timeout_s=1.0)
        assert whole_answer(reply).reason == ""


async def test_when_the_keeper_dies_the_next_one_makes_new_lanes_of_who_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _open(2) as services:
        world = services.world
        await world.rounds.anchor(0)
        before = set(services.of[KEEPER].keepers.lanes)
        world.rounds.num_lanes = 1
        world.kill(KEEPER)
        await world.rounds.anchor(1)
        kept = services.of[SUCCESSOR].keepers.lanes
        assert len(kept) == 1
        assert not before & set(kept), "what is late of a former lane is taken for none of these"
        assert all(
            isinstance(lane, LaneState) and set(lane.members) <= set(services.seated()) for lane in kept.values()
        )
        assert services.of[SUCCESSOR].num_lanes == 1


async def test_a_stage_that_nobody_holds_pauses_the_run_in_one_sentence_until_a_newcomer_takes_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _open(2) as services:
        world, newcomer = services.world, PeerId("stage1peer2")
        await world.rounds.anchor(0)
        world.rounds.num_lanes = 1
        with capture_logs() as logs:
            for number in range(2):
                world.kill(PeerId(f"stage1peer{number}"))
            await trio.sleep(20.0)
            rest = [service for peer, service in services.of.items() if peer not in world.killed]
            assert {service.paused for service in rest} == {PAUSED}
            assert services.seated() == [], "their lanes are no more"
            committed = len(world.rounds.anchors)
            services.begin(newcomer, 1)
            await world.rounds.anchor(2)
        assert {service.paused for service in rest} == {""}
        assert newcomer in services.seated()
        assert len(world.rounds.anchors) > committed
        reported = [log["event"] for log in logs if log["event"] in ("run_paused", "run_goes_on")]
        assert reported == ["run_paused"] * len(rest) + ["run_goes_on"] * len(rest)
