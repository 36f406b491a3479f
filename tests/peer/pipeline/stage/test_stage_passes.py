"""Passes through stages: the whole decoder's losses and gradients, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from peer.training.plan.card_plan import CardPlan, Precision
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.pipeline.schedule import SCHEDULES, passes
from tests.peer.stage_world import (
    MODEL,
    STAGES,
    Pipeline,
    gradients,
    micro_batch,
    stage_model,
    stage_passes,
    tokens,
    whole_loss,
    whole_model,
)

SHARES = (0.5, 0.25, 0.25)


def _whole(dtype: torch.dtype) -> tuple[list[float], torch.Tensor]:
    """Losses and summed gradients (N,) of some micro-batches through the whole decoder."""
    model, losses = whole_model(dtype), []
    for number, share in enumerate(SHARES):
        loss = whole_loss(model, tokens(number))
        torch.autograd.backward(loss * share)
        losses.append(float(loss.detach()))
    return losses, gradients(model)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_in_stages_has_the_loss_and_the_gradients_of_the_whole_to_the_bit(
    dtype: torch.dtype, recomputes: bool
) -> None:
    pipeline = Pipeline.of(dtype, recomputes=recomputes)
    losses = []
    for number, share in enumerate(SHARES):
        losses.append(float(pipeline.forward(micro_batch(number), tokens(number), share)))
        pipeline.backward(micro_batch(number))
    expected_losses, expected_N = _whole(dtype)
    assert losses == expected_losses
    assert torch.equal(pipeline.gradients(), expected_N)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_gives_the_same_gradients_to_the_bit(schedule: str) -> None:
    pipeline = Pipeline.of(torch.float32)
    orders = [list(passes(schedule, stage, STAGES.num_stages, len(SHARES))) for stage in range(STAGES.num_stages)]
    inputs: dict[tuple[int, int], torch.Tensor] = {(0, n): tokens(n)[:, :-1] for n in range(len(SHARES))}
    grads: dict[tuple[int, int], torch.Tensor | None] = {(STAGES.num_stages - 1, n): None for n in range(len(SHARES))}
    while any(orders):
        for stage, order in enumerate(orders):
            there = grads if order and order[0].is_backward else inputs
            if not order or (stage, order[0].number) not in there:
                continue
            one = order.pop(0)
            batch, place = micro_batch(one.number), (stage, one.number)
            if one.is_backward:
                grads[(stage - 1, one.number)] = pipeline.passes[stage].backward(batch, grads[place])
            else:
                is_last = stage == STAGES.num_stages - 1
                targets_BT = tokens(one.number)[:, 1:] if is_last else None
                inputs[(stage + 1, one.number)] = pipeline.passes[stage].forward(
                    batch, inputs[place], targets_BT=targets_BT, share=SHARES[one.number]
                )
    assert torch.equal(pipeline.gradients(), _whole(torch.float32)[1])


def test_with_dropout_recomputation_draws_the_same_masks_again() -> None:
    kept, again = Pipeline.of(dropout=0.3), Pipeline.of(dropout=0.3, recomputes=True)
    for pipeline in (kept, again):
        pipeline.forward(micro_batch(1), tokens(1))
        pipeline.backward(micro_batch(1))
    assert torch.equal(kept.gradients(), again.gradients())
    assert not torch.equal(kept.gradients(), _whole(torch.float64)[1])


def test_a_step_that_is_taken_back_leaves_nothing() -> None:
    pipeline = Pipeline.of()
    pipeline.forward(micro_batch(0), tokens(0))
    pipeline.backward(micro_batch(0))
    pipeline.forward(micro_batch(1), tokens(1))
    for passes_ in pipeline.passes:
        passes_.forget()
        assert not passes_.kept
    assert all(parameter.grad is None for model in pipeline.models for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [({"weights": 1}, "another weights"), ({"step": 1}, "another step"), ({"number": 2}, "not gone forward here")],
)
def test_a_gradient_of_another_step_or_version_is_refused_and_moves_nothing(
    changed: dict[str, int], reason: str
) -> None:
    model = stage_model(1)
    passes_ = stage_passes(model, most_kept=2)
    passes_.forward(micro_batch(), torch.randn(2, 8, 16, dtype=torch.float64))
    with pytest.raises(RemoteProtocolError, match=reason):
        passes_.backward(dataclasses.replace(micro_batch(), **changed), torch.zeros(2, 8, 16, dtype=torch.float64))
    assert passes_.kept == {micro_batch()}
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "grad_BTD",
    [None, torch.zeros(2, 8, 15), torch.zeros(1, 8, 16), torch.zeros(2, 8, 16, dtype=torch.int64), torch.full((2, 8, 16), torch.nan)],
)  # fmt: skip
def test_a_gradient_that_cannot_be_the_next_stages_is_refused_and_moves_nothing(grad_BTD: torch.Tensor | None) -> None:
    passes_ = stage_passes(stage_model(1, torch.float32), most_kept=2)
    passes_.forward(micro_batch(), torch.zeros(2, 8, 16))
    with pytest.raises(RemoteProtocolError, match="gradient"):
        passes_.backward(micro_batch(), grad_BTD)
    assert passes_.kept == {micro_batch()}


def test_the_last_stage_takes_no_gradient_and_needs_the_next_tokens() -> None:
    passes_ = stage_passes(stage_model(2), most_kept=2)
    x_BTD = torch.zeros(2, 8, 16, dtype=torch.float64)
    with pytest.raises(LocalProtocolError, match="without its next tokens"):
        passes_.forward(micro_batch(), x_BTD)
    passes_.forward(micro_batch(), x_BTD, targets_BT=tokens(1)[:, 1:])
    with pytest.raises(RemoteProtocolError, match="it has the loss"):
        passes_.backward(micro_batch(), x_BTD)


def test_micro_batches_in_flight_are_bounded_and_none_goes_forward_twice() -> None:
    passes_ = stage_passes(stage_model(0), most_kept=1)
    passes_.forward(micro_batch(0), tokens(0)[:, :-1])
    with pytest.raises(RemoteProtocolError, match="once more"):
        passes_.forward(micro_batch(0), tokens(0)[:, :-1])
    with pytest.raises(LocalProtocolError, match="at most 1"):
        passes_.forward(micro_batch(1), tokens(1)[:, :-1])


def test_a_recomputing_stage_keeps_what_came_in_alone() -> None:
    passes_ = stage_passes(stage_model(1), most_kept=1, recomputes=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda _: pytest.fail("kept"), lambda saved: saved):
        left = passes_.forward(micro_batch(), torch.zeros(2, MODEL.context_tokens, MODEL.dim, dtype=torch.float64))
    assert not left.requires_grad


class _Products(TorchDispatchMode):
    """Notes the types of matrices that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.types = set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default):
            self.types |= {each.dtype for each in args if isinstance(each, torch.Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stage_multiplies_in_the_type_of_its_plan_and_sums_gradients_in_float32(precision: Precision) -> None:
    model, batch, noise_BTD = stage_model(1, torch.float32), micro_batch(), torch.randn(2, 4, MODEL.dim)
    passes_ = stage_passes(model, most_kept=1, plan=CardPlan(precision=precision))
    with _Products() as products:
        passes_.forward(batch, noise_BTD)
        passes_.backward(batch, noise_BTD)
    assert products.types == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
