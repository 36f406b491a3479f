"""Scores by the training process's own model, against the plain decoder."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decode_text import sample_tokens
from peer.models.decoder import Decoder, load_flat
from peer.models.sampling import Sampling
from peer.training.evaluation import EvaluationDoesNotFit
from peer.training.local_training import LocalTrainer
from peer.training.worker_channel import ScoreOrder
from protocol.errors import LocalProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.model_config import model_schema
from tests.peer.training_world import training_plan

MODEL = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=24)
SCHEMA = model_schema(MODEL)
ANCHOR_N = genesis_anchor(SCHEMA, 3)


def _trainer(folder: Path, **plan: object) -> LocalTrainer:
    inner = InnerSection(learning_rate=0.01, batch_tokens=96)
    trainer = LocalTrainer(training_plan(folder, **{"model": MODEL, "inner": inner, "micro_batch": 2, **plan}))
    if trainer.schema.num_elements == SCHEMA.num_elements:
        trainer.load(ANCHOR_N * 0.5, 0)
        trainer.step()
    return trainer


def _sequences() -> tuple[tuple[int, ...], ...]:
    random_ = random.Random(2)
    return tuple(tuple(random_.randrange(257) for _ in range(length)) for length in (2, 25, 9, 3, 17))


def test_log_likelihoods_are_those_of_the_committed_model_and_training_goes_on_as_before(tmp_path: Path) -> None:
    trainer, sequences, num_scored = _trainer(tmp_path), _sequences(), (1, 4, 8, 1, 3)
    before_N, sizes = trainer.theta(), []
    model = Decoder(MODEL)
    load_flat(model, SCHEMA, ANCHOR_N)
    hidden = trainer._scorer._model.hidden

    def counted(tokens_BT: torch.Tensor, *shared: object) -> torch.Tensor:
        sizes.append(len(tokens_BT))
        return hidden(tokens_BT, *shared)

    trainer._scorer._model.hidden = counted  # type: ignore[method-assign]
    found = trainer.scored(ANCHOR_N, ScoreOrder(sequences=sequences, num_scored=num_scored), 2)
    assert found.took_s > 0.0
    for value, tokens, num in zip(found.log_likelihoods, sequences, num_scored, strict=True):
        logs_TV = model(torch.tensor([tokens[:-1]]))[0].detach().double().log_softmax(-1)
        expected = sum(
            float(logs_TV[place, tokens[place + 1]]) for place in range(len(tokens) - 1 - num, len(tokens) - 1)
        )
        assert value == pytest.approx(expected, rel=1e-5)
    assert torch.equal(trainer.theta(), before_N)
    assert max(sizes) <= 2, "no more than a micro-batch of training"


def test_answers_are_what_generate_writes_without_chance(tmp_path: Path) -> None:
    trainer, sequences = _trainer(tmp_path), _sequences()
    order = ScoreOrder(sequences=sequences, num_answer_tokens=30, vocab_size=257, end=256)
    answers = trainer.scored(ANCHOR_N, order, 2).answers
    for tokens, answer in zip(sequences, answers, strict=True):
        expected = list(sample_tokens(MODEL, ANCHOR_N, prompt=tokens, sampling=Sampling(30, temperature=0)))
        assert [token for token in answer if token != 256] == expected


def test_a_value_that_is_no_number_is_told_as_none(tmp_path: Path) -> None:
    order = ScoreOrder(sequences=((1, 2, 3),), num_scored=(1,))
    assert _trainer(tmp_path).scored(ANCHOR_N * float("nan"), order, 2).log_likelihoods == (None,)


def test_a_card_without_room_costs_the_score_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer(tmp_path)

    def full(*arguments: object) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    order = ScoreOrder(sequences=((1, 2, 3),), num_scored=(1,))
    with monkeypatch.context() as patched:
        patched.setattr(trainer._scorer._model, "hidden", full)
        with pytest.raises(EvaluationDoesNotFit):
            trainer.scored(ANCHOR_N, order, 2)
    assert trainer.step().loss_nats is not None


def test_a_model_of_experts_is_refused(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, mixture=MixtureConfig(num_experts=2, ffn_dim=8), experts=(0,))
    with pytest.raises(LocalProtocolError, match="a task for a model of experts"):
        trainer.scored(
            torch.zeros(trainer.replica.schema.num_elements), ScoreOrder(sequences=((1, 2),), num_scored=(1,)), 1
        )
