from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, parameters_in_order
from peer.training.local_training import LocalTrainer
from peer.training.optimizers.adamw import AdamW
from peer.training.optimizers.optimizer import MuonWithAdamW, make_optimizer
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.stacked_decoder import Workers
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan

ANCHOR_N = genesis_anchor(model_schema(MODEL), 1)
MUON = InnerSection(learning_rate=0.01, batch_tokens=BATCH_TOKENS, optimizer="muon")


def _trainer(folder: Path) -> LocalTrainer:
    trainer = LocalTrainer(training_plan(folder, inner=MUON))
    trainer.load(ANCHOR_N, 0)
    return trainer


@pytest.mark.parametrize("is_tied", [True, False])
def test_muon_takes_the_matrices_inside_and_adamw_embeddings_head_and_norms(is_tied: bool) -> None:
    config = LlamaConfig.model_validate({**MODEL.model_dump(), "is_tied": is_tied})
    schema = model_schema(config)
    parameters = parameters_in_order(Decoder(config), schema)
    optimizer = make_optimizer(MUON, schema, parameters)
    assert isinstance(optimizer, MuonWithAdamW)
    taken = {id(parameter) for parameter in optimizer.muon.parameters}
    names = {spec.name for spec, parameter in zip(schema.tensors, parameters, strict=True) if id(parameter) in taken}
    assert names == {f"layers.0.{part}.weight" for part in ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")}
    inside = sum(parameter.numel() for parameter in optimizer.muon.parameters)
    assert optimizer.moments_bytes == 4 * inside + 8 * (schema.num_elements - inside)


def test_every_parameter_moves_and_training_lowers_the_held_out_loss(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    before = trainer.evaluate(ANCHOR_N)
    trainer.step()
    moved = trainer.theta() != ANCHOR_N
    embed = trainer.schema.tensors[0].num_elements  # tokens that no window has stay
    assert float(moved[embed:].float().mean()) > 0.99
    for _ in range(59):
        trainer.step()
    assert trainer.evaluate(trainer.theta()) < before - 1.0


def test_an_anchor_that_is_loaded_leaves_the_moments_and_a_new_process_has_none(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    for _ in range(3):
        trainer.step()
    trainer.load(ANCHOR_N, 0)
    fresh = LocalTrainer(training_plan(tmp_path, inner=MUON, first_step=3))
    fresh.load(ANCHOR_N, 0)
    assert trainer.step().loss_nats == fresh.step().loss_nats  # the same windows
    assert not torch.allclose(trainer.theta(), fresh.theta(), atol=1e-3, rtol=0)


def test_the_matrices_have_a_rate_of_their_own_in_step_with_the_other() -> None:
    schema = model_schema(MODEL)
    fast = MUON.model_copy(update={"matrix_learning_rate": 0.03})

    def shift(inner: InnerSection) -> torch.Tensor:
        parameters = parameters_in_order(Decoder(MODEL), schema)
        for parameter in parameters:
            parameter.data.zero_()
            parameter.grad = torch.eye(*parameter.shape) if parameter.dim() == 2 else torch.ones_like(parameter)
        make_optimizer(inner, schema, parameters).step(inner.learning_rate / 2)
        return torch.cat([parameter.detach().flatten() for parameter in parameters])

    plain_N, fast_N = shift(MUON), shift(fast)
    begin = schema.offset("layers.0.wq.weight")
    matrix = slice(begin, schema.offset("layers.0.ffn_norm.weight"))
    torch.testing.assert_close(fast_N[matrix], 3.0 * plain_N[matrix])
    assert torch.equal(fast_N[:begin], plain_N[:begin])


def test_adamw_is_what_runs_have_that_say_nothing() -> None:
    schema = model_schema(MODEL)
    inner = InnerSection(learning_rate=0.01, batch_tokens=BATCH_TOKENS)
    assert isinstance(make_optimizer(inner, schema, parameters_in_order(Decoder(MODEL), schema)), AdamW)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_peers_that_a_benchmark_trains_side_by_side_come_where_each_comes_alone(
    tmp_path: Path, name: Literal["adamw", "muon"]
) -> None:
    inner = InnerSection(learning_rate=0.01, batch_tokens=BATCH_TOKENS, optimizer=name)
    plans = [training_plan(tmp_path, inner=inner, peer=peer) for peer in ("a", "b")]
    trainers = [LocalTrainer(plan) for plan in plans]
    text = np.concatenate([np.fromfile(path, dtype="<u2") for path in plans[0].train_shards])
    workers = Workers(MODEL, inner, ANCHOR_N, text, plans[0].seed, [["a"], ["b"]])
    for trainer in trainers:
        trainer.load(ANCHOR_N, 0)
    for number in range(3):
        workers.step(number, inner.learning_rate)
        for trainer in trainers:
            trainer.step()
    alone_MN = torch.stack([trainer.theta() for trainer in trainers])
    torch.testing.assert_close(workers.model.theta(), alone_MN, atol=1e-4, rtol=0)
    assert not torch.allclose(alone_MN[0], alone_MN[1], atol=1e-3, rtol=0)
