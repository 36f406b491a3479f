from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import torch
import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.rounds.lineage.adoption import Mixing
from averaging.rounds.lineage.trainer_updates import HELD_BACK_WITHIN_S, MOST_WAITING, NUM_KEPT, TrainerUpdater
from averaging.rounds.lineage.unit_chain import PreparedSwitch
from averaging.rounds.traffic.contribution import EncodedContribution
from protocol.errors import MachineError
from protocol.ids import Root
from tests.at_once import encode_contribution, encode_with_feedback
from tests.averaging.rounds.exchange_world import theta
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    TOKENS,
    MadeCommit,
    Party,
    RoundWorld,
    open_world,
    tree_nodes,
)
from tests.averaging.rounds.service_world import Bench, HandTrainer, bench_in, with_feedback

Clock = trio.testing.MockClock


@dataclass
class Scene:
    """The first party's trainer and whoever tells it of commits."""

    world: RoundWorld
    bench: Bench
    trainer: HandTrainer

    @property
    def party(self) -> Party:
        return self.bench.party

    @property
    def adopter(self) -> TrainerUpdater:
        return self.bench.adopter

    def offer(self) -> EncodedContribution:
        """The trainer's work, offered on the head."""
        anchor_N = self.party.chain.state.anchor_N
        mine = encode_contribution(anchor_N, self.trainer.theta_N, self.trainer.tokens, CODEC, GRID)
        self.adopter.remember(mine)
        return mine

    def next_commit(self, seed: int, mine: EncodedContribution | None, *, is_lone: bool = False) -> MadeCommit:
        """On the head; it counts our offer where there is one."""
        roots = [mine.root, Root(b"o" * 32), Root(b"p" * 32)] if mine is not None else []
        members = [0] if is_lone else [0, 1, 2] if mine is not None else [1, 2]
        return self.world.commit_on(
            self.party.chain.head, seed, members=members, voters=members, roots=roots, is_lone=is_lone
        )

    async def commit(self, commit: MadeCommit, mine: EncodedContribution | None) -> None:
        applied = await self.party.apply(commit)
        await self.adopter.commit(commit.link, commit.record, applied, mine)


@asynccontextmanager
async def _scene(beta: float = 0.0, mixing: Mixing | None = None) -> AsyncIterator[Scene]:
    async with open_world() as world:
        if beta:
            with_feedback(world.parties[0], beta)
        trainer = HandTrainer(theta(1), TOKENS)
        async with bench_in(world, trainer=trainer, mixing=mixing) as (bench, _):
            await trio.sleep(0.1)
            yield Scene(world, bench, trainer)


