"""Two islands with a tiny model: their mean, their credit, and their deaths at each point of a round."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import trio
import trio.testing

from averaging.arithmetic.genesis import genesis_anchor
from averaging.network.seams.interfaces import Snapshot
from peer.training import training_process
from peer.training.islands import island as island_module
from peer.training.islands import island_trainer
from peer.training.islands.island import Island, Offer
from peer.training.islands.island_group import IslandGroup
from peer.training.islands.island_trainer import IslandTrainer, mean_and_ways
from peer.training.islands.open_trainer import plan_of_world
from peer.training.islands.sums_core import weights_of
from peer.training.local_training import LocalTrainer
from peer.training.plan.layout import Layout, World
from peer.training.training_plan import TrainingPlan
from peer.training.worker_channel import Failed, OutOfMemory
from peer.training.worker_errors import DoesNotFit
from protocol.tensors.model_config import model_schema
from tests.anchors import reads
from tests.forked import Forked, open_forked
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan

MOST_A_STEP = 0.02
"""A step of AdamW moves a value by about the learning rate, 0.01, and by no more than this here."""

WITHIN_S = 300.0
TWO = Layout(worlds=(World(devices=("cpu",)), World(devices=("cpu",))))
ROUNDING = 1e-6


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    with open_forked("peer.worker") as forked:
        yield forked


@pytest.fixture(autouse=True)
def _started_by_a_fork(forked: Forked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_process, "start_worker", forked.start_worker)


class Ending(Island):
    """An island whose process ends as the test says."""

    _said: OutOfMemory | Failed | None = None

    def end_with(self, said: OutOfMemory | Failed) -> None:
        self._said = said
        self._process.kill()

    def _note_death(self, cause: OutOfMemory | Failed | None, rank: int = 0) -> None:
        said, self._said = self._said or cause, None
        super()._note_death(said, rank)


@dataclass
class Both:
    """A trainer and its two islands, from `anchor_N`."""

    trainer: IslandTrainer
    islands: tuple[Ending, Ending]
    plans: tuple[TrainingPlan, TrainingPlan]
    anchor_N: torch.Tensor

    async def trained(self, steps: int = 3) -> None:
        """Both have taken that many steps, and are paused then."""
        await self.trained_since([0, 0], steps)

    async def trained_since(self, tokens: Sequence[int], steps: int = 3) -> None:
        """Both have taken so many steps since they had these tokens, however far one was ahead, and are paused then."""
        for island, before in zip(self.islands, tokens, strict=True):
            while island.progress().tokens_ready < before + steps * BATCH_TOKENS:
                await trio.sleep(0.01)
        await self.trainer.pause()

    async def thetas(self) -> list[torch.Tensor]:
        """Theta of each island, once they moved to the mean."""
        await self.trainer.wait_joined()
        await self.back()
        return [(await island.snapshot()).theta_N for island in self.islands]

    async def back(self) -> None:
        """Both processes are there."""
        for island in self.islands:
            await island.until_ready()

    async def killed(self, number: int) -> None:
        """One process dies and is back."""
        deaths = self.islands[number].progress().restarts
        self.kill(number)
        await _death(self.islands[number], deaths + 1)
        await self.back()

    def kill(self, number: int) -> None:
        _signal(self.islands[number], signal.SIGKILL)


def _signal(island: Island, number: signal.Signals) -> None:
    assert island.worker_pid is not None
    os.kill(island.worker_pid, number)


@asynccontextmanager
async def _both(folder: Path, **changes: object) -> AsyncIterator[Both]:
    anchor_N = genesis_anchor(model_schema(MODEL), 1)
    plan = training_plan(folder, **changes)
    plans = (plan_of_world(plan, TWO, 0), plan_of_world(plan, TWO, 1))
    islands = (Ending(plans[0], anchor_N), Ending(plans[1], anchor_N))
    group = IslandGroup(islands)
    trainer = IslandTrainer(group, len(plan.units.schemas))
    try:
        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(group.supervise)
                yield Both(trainer, islands, plans, anchor_N)
                nursery.cancel_scope.cancel()
    finally:
        group.close()


def _alone(plan: TrainingPlan, anchor_N: torch.Tensor, tokens: int) -> torch.Tensor:
    """Theta of a peer with one card that trains so many tokens of the same windows."""
    trainer = LocalTrainer(plan)
    trainer.load(anchor_N, 0)
    while trainer.counters.tokens_ready < tokens:
        trainer.step()
    return trainer.theta()


async def _adopt(both: Both, snapshot: Snapshot, committed_N: torch.Tensor) -> None:
    """A commit that counted the snapshot."""
    await both.trainer.set_anchor(committed_N)
    tokens = snapshot.tokens
    await both.trainer.shift(committed_N - snapshot.theta_N, credited_tokens=tokens, schedule_tokens=tokens)


async def test_a_snapshot_is_the_mean_by_tokens_of_two_peers_that_read_the_same_windows(tmp_path: Path) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        await both.islands[0].resume()  # so that they do not weigh the same
        while both.islands[0].progress().tokens_ready <= both.islands[1].progress().tokens_ready + 5 * BATCH_TOKENS:
            await trio.sleep(0.01)
        await both.trainer.pause()
        tokens = [island.progress().tokens_ready for island in both.islands]
        snapshot = await both.trainer.snapshot()
        assert snapshot.tokens == sum(tokens)
        assert snapshot.num_steps == max(tokens) // BATCH_TOKENS
        assert snapshot.num_readers == 2
        assert snapshot.next_step == max(2 * (each // BATCH_TOKENS) + place for place, each in enumerate(tokens))
        alone = [_alone(plan, both.anchor_N, each) for plan, each in zip(both.plans, tokens, strict=True)]
        mean_N = sum(
            (weight * theta_N for weight, theta_N in zip(weights_of(tokens), alone, strict=True)),
            start=torch.zeros_like(both.anchor_N),
        )
        assert torch.allclose(snapshot.theta_N, mean_N, rtol=0.0, atol=ROUNDING)
        assert float((alone[0] - alone[1]).abs().max()) > 1e-3, "they read different windows"
        for theta_N in await both.thetas():
            assert torch.allclose(theta_N, snapshot.theta_N, rtol=0.0, atol=ROUNDING)
        assert [island.progress().tokens_ready for island in both.islands] == tokens, "nothing is credited by that"


async def test_after_a_commit_each_island_is_at_the_anchor_with_what_it_trained_since(tmp_path: Path) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        told = [island.progress().tokens_ready for island in both.islands]
        snapshot = await both.trainer.snapshot()
        await both.trainer.resume()
        await both.trained_since(told)
        before = both.trainer.progress().tokens_ready
        await _adopt(both, snapshot, both.anchor_N)
        ready = [island.progress().tokens_ready for island in both.islands]
        assert sum(ready) == before - snapshot.tokens
        assert min(ready) > 0, "each island is credited its own tokens first"
        for theta_N, tokens in zip(await both.thetas(), ready, strict=True):
            assert 0 < float((theta_N - both.anchor_N).abs().max()) < MOST_A_STEP * tokens / BATCH_TOKENS


POINTS = ("before it tells theta", "before it moves to the mean", "after it moved to the mean", "at the shift")


@pytest.mark.parametrize("point", POINTS)
async def test_an_island_that_dies_at_any_point_of_a_round_ends_at_the_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        if point == POINTS[0]:
            _signal(both.islands[1], signal.SIGSTOP)
        if point == POINTS[1]:
            monkeypatch.setattr(island_trainer, "mean_and_ways", _then(both, 1))
        taken: list[Snapshot] = []

        async def take() -> None:
            taken.append(await both.trainer.snapshot())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            if point == POINTS[0]:
                await trio.testing.wait_all_tasks_blocked(0.05)
                both.kill(1)
        (snapshot,) = taken
        counted = 1 if point == POINTS[0] else 2
        assert (snapshot.tokens > both.islands[0].progress().tokens_ready) is (counted == 2)
        if point == POINTS[2]:
            await both.trainer.wait_joined()
            both.kill(1)
            await _death(both.islands[1], 1)
        committed_N = both.anchor_N + 0.25
        if point == POINTS[3]:
            _signal(both.islands[1], signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_adopt, both, snapshot, committed_N)
            if point == POINTS[3]:
                await trio.testing.wait_all_tasks_blocked(0.05)
                both.kill(1)
        await _death(both.islands[1], 1)
        await both.back()
        for theta_N in await both.thetas():
            assert torch.allclose(theta_N, committed_N, rtol=0.0, atol=ROUNDING)
        assert both.trainer.progress().tokens_ready == 0


async def test_a_round_that_fails_leaves_a_dead_island_at_the_anchor_and_the_next_snapshot_brings_it_to_the_mean(
    tmp_path: Path,
) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        first = await both.trainer.snapshot()
        await both.trainer.wait_joined()
        await both.killed(1)
        assert torch.equal((await both.thetas())[1], both.anchor_N)
        second = await both.trainer.snapshot()
        assert second.tokens == both.islands[0].progress().tokens_ready < first.tokens
        for theta_N in (second.theta_N, *await both.thetas()):
            assert torch.allclose(theta_N, first.theta_N, rtol=0.0, atol=ROUNDING)


async def test_an_island_that_told_theta_to_a_snapshot_that_was_given_up_still_loads_the_anchor_of_an_older_commit(
    tmp_path: Path,
) -> None:
    """The older commit counted a snapshot that this island, as it is now, was never moved to."""
    async with _both(tmp_path) as both:
        await both.trained()
        first = await both.trainer.snapshot()
        await both.trainer.wait_joined()
        await both.killed(1)
        _signal(both.islands[0], signal.SIGSTOP)
        with trio.move_on_after(0.5) as given_up:
            await both.trainer.snapshot()
        _signal(both.islands[0], signal.SIGCONT)
        assert given_up.cancelled_caught
        committed_N = both.anchor_N + 0.25
        await _adopt(both, first, committed_N)
        for theta_N in await both.thetas():
            assert torch.allclose(theta_N, committed_N, rtol=0.0, atol=ROUNDING)


async def test_an_island_that_is_starting_holds_nobody_up_and_makes_up_for_it_once_it_is_there(tmp_path: Path) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        snapshot = await both.trainer.snapshot()
        await both.trainer.wait_joined()
        both.kill(1)
        await _death(both.islands[1], 1)
        while both.islands[1].worker_pid is None:
            await trio.sleep(0.001)
        _signal(both.islands[1], signal.SIGSTOP)
        assert not both.islands[1].is_ready
        committed_N = both.anchor_N + 0.25
        await _adopt(both, snapshot, committed_N)
        alone = await both.trainer.snapshot()
        assert torch.allclose(alone.theta_N, committed_N, rtol=0.0, atol=ROUNDING)
        await both.trainer.resume()
        await both.trainer.set_slowdown(1e9)
        assert both.trainer.progress().state == "training"
        assert "cpu no. 1: the training process died" in both.trainer.progress().reason
        await both.trainer.pause()
        _signal(both.islands[1], signal.SIGCONT)
        assert torch.allclose((await both.thetas())[1], committed_N, rtol=0.0, atol=ROUNDING)
        assert both.trainer.progress().state == "paused"


async def test_an_island_that_catches_up_from_an_anchor_that_moves_meanwhile_is_not_moved_twice(tmp_path: Path) -> None:
    """A commit moves the anchor in its place before its shift comes."""
    async with _both(tmp_path) as both:
        await both.trained()
        anchor_N = both.anchor_N + 0.25
        both.kill(1)
        await _death(both.islands[1], 1)
        await both.trainer.load(anchor_N, schedule_tokens=0)
        anchor_N.add_(0.5)
        await both.back()
        while both.islands[1]._behind or both.islands[1].is_busy:
            await trio.sleep(0.01)
        await both.trainer.set_anchor(anchor_N)
        await both.trainer.shift(torch.full_like(anchor_N, 0.5), credited_tokens=0, schedule_tokens=0)
        for theta_N in await both.thetas():
            assert torch.allclose(theta_N, both.anchor_N + 0.75, rtol=0.0, atol=ROUNDING)


async def test_an_island_that_is_paused_alone_counts_its_tokens_and_is_evaluated_last(tmp_path: Path) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        await both.trainer.set_paused(1, True, "the card has 90 °C")
        await both.trainer.resume()
        tokens = [island.progress().tokens_ready for island in both.islands]
        while both.islands[0].progress().tokens_ready < tokens[0] + 5 * BATCH_TOKENS:
            await trio.sleep(0.01)
        assert both.islands[1].progress().tokens_ready == tokens[1]
        progress = both.trainer.progress()
        assert (progress.state, progress.reason) == ("training", "cpu no. 1: the card has 90 °C")
        assert progress.tokens_ready >= sum(tokens) + 5 * BATCH_TOKENS
        _signal(both.islands[1], signal.SIGSTOP)
        (nats,) = (await both.trainer.evaluate(reads(both.anchor_N))).nats
        assert nats == pytest.approx(5.5, abs=0.5), "the other one answers"
        _signal(both.islands[1], signal.SIGCONT)
        await both.trainer.set_paused(1, False)
        while both.islands[1].progress().tokens_ready == tokens[1]:
            await trio.sleep(0.01)


async def test_a_model_that_does_not_fit_one_card_and_a_card_that_is_lost_leave_the_others_training(
    tmp_path: Path,
) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        await both.trainer.resume()
        both.islands[1].end_with(Failed(reason="the card is lost", is_of_card=True, is_gone=True))
        await _death(both.islands[1], 1)
        await both.trainer.load(both.anchor_N, schedule_tokens=0)
        await both.trainer.pause()
        snapshot = await both.trainer.snapshot()
        assert snapshot.tokens == both.islands[0].progress().tokens_ready
        await _adopt(both, snapshot, both.anchor_N + 0.25)
        assert torch.allclose((await both.islands[0].snapshot()).theta_N, both.anchor_N + 0.25, rtol=0.0, atol=ROUNDING)
        assert both.islands[1].worker_pid is None
        assert [card.left_out for card in both.trainer.cards] == ["", "the card is lost"]
        assert both.trainer.progress().state == "paused"
        assert both.trainer.progress().reason == "cpu no. 0: paused by its owner; cpu no. 1: the card is lost"
        await both.trainer.resume()
        both.islands[0].end_with(OutOfMemory(micro_batch=1, is_final=True))
        await _death(both.islands[0], 1)
        await both.islands[0].until_ready()
        progress = both.trainer.progress()
        assert progress.state == "held", "the last one holds the state, as a peer with one card does"
        assert "the model does not fit" in progress.reason
        with pytest.raises(DoesNotFit):
            await both.trainer.evaluate(reads(both.anchor_N))


async def test_a_card_that_was_left_out_is_tried_again_as_its_owner_wishes_by_then_and_counts_once_it_is_at_the_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(island_module, "TRIED_AGAIN_S", 1.0)
    async with _both(tmp_path) as both:
        await both.trained()
        await both.trainer.resume()
        both.islands[1].end_with(Failed(reason="the card is lost", is_of_card=True, is_gone=True))
        await _death(both.islands[1], 1)
        assert both.islands[1].left_out == "the card is lost"
        assert not both.islands[1]._process._next, "no process waits for it meanwhile"
        snapshot = await both.trainer.snapshot()
        await _adopt(both, snapshot, both.anchor_N + 0.25)
        await both.trainer.pause()
        while both.islands[1].left_out or not both.islands[1].is_ready or both.islands[1]._behind:
            await trio.sleep(0.01)
        assert [card.left_out for card in both.trainer.cards] == ["", ""]
        assert both.islands[1].progress().state == "paused", "its owner paused it while it was left out"
        assert both.trainer.progress().num_replicas == 2
        await both.trainer.resume()
        await both.trained()
        tokens = [island.progress().tokens_ready for island in both.islands]
        snapshot = await both.trainer.snapshot()
        assert snapshot.tokens == sum(tokens)
        await _adopt(both, snapshot, both.anchor_N)
        for theta_N in await both.thetas():
            assert torch.allclose(theta_N, both.anchor_N, rtol=0.0, atol=ROUNDING)


async def test_a_card_that_is_lost_while_the_mean_is_made_still_counts_with_its_theta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        tokens = [island.progress().tokens_ready for island in both.islands]

        async def lose() -> None:
            both.islands[1].end_with(Failed(reason="the card is lost", is_of_card=True, is_gone=True))
            await _death(both.islands[1], 1)

        def losing(offers: Sequence[Offer]) -> torch.Tensor:
            trio.from_thread.run(lose)
            return mean_and_ways(offers)

        monkeypatch.setattr(island_trainer, "mean_and_ways", losing)
        snapshot = await both.trainer.snapshot()
        assert both.islands[1].left_out
        assert snapshot.tokens == sum(tokens)
        alone = [_alone(plan, both.anchor_N, each) for plan, each in zip(both.plans, tokens, strict=True)]
        mean_N = sum(alone[place] * weight for place, weight in enumerate(weights_of(tokens)))
        assert isinstance(mean_N, torch.Tensor)
        assert torch.allclose(snapshot.theta_N, mean_N, rtol=0.0, atol=ROUNDING)
        await both.trainer.wait_joined()
        own_N = (await both.islands[0].snapshot()).theta_N
        assert torch.allclose(own_N, snapshot.theta_N, rtol=0.0, atol=ROUNDING)


async def test_what_an_island_offered_to_a_snapshot_that_is_given_up_keeps_no_evaluation_waiting(
    tmp_path: Path,
) -> None:
    async with _both(tmp_path) as both:
        await both.trained()
        before = [island.progress().tokens_ready for island in both.islands]
        _signal(both.islands[1], signal.SIGSTOP)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(both.trainer.snapshot)
                while both.islands[0].is_busy or not both.islands[1].is_busy:
                    await trio.sleep(0.01)
                await trio.testing.wait_all_tasks_blocked(0.05)
                scope.cancel()
        _signal(both.islands[1], signal.SIGCONT)
        with trio.fail_after(WITHIN_S / 10):
            assert (await both.islands[0].evaluate(reads(both.anchor_N))).nats
        assert [island.progress().tokens_ready for island in both.islands] == before


def _then(both: Both, number: int) -> Callable[[Sequence[Offer]], torch.Tensor]:
    def killing(offers: Sequence[Offer]) -> torch.Tensor:
        mean_N = mean_and_ways(offers)
        trio.from_thread.run(both.killed, number)  # another life has begun when the islands are told to move
        return mean_N

    return killing


async def _death(island: Island, deaths: int) -> None:
    while island.progress().restarts < deaths:
        await trio.sleep(0.01)
