"""A lane's keeper: whom it hears, whom it takes for a spare, and how soon it finds out."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from peer.lane_calls import KEEPER_CHANNEL, read_answer
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId
from protocol.pipeline import lane_messages as said
from protocol.pipeline.lane_stage import Point
from protocol.pipeline.lane_wire import encode_lane_message
from tests.peer.lane_swarm import KEEPER, open_lanes
from tests.peer.lane_world import NUM_STAGES, lane_config

CONFIG = lane_config(inner_steps=3, snapshot_steps=2)
START = Point(0, 0)
STRANGER, VICTIM = PeerId("stranger"), PeerId("lane0stage1")


async def test_nobody_but_a_lanes_members_is_heard_and_they_only_as_members(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        stranger = world.swarm.start(STRANGER)
        await trio.sleep(0.05)
        for message in (
            said.LaneSquare(0, 0, START, 1.0),
            said.LaneLeave(0, 0, "why"),
            said.LaneSquare(9, 0, START, 1.0),
        ):
            reply = await stranger.call(KEEPER, KEEPER_CHANNEL, encode_lane_message(message), timeout_s=1.0)
            assert "about lane" in read_answer(reply)
        ping = encode_lane_message(said.LanePing(0, 0))
        member = world.networks[VICTIM]
        assert "a member's word" in read_answer(await member.call(KEEPER, KEEPER_CHANNEL, ping, timeout_s=1.0))
        assert "whole message" in read_answer(await member.call(KEEPER, KEEPER_CHANNEL, b"\xff", timeout_s=1.0))
        await world.rounds.anchor(0)
        assert world.lane(0).epoch == 0


async def test_a_lane_is_kept_once(autojump_clock: trio.testing.MockClock) -> None:
    async with open_lanes(CONFIG) as world:
        await trio.sleep(0.05)
        assert world.keepers is not None
        with pytest.raises(LocalProtocolError, match="once more"):
            await world.keepers.keep(0, world.lane(0).members, START)


async def test_a_spare_that_has_a_seat_elsewhere_is_passed_over_for_one_that_is_free(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG, num_lanes=2) as world:
        world.listed.append(PeerId("lane1stage1"))
        free = world.spare("free")
        await world.rounds.anchor(0)
        world.kill(VICTIM)
        await world.rounds.anchor(1)
        assert world.lane(0).members[1] == free
        assert world.lane(1).epoch == 0


@pytest.mark.parametrize("stage", range(NUM_STAGES))
async def test_a_dead_process_is_replaced_within_two_seconds_and_the_next_pass_done(
    autojump_clock: trio.testing.MockClock, stage: int
) -> None:
    async with open_lanes(CONFIG) as world:
        world.spare("spare")
        await world.rounds.anchor(0)
        killed_s = trio.current_time()
        done_s: list[float] = []
        world.about = lambda peer, place, batch, is_backward: (
            done_s.append(trio.current_time())
            if batch.weights == 1 and place == NUM_STAGES - 1 and is_backward
            else None
        )
        world.kill(PeerId(f"lane0stage{stage}"))
        await world.rounds.anchor(1)
    assert done_s[0] - killed_s < 2.0
