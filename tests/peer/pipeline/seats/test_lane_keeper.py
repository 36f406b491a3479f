"""A lane's keeper: whom it hears, whom it takes for a spare, and how soon it finds out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.memory.memory_network import MemoryNetwork
from peer.pipeline.seats.lane_member import LaneMember, stage_size
from peer.pipeline.transport.lane_calls import KEEPER_CHANNEL, read_answer
from peer.pipeline.transport.lane_outbox import give
from peer.pipeline.transport.lane_work import Confirm, LaneShare
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, short
from protocol.pipeline.messages import lane_messages as msg
from protocol.pipeline.messages.lane_wire import encode_lane_message
from protocol.pipeline.micro_batch import MicroBatch
from protocol.pipeline.stage_machine import Point
from tests.peer.lane_swarm import KEEPER, open_lanes
from tests.peer.lane_world import NUM_STAGES, STEP_TOKENS, lane_config
from tests.peer.stage_world import STAGES

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
            msg.LaneSquare(0, 0, START, 1.0),
            msg.LaneLeave(0, 0, "why"),
            msg.LaneSquare(9, 0, START, 1.0),
        ):
            reply = await stranger.call(KEEPER, KEEPER_CHANNEL, encode_lane_message(message), timeout_s=1.0)
            assert "about lane" in read_answer(reply)
        ping = encode_lane_message(msg.LanePing(0, 0))
        member = world.networks[VICTIM]
        assert "a member's message" in read_answer(await member.call(KEEPER, KEEPER_CHANNEL, ping, timeout_s=1.0))
        assert "whole message" in read_answer(await member.call(KEEPER, KEEPER_CHANNEL, b"\xff", timeout_s=1.0))
        await world.rounds.anchor(0)
        assert world.lane(0).epoch == 0


async def test_a_member_that_asks_hears_that_its_lane_is_kept_and_who_is_none_that_it_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        stranger = world.swarm.start(STRANGER)
        await trio.sleep(0.05)

        async def ask(network: MemoryNetwork, lane: int) -> str:
            here = encode_lane_message(msg.LaneHere(lane, 0))
            return read_answer(await network.call(KEEPER, KEEPER_CHANNEL, here, timeout_s=1.0))

        assert await ask(world.networks[VICTIM], 0) == ""
        assert "a lane that is kept here" in await ask(world.networks[VICTIM], 1)
        assert "a member of it" in await ask(stranger, 0)


async def test_what_a_lane_left_is_taken_from_who_was_to_give_it_alone_and_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_lanes(CONFIG) as world:
        taken = list[LaneShare]()

        async def take(_giver: PeerId, share: LaneShare, confirm: Confirm) -> str:
            reason = await confirm()
            taken.extend([] if reason else [share])
            return reason

        heirs = [PeerId("heir"), PeerId("other")]
        for heir in heirs:
            member = LaneMember(replace(world.tools(heir), take_gift=take), lambda number: KEEPER, world.bring)
            member.serve()
            world.start(heir, member.run)

        def about(peer: PeerId, stage: int, batch: MicroBatch, is_backward: bool) -> None:
            if (stage, batch.step, batch.number, is_backward) == (1, 2, 1, True):
                world.kill(peer)

        world.about = about
        with trio.fail_after(20.0):
            while 0 not in world.ended:
                await trio.sleep(0.05)
        tokens, at = 2 * STEP_TOKENS, Point(0, 2)
        values_N = torch.ones(stage_size(STAGES, 1))

        async def brings(giver: PeerId, heir: PeerId, tokens: int) -> str:
            gift = msg.LaneGift(0, at, 1, tokens, 4 * values_N.numel())
            return await give(world.networks[giver], heir, gift, values_N.numpy().tobytes())

        first, last = PeerId("lane0stage0"), PeerId("lane0stage2")
        assert "which ended with" in await brings(last, heirs[0], STEP_TOKENS)
        assert "s to bring" in await brings(first, heirs[0], tokens)
        assert not taken
        assert await brings(last, heirs[0], tokens) == ""
        assert "heir was given it" in await brings(last, heirs[1], tokens)
        assert [(share.lane, share.stage, share.round, share.tokens) for share in taken] == [(0, 1, 0, tokens)]
        world.kill(KEEPER)
        assert "cannot be asked" in await brings(last, heirs[1], tokens)


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_part_whose_holder_never_hears_that_the_lane_ended_is_said_to_be_lost(
    autojump_clock: trio.testing.MockClock, is_killed: bool
) -> None:
    frozen = PeerId("lane0stage0")
    async with open_lanes(replace(CONFIG, suspect_after_s=20.0)) as world:
        await world.rounds.anchor(0)
        with capture_logs() as logs, trio.fail_after(30.0):
            world.swarm.freeze(frozen)
            world.kill(VICTIM)
            await trio.sleep(3.0)
            if is_killed:
                world.kill(frozen)
            while 0 not in world.ended:
                await trio.sleep(0.05)
    said_lost = [log for log in logs if log["event"] == "lane_share_lost"]
    assert [(log["lane"], log["stage"], log["tokens"]) for log in said_lost] == [(0, 0, 3 * STEP_TOKENS)]
    assert f"{short(frozen)}, which was to contribute it, was " in said_lost[0]["reason"]


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


async def test_connections_that_break_put_nobody_out_of_a_lane(autojump_clock: trio.testing.MockClock) -> None:
    async with open_lanes(CONFIG) as world:
        world.swarm.broken = 0.1  # of all calls, there or back
        with capture_logs() as logs:
            for index in range(3):
                await world.rounds.anchor(index)
        assert world.lane(0).epoch == 0
        assert not world.ended
        assert not [log for log in logs if log["event"] == "lane_member_lost"]


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
