"""A peer goes over to the stage of which the run has less: at the end of a round, as one who leaves and joins again."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import trio
import trio.testing

from peer.holdings.held_stage import NO_PACES, placement_of
from peer.pipeline.lane_service import LaneRole, LaneService
from peer.pipeline.stage_moves import MoveRole, StageMoves
from protocol.ids import PeerId
from protocol.pipeline.lanes.lane_forming import ENDS_WITHIN_S
from protocol.pipeline.placement.rebalancing import SETTLED_S, TURN_S
from tests.peer.lane_swarm import open_lanes
from tests.peer.lane_world import NUM_STAGES, lane_config, run_data_peers
from tests.peer.stage_world import STAGES
from tests.peer.synced_swarm import GENESIS, SyncedSwarm, open_synced

CONFIG = lane_config(inner_steps=3, suspect_after_s=4.0)
ALL = tuple(range(NUM_STAGES))
SLOWLY_S = 4.0
"""A piece of work: rounds of half a minute."""


class _Movers:
    """Every peer of a swarm looks whether it should move.

    Attributes:
        moved: who went to which stage, and how many rounds of its own were over then.
    """

    def __init__(self, world: SyncedSwarm, horizon_s: float = 3600.0, paces: Mapping[PeerId, float] = NO_PACES) -> None:
        self._paces = paces
        self.moved: list[tuple[PeerId, int, int]] = []
        self.of: dict[PeerId, StageMoves] = {}
        self._world = world
        self._horizon_s = horizon_s
        for peer in list(world.services):
            self._watch(peer)

    def _watch(self, peer: PeerId) -> None:
        service = self._world.services[peer]
        role = MoveRole(
            peer, service.role.stage, STAGES, ALL, service.role.holders, service.role.index, lambda: self._horizon_s,
            lambda: self._paces,
        )  # fmt: skip
        self.of[peer] = StageMoves(role, service, partial(self._moves, peer))
        self._world.nursery.start_soon(self.of[peer].run)

    async def _moves(self, peer: PeerId, stage: int) -> None:
        service = self._world.services[peer]
        assert service.member.seat is None
        self.moved.append((peer, stage, service.role.index()))
        self._world.begin_anew(peer, stage)
        self._watch(peer)


async def test_one_of_three_replicas_goes_to_the_stage_that_has_one_and_the_run_stays_one_process(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG, replicas=(3, 1, 2)) as world:
        world.pace_s = dict.fromkeys(world.services, SLOWLY_S)
        movers = _Movers(world)
        with trio.fail_after(SETTLED_S + 20 * TURN_S):
            while not movers.moved:
                await trio.sleep(1.0)
            while len(world.seated(1)) < 2:
                await trio.sleep(1.0)
        ((peer, stage, index),) = movers.moved
        assert peer.startswith("stage0")
        assert stage == 1
        assert world.owner.state.members.keys() >= world.seated(0)  # who owns the group is not who goes
        last = world.owner.state.at.round
        found_N = await world.rounds.anchor(last)
        assert index <= last
        assert world.done[peer] > 0
        assert float((found_N - run_data_peers(1, last + 1, CONFIG.inner_steps)).abs().max()) <= 1e-10
        assert len(movers.moved) == 1


async def test_one_of_three_fast_replicas_goes_to_the_stage_whose_two_were_measured_to_be_slow(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG, replicas=(3, 2, 2)) as world:
        world.pace_s = dict.fromkeys(world.services, SLOWLY_S)
        costs = placement_of(STAGES, {}).costs
        paces = {
            peer: (0.1 if one.role.stage == 1 else 1.0) / costs[one.role.stage] for peer, one in world.services.items()
        }
        movers = _Movers(world, paces=paces)
        with trio.fail_after(SETTLED_S + 20 * TURN_S):
            while not movers.moved:
                await trio.sleep(1.0)
        ((peer, stage, _),) = movers.moved
        assert peer.startswith("stage0")
        assert stage == 1


async def test_where_a_round_is_longer_than_several_turns_one_goes_at_its_end_and_not_all_who_waited_for_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG, replicas=(3, 2, 2)) as world:
        world.pace_s = dict.fromkeys(world.services, 4 * SLOWLY_S)
        costs = placement_of(STAGES, {}).costs
        paces = {
            peer: (0.1 if one.role.stage == 1 else 1.0) / costs[one.role.stage] for peer, one in world.services.items()
        }
        movers = _Movers(world, paces=paces)
        with trio.fail_after(100 * TURN_S):
            while not movers.moved:
                await trio.sleep(1.0)
        assert trio.current_time() > SETTLED_S + 2 * TURN_S, "the other had its turn, too"
        await trio.sleep(TURN_S)
        assert len(movers.moved) == 1


async def test_a_peer_that_serves_no_lane_goes_where_another_lane_lacks_one_and_those_who_serve_stay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    places = {
        PeerId(f"stage{stage}peer{number}"): stage for stage, num in enumerate((3, 1, 2)) for number in range(num)
    }
    services, moved = dict[PeerId, LaneService](), list[tuple[PeerId, int]]()
    # rounds are of two lanes: the first one waits in its round, and the second one begins when that has lasted long
    async with open_lanes(CONFIG, num_lanes=2, is_kept=False, within_s=SETTLED_S + 2 * ENDS_WITHIN_S) as world:

        def open_peer(peer: PeerId, stage: int) -> None:
            def holders(of: int) -> list[PeerId]:
                return [other for other, one in services.items() if one.role.stage == of]

            def index() -> int:
                return sum(1 for _, of in world.rounds.anchors if of == stage)

            async def move(to: int) -> None:
                moved.append((peer, to))
                for scope in world.scopes.pop(peer):
                    scope.cancel()
                open_peer(peer, to)

            services[peer] = LaneService(world.tools(peer), LaneRole(stage, 1, GENESIS, holders, index, lambda: ""))
            services[peer].serve()
            world.start(peer, services[peer].run)
            role = MoveRole(peer, stage, STAGES, ALL, holders, index, lambda: 3600.0)
            world.nursery.start_soon(StageMoves(role, services[peer], move).run)

        for peer, stage in places.items():
            open_peer(peer, stage)
        await trio.sleep(SETTLED_S / 2)
        serving = {peer for peer, one in services.items() if one.member.seat is not None or one.keepers.lanes}
        await world.rounds.anchor(0)
        assert [to for _, to in moved] == [1]
        assert places[moved[0][0]] == 0
        assert moved[0][0] not in serving
        assert sum(one.member.seat is not None for one in services.values()) == 2 * NUM_STAGES


async def test_nobody_moves_when_the_run_is_complete_or_its_stages_are_alike(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for replicas, horizon_s, reason in (
        ((3, 1, 2), 0.0, "the run is complete"),
        ((2, 2, 2), 3600.0, "no move of ours is worth it"),
    ):
        async with open_synced(CONFIG, replicas=replicas) as world:
            world.pace_s = dict.fromkeys(world.services, 60.0)
            movers = _Movers(world, horizon_s)
            await trio.sleep(SETTLED_S + 10.0)
            assert not movers.moved
            assert {one.reason for one in movers.of.values()} == {reason}
