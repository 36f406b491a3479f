"""A layer that computes again has the gradients of one that keeps all, in every kind of peer."""

from __future__ import annotations

import pytest
import torch

from averaging.models.family import call_layer
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder
from peer.models.mixture import MixtureDecoder, Routing, balance_loss
from peer.training.plan.card_plan import CardPlan, Checkpointing, Precision
from peer.training.replica.checkpointing import checkpointed
from peer.training.replica.replica import Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import stage_schema
from tests.peer.pretended_card import PretendedCard
from tests.peer.stage_world import STAGES, gradients, micro_batch, stage_model, stage_passes
from tests.peer.training.replica.oracle_world import CLIP, KINDS, MIXTURE, MODEL, SEQUENCES, Kind, oracle

INNER = InnerSection(learning_rate=0.01, batch_tokens=64)
CHECKPOINTINGS: tuple[Checkpointing, ...] = ("none", "selective", "full")


@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_gradient_is_that_of_plain_torch_whatever_is_kept_and_cut(
    kind: Kind, checkpointing: Checkpointing
) -> None:
    expected = oracle(kind).plain_gradients()
    found = oracle(kind, CardPlan(checkpointing=checkpointing))
    for chunk in (1, 7, 128):
        for size in (1, 2, SEQUENCES):
            for grad, plain in zip(found.gradients(chunk, size), expected, strict=True):
                assert float((grad - plain).norm()) <= 1e-5 * max(1e-3, float(plain.norm()))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_clipped_steps_move_a_model_as_plain_torch_does(kind: Kind, optimizer: str) -> None:
    plain, found = oracle(kind, optimizer=optimizer), oracle(kind, CardPlan(checkpointing="full"), optimizer=optimizer)
    begin_N = plain.theta()
    for step in range(20):
        plain.plain_gradients(step)
        torch.nn.utils.clip_grad_norm_(plain.replica.parameters, CLIP)
        plain.replica.optimizer.step(0.01)
        found.gradients(7, 2, step)
        found.replica.clip(CLIP)
        found.replica.step(0.01)
    moved_N = plain.theta() - begin_N
    assert float((found.theta() - plain.theta()).norm()) <= 1e-4 * float(moved_N.norm())


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_the_names_of_parameters_do_not_change(checkpointing: Checkpointing) -> None:
    plain, found = oracle("expert"), oracle("expert", CardPlan(checkpointing=checkpointing))
    assert dict(found.replica.model.named_parameters()).keys() == dict(plain.replica.model.named_parameters()).keys()


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_a_layer_that_runs_again_draws_the_same_masks(checkpointing: Checkpointing) -> None:
    def passed(plan: CardPlan) -> list[torch.Tensor]:
        model = stage_model(1, dropout=0.5)
        replica = Replica(model, stage_schema(STAGES, 1), INNER, plan)
        arrived = _activations().requires_grad_()
        left = model(arrived, 7)
        replica.backward(left, torch.ones_like(left))
        grads = [parameter.grad for parameter in (arrived, *replica.parameters)]
        return [left.detach(), *(grad for grad in grads if grad is not None)]

    pairs = zip(passed(CardPlan()), passed(CardPlan(checkpointing=checkpointing)), strict=True)
    assert all(torch.equal(kept, again) for kept, again in pairs)


@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
def test_a_router_that_runs_again_adds_no_choice_twice(checkpointing: Checkpointing) -> None:
    torch.manual_seed(1)
    model = MixtureDecoder(MODEL, MIXTURE, range(3), is_merged=True)
    model.call = checkpointed(checkpointing, call_layer)
    routing = Routing()
    logits = model.run(torch.randint(MODEL.vocab_size, (2, 16)), None, None, routing)
    (logits.square().mean() + balance_loss(routing.chosen, 1)).backward()
    assert len(routing.chosen) == MODEL.num_layers
    assert model.layers[0].router.weight.grad is not None


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
def test_a_stage_that_repeats_its_passes_keeps_only_the_input_and_has_the_same_gradients(
    checkpointing: Checkpointing,
) -> None:
    def passed(plan: CardPlan, *, recomputes: bool) -> torch.Tensor:
        model = stage_model(1, dropout=0.5)
        passes = stage_passes(model, most_kept=1, recomputes=recomputes, plan=plan)
        left = passes.forward(micro_batch(), _activations())
        assert (passes._kept[micro_batch()].left is None) == recomputes
        passes.backward(micro_batch(), torch.ones_like(left))
        return gradients(model, 1)

    expected = passed(CardPlan(), recomputes=False)
    for recomputes in (False, True):
        assert torch.equal(passed(CardPlan(checkpointing=checkpointing), recomputes=recomputes), expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_less_is_kept_the_less_memory_a_pass_takes(precision: Precision) -> None:
    peaks = [
        _peak_bytes(CardPlan(checkpointing=checkpointing, precision=precision)) for checkpointing in CHECKPOINTINGS
    ]
    assert peaks[0] > 1.2 * peaks[1] > 1.2 * 1.2 * peaks[2]


def _peak_bytes(plan: CardPlan) -> int:
    """The most that a pass takes beside parameters and gradients."""
    model = LlamaConfig(dim=32, num_layers=6, num_heads=4, num_kv_heads=2, ffn_dim=88, context_tokens=128)
    replica = Replica(Decoder(model), model_schema(model), INNER, plan)
    for parameter in replica.parameters:
        parameter.grad = torch.zeros_like(parameter)
    tokens_BT = torch.randint(model.vocab_size, (4, 129))
    with PretendedCard() as card:
        with replica.computing():
            loss = replica.model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
        replica.backward(loss)
    return card.peak_bytes


def _activations() -> torch.Tensor:
    return torch.randn(2, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