async def test_the_trainer_has_the_anchor_from_the_beginning(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        assert scene.trainer.done == ["set_anchor"]
        torch.testing.assert_close(scene.trainer.anchor_N, scene.world.genesis.anchor_N, rtol=0, atol=0)
        assert scene.adopter.is_idle


async def test_a_commit_moves_the_anchor_and_theta_and_spends_what_it_counted(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        mine = scene.offer()
        scene.trainer.theta_N = scene.trainer.theta_N + 0.5
        scene.trainer.tokens += 30
        commit = scene.next_commit(5, mine)
        await scene.commit(commit, mine)
        await scene.adopter.wait_adopted()
        anchor_N = scene.party.chain.state.anchor_N
        torch.testing.assert_close(scene.trainer.theta_N, anchor_N + 0.5, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scene.trainer.anchor_N, anchor_N, rtol=0, atol=0)
        assert (scene.trainer.tokens, scene.trainer.schedule) == (30, commit.link.total_tokens)
        assert scene.trainer.done[1:] == ["set_anchor", "shift"], "a worker that dies now comes back on the new anchor"


async def test_a_commit_within_the_delay_is_mixed_into_theta_and_a_later_one_leaves_all_work(
    autojump_clock: Clock,
) -> None:
    for tokens_since, replicas, alpha in ((30, 1, 0.25), (31, 1, 1.0), (60, 2, 0.25), (61, 2, 1.0)):
        async with _scene(mixing=Mixing(0.25, 30)) as scene:
            scene.trainer.num_replicas = replicas
            mine = scene.offer()
            scene.trainer.theta_N = scene.trainer.theta_N + 0.5
            scene.trainer.tokens += tokens_since
            snapshot_N, theta_N = mine.theta_N.clone(), scene.trainer.theta_N
            await scene.commit(scene.next_commit(5, mine), mine)
            await scene.adopter.wait_adopted()
            anchor_N = scene.party.chain.state.anchor_N
            mixed_N = alpha * theta_N + (1.0 - alpha) * anchor_N
            expected_N = mixed_N if alpha < 1.0 else anchor_N + (theta_N - snapshot_N)
            torch.testing.assert_close(scene.trainer.theta_N, expected_N, rtol=1e-5, atol=1e-5)
            assert scene.trainer.tokens == tokens_since


async def test_counted_tokens_are_pending_until_the_trainer_has_taken_them_off(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        mine = scene.offer()
        scene.trainer.hold("shift")
        await scene.commit(scene.next_commit(5, mine), mine)
        await trio.sleep(1.0)
        assert (scene.adopter.pending_tokens, scene.adopter.is_idle) == (TOKENS, False)
        scene.trainer.let_go("shift")
        await scene.adopter.wait_adopted()
        assert (scene.adopter.pending_tokens, scene.trainer.tokens) == (0, 0)


async def test_a_commit_that_did_not_count_us_has_nothing_pending(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        scene.trainer.hold("shift")
        await scene.commit(scene.next_commit(5, None), scene.offer())
        assert scene.adopter.pending_tokens == 0
        scene.trainer.let_go("shift")
        await scene.adopter.wait_adopted()
        assert scene.trainer.tokens == TOKENS


async def test_a_slow_training_step_holds_up_nobody_and_the_commits_that_waited_are_told_together(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        scene.trainer.hold("shift")
        began_s = trio.current_time()
        for seed in range(5):
            await scene.commit(scene.next_commit(seed, None), None)
        assert trio.current_time() - began_s < 1.0
        scene.trainer.let_go("shift")
        await scene.adopter.wait_adopted()
        assert scene.trainer.done == ["set_anchor", *["set_anchor", "shift"] * 2]
        chain = scene.party.chain
        torch.testing.assert_close(scene.trainer.theta_N, chain.state.anchor_N + theta(1), rtol=1e-5, atol=1e-5)
        assert scene.trainer.schedule == chain.head.total_tokens


async def test_a_training_process_that_does_not_come_up_keeps_no_more_vectors_however_many_commits_pass(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        chain, mine = scene.party.chain, scene.offer()
        scene.trainer.theta_N = scene.trainer.theta_N + 0.5
        scene.trainer.tokens += 30
        scene.trainer.hold("shift")
        anchors: list[weakref.ref[torch.Tensor]] = []
        for seed in range(4 * MOST_WAITING):
            await scene.commit(scene.next_commit(seed, None if seed else mine), None if seed else mine)
            anchors.append(weakref.ref(chain.state.anchor_N))
            assert scene.adopter.pending_tokens == TOKENS
        gc.collect()
        assert sum(anchor() is not None for anchor in anchors) <= MOST_WAITING + 3, (
            "those that wait, one told, the head's"
        )
        scene.trainer.let_go("shift")
        await scene.adopter.wait_adopted()
        torch.testing.assert_close(scene.trainer.anchor_N, chain.state.anchor_N, rtol=0, atol=0)
        torch.testing.assert_close(scene.trainer.theta_N, chain.state.anchor_N + 0.5, rtol=1e-4, atol=1e-4)
        assert (scene.trainer.tokens, scene.trainer.schedule) == (30, chain.head.total_tokens)


async def test_a_commit_that_others_follow_already_waits_for_the_trainer_and_the_newest_does_not(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        one = scene.next_commit(1, None)
        later = scene.world.commit_on(one.link, 3)
        tree = scene.party.chain.tree.add(one.link, one.certificate)
        longer = tree.add(later.link, later.certificate)
        began_s = trio.current_time()
        for commit in (one, later):
            await scene.adopter.until_light(commit.link, longer)
        assert trio.current_time() == began_s, "the trainer has everything"
        scene.trainer.hold("shift")
        await scene.commit(one, None)
        began_s = trio.current_time()
        await scene.adopter.until_light(one.link, tree)
        assert trio.current_time() == began_s, "the newest commit waits for nothing"
        with trio.move_on_after(HELD_BACK_WITHIN_S / 2) as waiting:
            await scene.adopter.until_light(one.link, longer)
        assert waiting.cancelled_caught
        await scene.adopter.until_light(one.link, longer)
        assert trio.current_time() == began_s + 1.5 * HELD_BACK_WITHIN_S, (
            "a trainer that does not answer holds up nothing for ever"
        )
        with trio.move_on_after(HELD_BACK_WITHIN_S / 2) as waiting:
            await scene.adopter.until_light(later.link, longer)
        assert waiting.cancelled_caught, "it ends a replay"
        began_s = trio.current_time()
        await scene.adopter.until_light(later.link, longer)
        assert trio.current_time() == began_s, "the replay is over"
        scene.trainer.let_go("shift")
        await scene.adopter.until_light(one.link, longer)
        assert scene.adopter.is_idle


async def test_the_newest_commit_waits_for_nothing_beside_a_longer_lineage_that_was_taken_back(
    autojump_clock: Clock,
) -> None:
    """As after a rewind: rounds that it takes back lie further ahead, and word of them may come late."""
    async with _scene() as scene:
        one, link = scene.next_commit(1, None), scene.party.chain.head
        tree = scene.party.chain.tree.add(one.link, one.certificate)
        for seed in range(5, 9):
            back = scene.world.commit_on(link, seed)
            tree, link = tree.add(back.link, back.certificate), back.link
        scene.trainer.hold("shift")
        await scene.commit(one, None)
        began_s = trio.current_time()
        await scene.adopter.until_light(one.link, tree)
        assert trio.current_time() == began_s
        scene.trainer.let_go("shift")


async def test_a_trainer_that_fails_is_left_alone_and_hears_of_the_next_commit(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        mine = scene.offer()
        scene.trainer.failing["shift"] = MachineError("the worker died", "a worker")
        await scene.commit(scene.next_commit(1, mine), mine)
        await scene.adopter.wait_adopted()
        assert (scene.adopter.is_idle, scene.adopter.pending_tokens) == (True, 0)
        del scene.trainer.failing["shift"]
        await scene.commit(scene.next_commit(2, None), None)
        await scene.adopter.wait_adopted()
        torch.testing.assert_close(scene.trainer.anchor_N, scene.party.chain.state.anchor_N, rtol=0, atol=0)
        assert scene.trainer.done[-1] == "shift"


# --- error feedback -----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_dies_at_a_commit_loses_its_delta_and_the_residual_follows_the_commit(
    autojump_clock: Clock,
) -> None:
    async with _scene(beta=0.5) as scene:
        chain, feedback = scene.party.chain, scene.party.chain.tools.feedback
        assert feedback is not None
        mine, fed = encode_with_feedback(
            chain.state.anchor_N, scene.trainer.theta_N, TOKENS, codec_by_name("int4"), feedback.state
        )
        scene.adopter.remember(mine)
        feedback.offer(mine.root, fed)
        scene.trainer.failing["shift"] = MachineError("the worker died", "a worker")
        assert not feedback.state.residual.values_N.any()
        await scene.commit(scene.next_commit(1, mine), mine)
        await scene.adopter.wait_adopted()
        assert torch.equal(feedback.state.residual.values_N, fed.left_N)
        await scene.commit(scene.next_commit(2, None), None)
        await scene.adopter.wait_adopted()
        assert torch.equal(feedback.state.residual.values_N, fed.left_N)


async def test_what_the_codec_left_out_of_a_mixed_commit_is_offered_by_the_residual_alone(
    autojump_clock: Clock,
) -> None:
    async with _scene(beta=0.5, mixing=Mixing(0.5, TOKENS)) as scene:
        chain, coarse = scene.party.chain, codec_by_name("int4")
        chain.tools = replace(chain.tools, codec=coarse, results=CODEC)
        feedback, old_N = chain.tools.feedback, chain.state.anchor_N
        assert feedback is not None
        mine, fed = encode_with_feedback(old_N, scene.trainer.theta_N, TOKENS, coarse, feedback.state)
        scene.adopter.remember(mine)
        feedback.offer(mine.root, fed)
        await scene.commit(scene.next_commit(1, mine), mine)
        await scene.adopter.wait_adopted()
        assert float(fed.left_N.abs().max()) > 0.0
        moved_N = torch.sub(old_N, chain.state.anchor_N)
        sent_N = torch.sub(old_N - mine.theta_N, fed.left_N)
        offered_N = chain.state.anchor_N - scene.trainer.theta_N
        torch.testing.assert_close(offered_N, 0.5 * (sent_N - moved_N), rtol=1e-5, atol=1e-5)


# --- another lineage ----------------------------------------------------------------------------------------------------------


async def _switch(scene: Scene, won: MadeCommit, lost: list[MadeCommit]) -> None:
    """To a lineage of one commit on the genesis."""
    other = scene.world.parties[1]
    await other.apply(won)
    genesis = scene.world.genesis
    prepared = PreparedSwitch(genesis.head, tree_nodes([won]), genesis.anchor_N, other.chain.state, other.chain.root)
    await scene.adopter.switch(prepared, [commit.link for commit in lost], scene.party.chain.state.anchor_N)
    await scene.adopter.wait_adopted()


async def test_a_switch_brings_the_anchor_that_won_with_our_work_since_the_fork_and_its_tokens(
    autojump_clock: Clock,
) -> None:
    async with _scene() as scene:
        mine = scene.offer()
        ours = scene.next_commit(5, mine, is_lone=True)
        await scene.commit(ours, mine)
        await scene.adopter.wait_adopted()
        scene.trainer.theta_N = scene.trainer.theta_N + 0.5
        scene.trainer.tokens += 30
        before_N = scene.trainer.theta_N
        won = scene.world.commit_on(scene.world.start, 9, members=[1, 2])
        await _switch(scene, won, [ours])
        won_N = scene.world.parties[1].chain.state.anchor_N
        torch.testing.assert_close(scene.trainer.theta_N, won_N + before_N, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(scene.trainer.anchor_N, won_N, rtol=0, atol=0)
        assert (scene.trainer.tokens, scene.trainer.schedule) == (TOKENS + 30, won.link.total_tokens)


async def test_what_the_winning_lineage_counted_of_ours_is_spent_there(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        mine = scene.offer()
        await _switch(scene, scene.next_commit(5, mine), [])
        won_N = scene.world.parties[1].chain.state.anchor_N
        torch.testing.assert_close(scene.trainer.theta_N, won_N, rtol=1e-5, atol=1e-5)
        assert scene.trainer.tokens == 0


async def test_offers_on_the_last_commit_of_a_quorum_are_remembered_however_long_we_go_on_alone(
    autojump_clock: Clock,
) -> None:
    """The others may have counted them; of those on lone commits only the latest are kept."""
    async with _scene() as scene:
        first = scene.offer()
        lost = [scene.next_commit(0, first, is_lone=True)]
        await scene.commit(lost[0], first)
        for seed in range(1, NUM_KEPT + 4):
            await scene.adopter.wait_adopted()
            scene.trainer.theta_N, scene.trainer.tokens = scene.trainer.theta_N + 0.1, TOKENS
            mine = scene.offer()
            lost.append(scene.next_commit(seed, mine, is_lone=True))
            await scene.commit(lost[-1], mine)
        await scene.adopter.wait_adopted()
        before_N, tokens = scene.trainer.theta_N, scene.trainer.tokens
        roots = [first.root, Root(b"o" * 32), Root(b"p" * 32)]
        await _switch(scene, scene.world.commit_on(scene.world.start, 50, roots=roots), lost)
        assert scene.trainer.done[-1] == "shift", "nothing had to be given up"
        won_N = scene.world.parties[1].chain.state.anchor_N
        torch.testing.assert_close(scene.trainer.theta_N, won_N + before_N - theta(1), rtol=1e-4, atol=1e-4)
        assert scene.trainer.tokens == tokens + (len(lost) - 1) * TOKENS


async def test_work_counted_elsewhere_that_is_no_longer_here_makes_the_trainer_start_from_the_anchor(
    autojump_clock: Clock,
) -> None:
    """As after a restart: the process that offered it is gone."""
    async with _scene() as scene:
        mine = encode_contribution(scene.world.genesis.anchor_N, theta(1), TOKENS, CODEC, GRID)
        won = scene.world.commit_on(scene.world.start, 9, roots=[mine.root, Root(b"o" * 32), Root(b"p" * 32)])
        await _switch(scene, won, [])
        assert scene.trainer.done[-2:] == ["set_anchor", "load"]
        won_N = scene.world.parties[1].chain.state.anchor_N
        torch.testing.assert_close(scene.trainer.theta_N, won_N, rtol=0, atol=0)
        assert (scene.trainer.tokens, scene.trainer.schedule) == (0, won.link.total_tokens)
