"""Lanes over the network: what their members come to together, whoever dies."""

from __future__ import annotations

import pytest
import torch
import trio
import trio.testing

from protocol.ids import PeerId
from protocol.pipeline.micro_batch import MicroBatch
from tests.peer.lane_swarm import KEEPER, LaneSwarm, open_lanes
from tests.peer.lane_world import STEP_TOKENS, lane_config, run_data_peers
from tests.peer.stage_world import ANCHOR_N
from tests.simulation import virtual_time

CONFIG = lane_config(inner_steps=3, snapshot_steps=2)
VICTIM = PeerId("lane0stage1")
SLOW_S = 60.0


def _kill_at(world: LaneSwarm, step: int, *, is_backward: bool, stage: int = 1) -> None:
    """The first lane's member dies when it is about to do its second micro-batch's pass of a step of the whole run."""

    def about(peer: PeerId, place: int, batch: MicroBatch, way: bool) -> None:
        if (batch.lane, place, batch.step, batch.number, way) == (0, stage, step, 1, is_backward):
            world.about = lambda *_: None
            world.kill(peer)

    world.about = about


async def _until_over(world: LaneSwarm, number: int = 0) -> None:
    with trio.fail_after(SLOW_S):
        while number not in world.ended:
            await trio.sleep(0.1)


async def test_two_lanes_of_three_stages_over_the_network_are_two_data_peers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG, num_lanes=2) as world:
        anchor_N = await world.rounds.anchor(1)
    expected_N = run_data_peers(2, 2, CONFIG.inner_steps)
    assert float((anchor_N - expected_N).abs().max()) <= 1e-10
    assert float((expected_N - ANCHOR_N.double()).abs().max()) > 0.01


async def test_a_member_that_dies_in_mid_backward_is_replaced_by_a_spare_and_changes_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        spare = world.spare("spare")
        # the third step: the newest whole snapshot is that of the second, and this one is half done
        _kill_at(world, 2, is_backward=True)
        anchor_N = await world.rounds.anchor(1)
        state = world.lane(0)
    assert state.epoch == 1
    assert state.members[1] == spare
    assert state.lost_tokens == 0
    assert float((anchor_N - run_data_peers(1, 2, CONFIG.inner_steps)).abs().max()) <= 1e-10


async def test_what_a_lane_trained_since_its_snapshot_is_lost_when_a_member_dies_and_is_trained_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        world.spare("spare")
        # the second step of the second round: only the round's start is kept
        _kill_at(world, 4, is_backward=False, stage=0)
        anchor_N = await world.rounds.anchor(1)
        state = world.lane(0)
    assert state.lost_tokens == STEP_TOKENS
    assert float((anchor_N - run_data_peers(1, 2, CONFIG.inner_steps)).abs().max()) <= 1e-10


