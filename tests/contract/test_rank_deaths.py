"""Two ranks of one replica as real processes: the end of one is the end of both and a new life of both.

Shown are a rank in the midst of a collective, at a socket between ranks, at the daemon's command, and the one that leads and the one
that follows. `python -m tests.contract.rank_deaths` goes through all points.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from peer.training import trainer as trainer_module
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.layout import Mesh, World
from peer.training.trainer import open_worker_trainer
from peer.training.worker_errors import DoesNotFit
from protocol.run.training_sections import InnerSection
from tests.anchors import reads
from tests.contract.rank_deaths import ANCHOR_N, WITHIN_S, Ranks, doomed_ranks, plan_of_two, training_ranks
from tests.peer.training_world import BATCH_TOKENS

INNER_OF_MANY = InnerSection(learning_rate=0.01, batch_tokens=4 * BATCH_TOKENS)


@pytest.fixture(scope="module")
def doom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with doomed_ranks(tmp_path_factory.mktemp("doom")) as file:
        yield file


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons of all ends, as they are logged."""
    found: list[str] = []

    def tell(event: str, **facts: str) -> None:
        found.append(facts["reason"])

    monkeypatch.setattr(trainer_module.log, "warning", tell, raising=False)
    return found


async def test_a_rank_that_is_killed_or_frozen_takes_the_other_with_it_and_both_begin_anew(
    tmp_path: Path, doom: Path, told: list[str]
) -> None:
    async with training_ranks(plan_of_two(tmp_path), doom) as ranks:
        await ranks.strike(0, "backward", "kill")
        await ranks.until_tokens()
        await ranks.strike(1, "snapshot", "kill")
        await ranks.strike(1, "optimizer", "freeze")
        assert told[-1] == "card 1: the system has stopped the training process; restarting it"
        await ranks.strike(0, "between", "freeze")
        assert told[-1] == "card 0: the system has stopped the training process; restarting it"
        await ranks.assert_anew()


async def test_a_rank_that_runs_out_of_memory_moves_both_to_the_next_plan_and_is_named(
    tmp_path: Path, doom: Path, told: list[str]
) -> None:
    plan = plan_of_two(tmp_path, inner=INNER_OF_MANY, micro_batch=2)
    async with training_ranks(plan, doom) as ranks:
        await ranks.strike(1, "backward", "memory")
        await ranks.strike(0, "optimizer", "memory")
        await ranks.until_tokens()
        states = ranks.trainer.cards
    assert told[0] == "card 1: out of memory: the micro-batch is now 1"
    assert told[1].startswith("card 0:")
    assert "activations partly computed again" in told[1]
    plans = {state.report.plan if state.report is not None else None for state in states}
    assert len(plans) == 1, "all ranks train by the same plan"


async def test_an_evaluation_that_runs_out_of_memory_on_a_rank_changes_no_plan_and_is_not_tried_again_soon(
    tmp_path: Path, doom: Path, told: list[str]
) -> None:
    plan = plan_of_two(tmp_path, micro_batch=2)
    async with training_ranks(plan, doom) as ranks:
        await ranks.strike(1, "evaluation", "memory")
        await ranks.until_tokens()
        with pytest.raises(DoesNotFit, match="other peers evaluate"):
            await ranks.trainer.evaluate(reads(ANCHOR_N))
        states = ranks.trainer.cards
    assert told == ["card 1: out of memory in an evaluation; other peers evaluate for the next hour"]
    assert {state.report.plan for state in states if state.report is not None} == {CardPlan()}
    assert ranks.trainer.micro_batch == 2


async def test_a_card_that_is_back_trains_from_the_next_commit_on(tmp_path: Path, doom: Path) -> None:
    moments = tmp_path / "moments.safetensors"
    plan = plan_of_two(tmp_path, mesh=Mesh(), moments_file=moments, moments_within_tokens=10 * BATCH_TOKENS)
    with trio.fail_after(WITHIN_S):
        async with open_worker_trainer(plan, ANCHOR_N) as trainer:
            ranks = Ranks(trainer, plan, doom)
            await ranks.until_tokens()
            trainer.regroup(World(devices=("cpu", "cpu"), mesh=Mesh(shard=2)))
            await trainer.snapshot()
            assert len(trainer.worker_pids) == 1, "the round is not over"
            await trainer.load(ANCHOR_N, schedule_tokens=0)
            await ranks.until_tokens()
            assert len(trainer.worker_pids) == 2
            assert moments.exists(), "the next processes take the optimizer's moments up"
            assert (trainer.progress().restarts, trainer.progress().state) == (1, "training")
            assert [card.left_out for card in trainer.cards] == ["", ""]
            snapshot = await trainer.snapshot()
            assert snapshot.tokens == snapshot.num_steps * BATCH_TOKENS > 0
            assert trainer.progress().tokens_trained == snapshot.next_step * BATCH_TOKENS
