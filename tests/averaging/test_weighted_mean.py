from __future__ import annotations

import pytest
import torch

from averaging.weighted_mean import WeightedSum
from protocol.errors import LocalProtocolError


def _mean(*parts: tuple[int, torch.Tensor]) -> torch.Tensor:
    total = WeightedSum(parts[0][1].numel())
    for weight, values in parts:
        total.add(weight, values)
    return total.mean()


def test_the_mean_follows_the_weights() -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [(weight, torch.randn(100, generator=generator)) for weight in (1, 40_000, 7)]
    exact = sum(weight * values.double() for weight, values in parts) / sum(weight for weight, _ in parts)
    torch.testing.assert_close(_mean(*parts).double(), exact, rtol=1e-5, atol=1e-6)


def test_a_weight_of_zero_adds_nothing_and_all_zero_is_refused() -> None:
    ones, twos = torch.ones(4), 2 * torch.ones(4)
    assert torch.equal(_mean((0, twos), (3, ones)), ones)
    with pytest.raises(LocalProtocolError):
        _mean((0, ones), (0, twos))
    with pytest.raises(LocalProtocolError):
        WeightedSum(4).mean()


@pytest.mark.parametrize("weight", [-1, (1 << 53) + 1])
def test_a_weight_out_of_bounds_is_refused(weight: int) -> None:
    with pytest.raises(LocalProtocolError):
        WeightedSum(2).add(weight, torch.ones(2))
