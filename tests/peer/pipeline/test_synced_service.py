"""Peers that hold stages take synced steps over the network: one process's parameters, whoever dies, freezes or says it twice."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from peer.models.decoder import load_flat
from protocol.ids import PeerId
from protocol.pipeline.schedule import Pass
from protocol.pipeline.stage_machine import Point
from tests.peer.lane_world import (
    NUM_MICRO_BATCHES,
    NUM_STAGES,
    crossed_model,
    lane_config,
    run_data_peers,
    tokens_of,
)
from tests.peer.stage_world import ANCHOR_N, SCHEMA, whole_loss, whole_model
from tests.peer.synced_swarm import OWNER, SyncedSwarm, open_synced

CONFIG = lane_config(inner_steps=3, suspect_after_s=4.0)
(OTHER_FIRST,) = {PeerId("stage0peer0"), PeerId("stage0peer1")} - {OWNER}


def off(found_N: torch.Tensor, rounds: int) -> float:
    """Largest difference to one process that does the same."""
    return float((found_N - run_data_peers(1, rounds, CONFIG.inner_steps)).abs().max())


def once(
    world: SyncedSwarm, stage: int, at: Point, *, is_backward: bool, then: Callable[[PeerId], None], first: int = 0
) -> list[PeerId]:
    """Something happens to the first replica of a stage, not the owner, that is about to do such work."""
    whom = list[PeerId]()

    def about(peer: PeerId, place: int, point: Point, work: Pass) -> None:
        is_it = (place, point, work.is_backward) == (stage, at, is_backward) and work.number >= first
        if is_it and peer != OWNER and not whom:
            whom.append(peer)
            then(peer)

    world.about = about
    return whom


async def test_two_replicas_of_each_of_three_stages_are_one_process(autojump_clock: trio.testing.MockClock) -> None:
    async with open_synced(CONFIG) as world:
        found_N = await world.rounds.anchor(1)
        assert off(found_N, 2) <= 1e-10
        assert set(world.rounds.tokens.values()) == {CONFIG.inner_steps * CONFIG.step_tokens}
        assert len(world.done) > NUM_STAGES
        assert 0 < world.owner.most_held_bytes <= world.owner.bound_bytes
        assert all(not commit.removed for commit in world.owner.commits)


@pytest.mark.parametrize(("stage", "is_backward"), [(0, True), (1, False), (1, True), (2, True)])
async def test_a_replica_that_is_killed_in_mid_pass_changes_nothing_and_no_micro_batch_is_lost(
    stage: int, is_backward: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_synced(CONFIG) as world:
        world.pace_s[OWNER] = 0.1  # or its stage's work would be done first by itself, which no message has to reach
        killed = once(world, stage, Point(0, 1), is_backward=is_backward, then=world.kill)
        found_N = await world.rounds.anchor(1)
        assert killed
        assert off(found_N, 2) <= 1e-10
        assert all(not commit.removed for commit in world.owner.commits)


@pytest.mark.parametrize("stage", [0, 1, 2])
async def test_what_a_replica_was_granted_is_done_again_when_it_dies_before_its_sum_is_with_the_others(
    stage: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_synced(CONFIG) as world:

        def summing(peer: PeerId, place: int) -> None:
            if place == stage and peer != OWNER and not world.killed and world.owner.state.at == Point(0, 1):
                world.kill(peer)

        world.summing = summing
        world.pace_s[OWNER] = 0.1
        found_N = await world.rounds.anchor(1)
        assert world.killed
        assert off(found_N, 2) <= 1e-10


async def test_a_replica_that_is_frozen_is_done_without_and_comes_back_with_the_weights_of_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG) as world:
        frozen = once(world, 1, Point(0, 1), is_backward=True, then=world.swarm.freeze)
        await world.rounds.anchor(0)
        world.swarm.thaw(frozen[0])
        with trio.fail_after(60.0):
            while frozen[0] not in world.seated(1):
                await trio.sleep(0.2)
        before = world.done[frozen[0]]
        world.pace_s = dict.fromkeys(world.seated(1) - set(frozen), 0.2)
        last = world.owner.state.at.round + 2
        found_N = await world.rounds.anchor(last)
        assert world.done[frozen[0]] > before
        assert off(found_N, last + 1) <= 1e-10


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_replies_that_are_dropped_after_the_work_was_done_or_come_twice_count_once(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    chooser = random.Random(seed)
    async with open_synced(CONFIG) as world:
        world.comes = lambda reply: chooser.choices([0, 1, 2], [0.2, 0.6, 0.2])[0]
        found_N = await world.rounds.anchor(1)
        assert off(found_N, 2) <= 1e-10


async def test_streams_that_break_again_and_again_bring_what_was_not_answered_once_more_and_nothing_counts_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG) as world:

        async def breaking() -> None:
            while True:
                await trio.sleep(0.11)
                world.break_streams()

        world.nursery.start_soon(breaking)
        assert off(await world.rounds.anchor(1), 2) <= 1e-10


async def test_a_replica_that_is_slow_holds_up_no_step_and_nothing_of_it_counts_twice(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG) as world:
        world.pace_s[PeerId("stage1peer0")] = 3.0
        assert off(await world.rounds.anchor(1), 2) <= 1e-10


async def test_a_replica_whose_first_pass_took_long_has_its_part_again_within_a_few_steps(
    autojump_clock: trio.testing.MockClock,
) -> None:
    slow, passes = PeerId("stage1peer0"), list[Point]()
    async with open_synced(CONFIG) as world:
        world.pace_s[slow] = 2.0

        def about(peer: PeerId, stage: int, at: Point, work: Pass) -> None:
            if peer == slow:
                passes.append(at)
                if len(passes) > 1:
                    world.pace_s[slow] = 0.02

        world.about = about
        last = 2
        assert off(await world.rounds.anchor(last), last + 1) <= 1e-10
    assert passes[0] == Point(0, 0)
    assert any(Point(1, 0) < at for at in passes)


async def test_who_comes_in_the_middle_of_a_round_takes_its_stage_from_another_and_serves_the_very_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    newcomer = PeerId("stage1peer7")
    async with open_synced(CONFIG) as world:
        world.pace_s = dict.fromkeys(world.services, 2.0)
        began = list[Point]()

        def about(peer: PeerId, stage: int, at: Point, work: Pass) -> None:
            if at == Point(0, 1) and newcomer not in world.services:
                world.open(newcomer, 1)
            if peer == newcomer:
                began.append(at)

        world.about = about
        found_N = await world.rounds.anchor(1)
        assert began[0] < Point(1, 0)
        assert off(found_N, 2) <= 1e-10


async def test_where_a_stage_has_nobody_left_the_run_waits_and_goes_on_from_the_last_commit_when_somebody_takes_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG) as world:
        await world.rounds.anchor(0)
        for number in range(2):
            world.kill(PeerId(f"stage1peer{number}"))
        await trio.sleep(20.0)
        assert (1, 0) not in world.rounds.anchors
        assert world.services[OWNER].owners.owner is None
        world.open(PeerId("stage1peer2"), 1)
        found_N = await world.rounds.anchor(1)
        assert len(world.seated(1)) == 1
        expected_N = run_data_peers(1, 1, CONFIG.inner_steps)
        assert float((await world.rounds.anchor(0) - expected_N).abs().max()) <= 1e-10
        assert float((found_N - expected_N).abs().max()) > 0.01  # its moments began anew: not what one process comes to


async def test_when_the_owner_dies_another_one_goes_on_from_the_last_commit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG) as world:
        await world.rounds.anchor(0)
        world.kill(OWNER)
        await world.rounds.anchor(1)
        assert world.services[OTHER_FIRST].owners.owner is not None


async def test_what_the_owner_takes_with_it_is_said_once_and_is_less_than_a_round(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG) as world:

        def about(peer: PeerId, stage: int, at: Point, work: Pass) -> None:
            if at == Point(1, 2) and OWNER not in world.killed and peer != OWNER:
                world.kill(OWNER)

        world.about = about
        with capture_logs() as logs:
            await world.rounds.anchor(1)
        said = [log["lost_tokens"] for log in logs if log["event"] == "synced_lost"]
        assert said == [2 * CONFIG.step_tokens]
        assert world.rounds.tokens[1, 0] > 0


async def test_a_micro_batch_that_is_not_finite_is_removed_at_all_stages_and_the_others_count(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG) as world:
        world.spoilt = {(Point(0, 1), 1)}
        await world.rounds.anchor(0)
        assert [commit.removed for commit in world.owner.commits[:3]] == [frozenset(), frozenset({1}), frozenset()]
        whole, part = CONFIG.step_tokens, CONFIG.step_tokens // NUM_MICRO_BATCHES
        assert set(world.rounds.tokens.values()) == {2 * whole + part}


async def test_with_int8_between_stages_they_are_one_process_that_quantises_at_the_same_places(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_synced(CONFIG, codecs=("int8", "int8")) as world:
        once(world, 1, Point(0, 1), is_backward=True, then=world.kill)
        found_N = await world.rounds.anchor(1)
    expected_N = run_data_peers(1, 2, CONFIG.inner_steps, models=lambda: crossed_model("int8", "int8"))
    assert float((found_N - expected_N).abs().max()) <= 1e-5


@pytest.mark.parametrize("stage", [1, 2])
async def test_each_round_tells_once_what_its_first_parameters_are_worth_on_held_out_text_whoever_dies(
    stage: int, autojump_clock: trio.testing.MockClock
) -> None:
    passes = 3
    async with open_synced(lane_config(inner_steps=2, suspect_after_s=4.0, heldout_passes=passes)) as world:
        killed = once(world, stage, Point(0, 0), is_backward=False, then=world.kill, first=NUM_MICRO_BATCHES)
        found_N = await world.rounds.anchor(0)
        while 1 not in world.measured:
            await trio.sleep(0.1)
        assert killed
        assert float((found_N - run_data_peers(1, 1, 2)).abs().max()) <= 1e-10
        assert world.has_measured[0] == set(world.services) - world.killed
    for index, theta_N in enumerate((ANCHOR_N.double(), found_N)):
        model = whole_model()
        load_flat(model, SCHEMA, theta_N)
        heldout = range(NUM_MICRO_BATCHES, NUM_MICRO_BATCHES + passes)
        losses = [float(whole_loss(model, tokens_of(0, Point(index, 0), number)).detach()) for number in heldout]
        assert world.measured[index] == [pytest.approx(sum(losses) / passes, abs=1e-10)]
