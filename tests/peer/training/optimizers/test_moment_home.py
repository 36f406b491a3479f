"""Moments in the machine's memory: the steps are those of moments beside their parameters, bit for bit."""

from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat
from peer.training.plan.card_plan import CardPlan, Offload
from peer.training.replica.replica import Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.peer.pretended_card import PretendedCard

MODEL = LlamaConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=64, context_tokens=16)
SCHEMA = model_schema(MODEL)
TOKENS_BT = torch.randint(MODEL.vocab_size, (4, 17), generator=torch.Generator().manual_seed(3))


def _replica(optimizer: str, offload: Offload) -> Replica:
    model = Decoder(MODEL)
    load_flat(model, SCHEMA, genesis_anchor(SCHEMA, 1))
    inner = InnerSection(learning_rate=0.01, batch_tokens=64, optimizer=optimizer)
    return Replica(model, SCHEMA, inner, CardPlan(offload=offload))


def _step(replica: Replica) -> None:
    replica.backward(replica.model.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:]))
    replica.clip(1.0)
    replica.step(0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_steps_are_the_same_bit_for_bit_also_from_moments_of_the_other_kind(optimizer: str) -> None:
    beside, away = _replica(optimizer, "none"), _replica(optimizer, "moments")
    for _ in range(3):
        _step(beside)
        _step(away)
    assert all(map(torch.equal, away.optimizer.moments(), beside.optimizer.moments()))
    moments = [moment.clone() for moment in beside.optimizer.moments()]
    beside.optimizer.load_moments(away.optimizer.moments())
    away.optimizer.load_moments(moments)
    _step(beside)
    _step(away)
    assert all(map(torch.equal, away.parameters, beside.parameters))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_they_take_none_of_the_cards_memory_between_steps(optimizer: str) -> None:
    beside, away = _replica(optimizer, "none").optimizer, _replica(optimizer, "moments").optimizer
    assert away.moments_bytes == 0 < beside.moments_bytes


def test_a_step_brings_the_moments_of_one_parameter_at_a_time() -> None:
    replica = _replica("adamw", "moments")
    _step(replica)
    largest_bytes = max(parameter.numel() * 4 for parameter in replica.parameters)
    replica.backward(replica.model.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:]))
    with PretendedCard() as card:
        replica.optimizer.step(0.01)
    assert 0 < card.peak_bytes <= 2 * largest_bytes
