from __future__ import annotations

import pytest
import torch

from peer.training.optimizers.muon import COEFFICIENTS, NUM_STEPS, Muon, orthogonalised, update_scale

SHAPES = ((7, 5), (7, 5), (4, 4), (3, 8))
MOMENTUM = 0.9


def _noise(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _parameters(seed: int = 1) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(_noise(seed + number, *shape)) for number, shape in enumerate(SHAPES)]


@pytest.mark.parametrize("shape", [(8, 8), (24, 6), (6, 24), (1, 9), (9, 1)])
@pytest.mark.parametrize("length", [1e-3, 1.0, 1e4])
def test_an_update_is_nearly_orthogonal_and_keeps_the_directions_of_its_matrix(
    shape: tuple[int, int], length: float
) -> None:
    matrix = length * _noise(3, *shape)
    left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
    along = left.mT @ orthogonalised(matrix) @ right.mT
    values = torch.diagonal(along)
    is_clear = (
        sizes > 0.01 * sizes.max()
    )  # what is next to nothing grows 485-fold in five steps, which need not be enough
    assert bool(((values > 0.6) & (values < 1.25))[is_clear].all())
    assert float((along - torch.diag(values)).abs().max()) < 1e-3


def test_matrices_beside_one_another_are_each_made_orthogonal_by_themselves() -> None:
    matrices = torch.stack([_noise(seed, 6, 4) for seed in range(3)])
    alone = torch.stack([orthogonalised(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonalised(matrices), alone, atol=1e-5, rtol=1e-5)


def test_a_matrix_of_zeros_stays_one() -> None:
    assert not orthogonalised(torch.zeros(3, 5)).any()


@pytest.mark.parametrize("shape", [(64, 16), (16, 64), (32, 32)])
def test_the_values_of_an_update_are_as_long_as_adamws_whatever_the_shape(shape: tuple[int, int]) -> None:
    update = update_scale(*shape) * orthogonalised(_noise(5, *shape))
    assert float(update.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)


def _reference_step(
    value: torch.Tensor, momentum: torch.Tensor, gradient: torch.Tensor, rate: float, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the author writes it, one matrix, in float64."""
    momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
    work = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
    work = work / work.norm()
    if work.shape[0] > work.shape[1]:
        work = work.T
    a, b, c = COEFFICIENTS
    for _ in range(NUM_STEPS):
        squares = work @ work.T
        work = a * work + b * (squares @ work) + c * (squares @ squares @ work)
    if value.shape != work.shape:
        work = work.T
    return value * (1 - rate * decay) - rate * 0.2 * max(value.shape) ** 0.5 * work, momentum


def test_steps_are_those_of_a_plain_reference_also_where_a_gradient_is_missing() -> None:
    ours = _parameters()
    values = [parameter.detach().double() for parameter in ours]
    momenta = [torch.zeros_like(value) for value in values]
    optimizer = Muon(ours, momentum=MOMENTUM, weight_decay=0.1)
    for step in range(6):
        rate = 0.01 * (step + 1)
        for number, parameter in enumerate(ours):
            gradient = _noise(100 + 10 * step + number, *parameter.shape)
            parameter.grad = None if number == step % 4 else gradient
            if parameter.grad is not None:
                values[number], momenta[number] = _reference_step(
                    values[number], momenta[number], gradient.double(), rate, 0.1
                )
        optimizer.step(rate)
        optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in ours)
    for parameter, value in zip(ours, values, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value, atol=1e-4, rtol=1e-4)


def test_there_are_no_momenta_before_the_first_step_and_one_value_a_parameter_after_it() -> None:
    parameters = _parameters()
    optimizer = Muon(parameters, momentum=MOMENTUM, weight_decay=0.0)
    assert not optimizer.has_moments
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step(0.1)
    assert optimizer.has_moments
    assert sum(4 * momentum.numel() for momentum in optimizer.momenta.values()) == optimizer.moments_bytes
