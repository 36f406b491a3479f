from __future__ import annotations

import torch

from peer.training.optimizers.adamw import AdamW, ParameterGroup

SHAPES = ((7, 5), (3,), (4, 4))
BETAS = (0.9, 0.95)


def _parameters() -> list[torch.nn.Parameter]:
    chance = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=chance)) for shape in SHAPES]


def test_it_makes_the_steps_of_torchs_own_bit_for_bit_also_where_a_gradient_is_missing() -> None:
    ours, theirs = _parameters(), _parameters()
    optimizer = AdamW((ParameterGroup(ours[::2], 0.1), ParameterGroup(ours[1:2], 0.0)), beta1=BETAS[0], beta2=BETAS[1])
    reference = torch.optim.AdamW(
        [{"params": theirs[::2], "weight_decay": 0.1}, {"params": theirs[1:2], "weight_decay": 0.0}],
        betas=BETAS,
        fused=True,
    )
    chance = torch.Generator().manual_seed(2)
    for step in range(8):
        rate = 0.01 * (step + 1)
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            gradient = torch.randn(mine.shape, generator=chance)
            mine.grad, other.grad = (None, None) if number == step % 4 else (gradient, gradient.clone())
        for group in reference.param_groups:
            group["lr"] = rate
        optimizer.step(rate)
        reference.step()
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in ours)
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other)


def test_there_are_no_moments_before_the_first_step() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = AdamW((ParameterGroup((parameter,), 0.0),), beta1=BETAS[0], beta2=BETAS[1])
    assert not optimizer.has_moments
    parameter.grad = torch.ones(2)
    optimizer.step(0.1)
    assert optimizer.has_moments
