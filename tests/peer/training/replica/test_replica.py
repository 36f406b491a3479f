"""A replica's step in every precision, beside plain float32."""

from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat
from peer.training.plan.card_plan import CardPlan, Precision
from peer.training.replica.loss_scale import FIRST_SCALE
from peer.training.replica.replica import Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema

MODEL = LlamaConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=64, context_tokens=16)
SCHEMA = model_schema(MODEL)
ANCHOR_N = genesis_anchor(SCHEMA, 1)
INNER = InnerSection(learning_rate=0.01, clip_norm=1.0, batch_tokens=64)
TOKENS_BT = torch.randint(MODEL.vocab_size, (4, 17), generator=torch.Generator().manual_seed(3))


def _replica(precision: Precision) -> Replica:
    model = Decoder(MODEL)
    load_flat(model, SCHEMA, ANCHOR_N)
    return Replica(model, SCHEMA, INNER, CardPlan(precision=precision))


def _after(precision: Precision, steps: int = 3) -> tuple[Replica, torch.Tensor]:
    replica = _replica(precision)
    for _ in range(steps):
        with replica.computing():
            loss = replica.model.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:])
        replica.backward(loss)
        assert bool(torch.isfinite(replica.clip(INNER.clip_norm)))
        replica.step(INNER.learning_rate)
    return replica, torch.cat([parameter.detach().flatten() for parameter in replica.parameters])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_narrow_precision_makes_nearly_the_same_steps_with_float32_parameters(precision: Precision) -> None:
    _, exact_N = _after("fp32")
    replica, found_N = _after(precision)
    assert all(parameter.dtype == torch.float32 for parameter in replica.parameters)
    moved, error = exact_N - ANCHOR_N, found_N - exact_N
    assert 0 < float(error.norm()) <= 0.2 * float(moved.norm())


def test_a_gradient_beyond_float16_skips_the_step_and_halves_the_scale() -> None:
    replica = _replica("fp16")
    before = [parameter.detach().clone() for parameter in replica.parameters]
    with replica.computing():
        loss = replica.model.loss(TOKENS_BT[:, :-1], TOKENS_BT[:, 1:])
    replica.backward(loss * 1e6)
    assert not bool(torch.isfinite(replica.clip(INNER.clip_norm)))
    replica.skip_step()
    assert replica.scale.factor == FIRST_SCALE / 2
    assert all(torch.equal(parameter, old) for parameter, old in zip(replica.parameters, before, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_part_of_a_model_is_clipped_by_the_norm_of_the_whole(precision: Precision) -> None:
    replica = _replica(precision)
    for parameter in replica.parameters:
        parameter.grad = torch.ones_like(parameter) * replica.scale.factor
    assert replica.square() == pytest.approx(SCHEMA.num_elements)
    replica.clip_by(4.0 * SCHEMA.num_elements, 1.0)
    expected = 1.0 / (2.0 * SCHEMA.num_elements**0.5)
    assert float(replica.parameters[0].grad.flatten()[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("steps_aside", [False, True])
def test_other_parameters_stand_in_for_a_block_also_if_it_fails(steps_aside: bool) -> None:
    replica = _replica("fp32")
    places = [parameter.data_ptr() for parameter in replica.parameters]
    first_N = ANCHOR_N[: replica.parameters[0].numel()]

    def fail() -> None:
        with replica.standing_in(replica.parts(ANCHOR_N * 2, replica.schema), steps_aside=steps_aside):
            assert torch.equal(replica.parameters[0].flatten(), 2 * first_N)
            raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"):
        fail()
    assert torch.equal(replica.parameters[0].flatten(), first_N)
    assert places == [parameter.data_ptr() for parameter in replica.parameters]
