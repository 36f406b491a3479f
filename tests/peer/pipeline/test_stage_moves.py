"""A peer moves to the stage that the run lacks more. It moves at the end of a round, by a leave and a join."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from peer.pipeline.lane_service import LaneRole, LaneService
from peer.pipeline.stage_moves import MoveRole, StageMoves
from protocol.ids import CommitId, PeerId
from protocol.pipeline.lanes.lane_forming import ENDS_WITHIN_S
from protocol.pipeline.placement.rebalancing import SETTLED_S, TURN_S
from tests.peer.lane_swarm import LaneSwarm, open_lanes
from tests.peer.lane_world import NUM_STAGES, lane_config
from tests.peer.stage_world import STAGES

CONFIG = lane_config(inner_steps=3)
ALL = tuple(range(NUM_STAGES))
GENESIS = CommitId(b"g" * 32)
SLOWLY_S = 60.0
"""A round."""


class _Movers:
    """Peers that hold stages, each of which looks whether it should move.

    Args:
        free_fit: stages that those who serve no lane have room for.

    Attributes:
        moved: who went to which stage, and how many rounds of its own were over then.
        of: the newest look of each peer.
    """

    def __init__(self, world: LaneSwarm, replicas: Sequence[int], horizon_s: float, free_fit: Sequence[int]) -> None:
        self.services: dict[PeerId, LaneService] = {}
        self.of: dict[PeerId, StageMoves] = {}
        self.moved: list[tuple[PeerId, int, int]] = []
        self.world, self.free_fit, self._horizon_s = world, free_fit, horizon_s
        for stage, num in enumerate(replicas):
            for number in range(num):
                self._open(PeerId(f"stage{stage}peer{number}"), stage)

    def serves(self, peer: PeerId) -> bool:
        return self.services[peer].member.seat is not None

    def _holders(self, of: int) -> list[PeerId]:
        return [peer for peer, one in self.services.items() if one.role.stage == of]

    def _index(self, of: int) -> int:
        return sum(1 for _, stage in self.world.rounds.anchors if stage == of)

    def _open(self, peer: PeerId, stage: int) -> None:
        index = partial(self._index, stage)
        service = self.services[peer] = LaneService(
            self.world.tools(peer), LaneRole(stage, 1, GENESIS, self._holders, index, lambda: "")
        )
        service.serve()
        self.world.start(peer, service.run)
        role = MoveRole(peer, stage, STAGES, _Room(self, peer), self._holders, index, lambda: self._horizon_s)
        self.of[peer] = StageMoves(role, partial(self._move, peer))
        self.world.nursery.start_soon(self.of[peer].run, service)

    async def _move(self, peer: PeerId, to: int) -> None:
        service = self.services[peer]
        assert service.member.seat is None
        self.moved.append((peer, to, service.role.index()))
        for scope in self.world.scopes.pop(peer):
            scope.cancel()
        self._open(peer, to)


class _Room:
    """The stages that a peer has room for at this moment."""

    def __init__(self, movers: _Movers, peer: PeerId) -> None:
        self._movers, self._peer = movers, peer

    def __iter__(self) -> Iterator[int]:
        return iter(ALL if self._movers.serves(self._peer) else self._movers.free_fit)


@asynccontextmanager
async def _open_movers(
    *replicas: int, num_lanes: int = 1, horizon_s: float = 3600.0, free_fit: Sequence[int] = ALL
) -> AsyncIterator[_Movers]:
    within_s = SETTLED_S + 2 * ENDS_WITHIN_S
    async with open_lanes(CONFIG, num_lanes=num_lanes, is_kept=False, within_s=within_s) as world:
        world.rounds.takes_s = SLOWLY_S
        yield _Movers(world, replicas, horizon_s, free_fit)


async def test_a_peer_that_serves_no_lane_goes_where_another_lane_lacks_one_and_those_who_serve_stay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # rounds are of two lanes: the first one waits in its round, and the second one begins when that has lasted long
    async with _open_movers(3, 1, 2, num_lanes=2) as movers:
        await trio.sleep(SETTLED_S / 2)
        needed = {peer for peer, one in movers.services.items() if one.is_needed}
        await movers.world.rounds.anchor(0)
        ((peer, stage, _),) = movers.moved
        assert stage == 1
        assert peer.startswith("stage0")
        assert peer not in needed
        assert sum(one.member.seat is not None for one in movers.services.values()) == 2 * NUM_STAGES


async def test_where_those_who_are_free_have_no_room_one_that_serves_goes_after_their_turns_at_the_end_of_a_round(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with _open_movers(3, 1, 2, free_fit=(0, 2)) as movers:
        await trio.sleep(SETTLED_S / 2)
        (serving,) = [peer for peer in movers.services if peer.startswith("stage0") and movers.serves(peer)]
        while not movers.moved:
            await trio.sleep(1.0)
        ((peer, stage, index),) = movers.moved
        assert (peer, stage) == (serving, 1)
        assert trio.current_time() > SETTLED_S + 6 * TURN_S, "all six had their turn"
        assert index * SLOWLY_S > SETTLED_S + 6 * TURN_S + 2 * SLOWLY_S, (
            "it let two rounds pass, for two others would go"
        )


@pytest.mark.parametrize(
    ("replicas", "horizon_s", "reason"),
    [((3, 1, 2), 0.0, "the run is complete"), ((2, 2, 2), 3600.0, "no move of ours is worth it")],
)
async def test_nobody_moves_when_the_run_is_complete_or_its_stages_are_alike(
    autojump_clock: trio.testing.MockClock, replicas: tuple[int, ...], horizon_s: float, reason: str
) -> None:
    async with _open_movers(*replicas, num_lanes=2, horizon_s=horizon_s) as movers:
        await trio.sleep(SETTLED_S + 10.0)
        assert not movers.moved
        assert {one.reason for one in movers.of.values()} == {reason}
