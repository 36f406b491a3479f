"""Evaluations on a card that is almost full, pretended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.training import evaluation
from peer.training.evaluation import EvaluationDoesNotFit
from peer.training.local_training import LocalTrainer
from peer.training.replica.text_batches import TextBatch
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.peer.pretended_card import PretendedCard
from tests.peer.training_world import training_plan

WIDE = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=512, context_tokens=64)
SCHEMA = model_schema(WIDE)
ANCHOR_N = genesis_anchor(SCHEMA, 1)
MODEL_BYTES = 4 * SCHEMA.num_elements


def _trainer(folder: Path) -> LocalTrainer:
    plan = training_plan(folder, model=WIDE, inner=InnerSection(learning_rate=0.01, batch_tokens=256), micro_batch=1)
    trainer = LocalTrainer(plan)
    trainer.load(ANCHOR_N, 0)
    trainer.step()
    return trainer


def test_an_evaluation_takes_no_more_memory_than_a_training_micro_batch(tmp_path: Path) -> None:
    with PretendedCard() as card:
        trainer = _trainer(tmp_path)
        card.forget_peak()
        trainer.step()
        trained_bytes = card.peak_bytes
        card.forget_peak()
        card.most_bytes = trained_bytes + MODEL_BYTES
        before_N = trainer.theta()
        found = trainer.evaluate(ANCHOR_N)
    assert found == pytest.approx(LocalTrainer(trainer.plan).evaluate(ANCHOR_N), rel=1e-5)
    assert torch.equal(trainer.theta(), before_N)


def test_where_two_models_do_not_fit_the_own_parameters_step_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside: list[bool] = []
    trainer = _trainer(tmp_path)
    before_N, standing_in = trainer.theta(), trainer.replica.standing_in

    def crowded(values: Sequence[torch.Tensor], *, steps_aside: bool = False) -> object:
        aside.append(steps_aside)
        if not steps_aside:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return standing_in(values, steps_aside=True)

    monkeypatch.setattr(trainer.replica, "standing_in", crowded)
    expected = LocalTrainer(trainer.plan).evaluate(ANCHOR_N * 2)
    assert trainer.evaluate(ANCHOR_N * 2) == expected
    assert trainer.evaluate(ANCHOR_N * 2) == expected, "and at once from then on"
    assert aside == [False, True, True]
    assert torch.equal(trainer.theta(), before_N)


def test_windows_are_halved_until_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer(tmp_path)
    trainer.micro_batch = 8
    sizes: list[int] = []
    loss = trainer._loss

    def small_card(batch: TextBatch, expert: int | None, num_counted: int) -> torch.Tensor:
        sizes.append(len(batch.tokens_BT))
        if len(batch.tokens_BT) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return loss(batch, expert, num_counted)

    monkeypatch.setattr(trainer._evaluation, "_loss_of", small_card)
    assert trainer.evaluate(ANCHOR_N) == pytest.approx(LocalTrainer(trainer.plan).evaluate(ANCHOR_N), rel=1e-5)
    assert sizes == [8, 4, *[2] * (evaluation.HELDOUT_WINDOWS // 2)]


def test_an_evaluation_that_fits_nowhere_says_so_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer(tmp_path)

    def full(batch: TextBatch, expert: int | None, num_counted: int) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(trainer._evaluation, "_loss_of", full)
    before_N = trainer.theta()
    with pytest.raises(EvaluationDoesNotFit, match="no memory left to evaluate"):
        trainer.evaluate(ANCHOR_N)
    assert torch.equal(trainer.theta(), before_N)
    assert trainer.step().loss_nats is not None


def test_another_error_of_an_evaluation_is_not_taken_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = _trainer(tmp_path)

    def broken(batch: TextBatch, expert: int | None, num_counted: int) -> torch.Tensor:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(trainer._evaluation, "_loss_of", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        trainer.evaluate(ANCHOR_N)