async def test_a_lane_without_a_spare_enters_the_round_with_its_last_snapshot_the_lost_stages_from_the_neighbour(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        _kill_at(world, 2, is_backward=True)
        anchor_N = await world.rounds.anchor(0)
        await _until_over(world)
        state, shares = world.ended[0], world.rounds.shares
        assert all(world.members[peer].seat is None for peer in state.living)
    assert {share.tokens for place in shares.values() for share in place.values()} == {2 * STEP_TOKENS}
    expected_N = run_data_peers(1, 1, CONFIG.inner_steps, steps_of=lambda peer, round_: 2)
    assert float((anchor_N - expected_N).abs().max()) <= 1e-10


async def test_two_neighbours_that_die_together_take_the_lanes_work_of_the_round_with_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:

        def about(peer: PeerId, stage: int, batch: MicroBatch, is_backward: bool) -> None:
            if batch.step == 2 and stage == 2:
                world.kill(VICTIM)
                world.kill(peer)

        world.about = about
        await _until_over(world)
        assert not world.rounds.shares
        assert world.ended[0].lost_tokens == 2 * STEP_TOKENS


async def test_a_member_that_says_goodbye_is_replaced_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_lanes(CONFIG) as world:
        world.spare("spare")
        left_s = []

        def about(peer: PeerId, stage: int, batch: MicroBatch, is_backward: bool) -> None:
            if (stage, batch.step, batch.weights) == (1, 2, 0) and not left_s:
                left_s.append(trio.current_time())
                world.members[peer].leave("asked to leave")
            elif batch.weights == 1 and len(left_s) == 1:
                left_s.append(trio.current_time())

        world.about = about
        anchor_N = await world.rounds.anchor(0)
        assert world.members[VICTIM].seat is None
        assert world.lane(0).epoch == 1
    assert left_s[1] - left_s[0] < 0.3
    assert float((anchor_N - run_data_peers(1, 1, CONFIG.inner_steps)).abs().max()) <= 1e-10


async def test_a_member_that_froze_finds_its_seat_given_to_another(autojump_clock: trio.testing.MockClock) -> None:
    async with open_lanes(CONFIG) as world:
        spare = world.spare("spare")

        def about(peer: PeerId, stage: int, batch: MicroBatch, is_backward: bool) -> None:
            if (stage, batch.step, batch.weights) == (1, 2, 0):
                world.about = lambda *_: None
                world.swarm.freeze(peer)

        world.about = about
        anchor_N = await world.rounds.anchor(0)
        assert world.lane(0).members[1] == spare
        world.swarm.thaw(VICTIM)
        with trio.fail_after(SLOW_S):
            while world.members[VICTIM].seat is not None:
                await trio.sleep(0.1)
    assert float((anchor_N - run_data_peers(1, 1, CONFIG.inner_steps)).abs().max()) <= 1e-10


async def test_a_lane_whose_keeper_is_gone_ends_without_weight(autojump_clock: trio.testing.MockClock) -> None:
    async with open_lanes(CONFIG) as world:
        await world.rounds.anchor(0)
        world.kill(KEEPER)
        with trio.fail_after(SLOW_S):
            while any(member.seat is not None for member in world.members.values()):
                await trio.sleep(0.1)
        assert {round_ for round_, _ in world.rounds.shares} == {0}


async def test_streams_that_break_lose_no_micro_batch_and_bring_none_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        passes: list[tuple[int, MicroBatch, bool]] = []
        world.about = lambda peer, stage, batch, is_backward: passes.append((stage, batch, is_backward))
        with trio.fail_after(SLOW_S):
            while (0, 0) not in world.rounds.anchors:
                world.break_streams()
                await trio.sleep(0.3)
        anchor_N = await world.rounds.anchor(0)
        assert world.lane(0).epoch == 0
        first = [done for done in passes if done[1].step < CONFIG.inner_steps]
    assert len(first) == len(set(first)) == CONFIG.inner_steps * 2 * 2 * 3
    assert float((anchor_N - run_data_peers(1, 1, CONFIG.inner_steps)).abs().max()) <= 1e-10


async def test_two_stages_that_cannot_reach_each_other_do_not_hold_up_the_lane_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        world.spare("spare")
        await world.rounds.anchor(0)
        world.swarm.cut([PeerId("lane0stage0")], [VICTIM])
        anchor_N = await world.rounds.anchor(1)
        assert world.lane(0).epoch == 1
    assert float((anchor_N - run_data_peers(1, 2, CONFIG.inner_steps)).abs().max()) <= 1e-10


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_lane_on_a_network_that_loses_and_doubles_messages_comes_to_the_same(seed: int) -> None:
    async def main() -> torch.Tensor:
        async with open_lanes(CONFIG, seed=seed) as world:
            world.swarm.loss, world.swarm.duplicated, world.swarm.reorder_s = 0.05, 0.2, 0.05
            for number in range(6):
                world.spare(f"spare{number}")
            return await world.rounds.anchor(1)

    # the same order of everything each time: this much loss may end a lane before its first snapshot
    anchor_N = virtual_time.run(seed, main)
    assert float((anchor_N - run_data_peers(1, 2, CONFIG.inner_steps)).abs().max()) <= 1e-10
