from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.weighted_mean import WeightedSum, sum_dtype
from averaging.codecs import codec_by_name
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


def test_the_error_of_a_mean_that_is_written_exactly_does_not_grow_with_its_members() -> None:
    generator, errors = torch.Generator().manual_seed(2), {}
    for num_members in (2, 16):
        parts = [torch.randn(4096, generator=generator) for _ in range(num_members)]
        total = WeightedSum(4096, sum_dtype("fp32"))
        for values_n in parts:
            total.add(1000, values_n)
        exact_n = torch.stack(parts).double().mean(0)
        errors[num_members] = float((total.mean().float() - exact_n).norm() / exact_n.norm())
    assert errors[16] <= 1.2 * errors[2]


def test_what_others_still_need_is_not_written_over() -> None:
    for dtype in (torch.float32, torch.float64):
        values_n = torch.ones(4)
        WeightedSum(4, dtype).add(3, values_n)
        assert torch.equal(values_n, torch.ones(4))


@pytest.mark.parametrize("name", ["fp16", "int8", "int4", "e3m0"])
def test_the_error_of_a_mean_in_a_coarse_codec_is_no_greater_with_many_members_than_with_two(name: str) -> None:
    codec, num, generator, errors = codec_by_name(name), 1 << 14, torch.Generator().manual_seed(3), {}
    for num_members in (2, 4, 8, 16):
        total, exact_n = WeightedSum(num, sum_dtype(name)), torch.zeros(num, dtype=torch.float64)
        for _ in range(num_members):
            values_n = torch.randn(num, generator=generator)
            exact_n += values_n.double() / num_members
            total.add(100, codec.decode(codec.encode(values_n), num))
        mean_n = codec.decode(codec.encode(total.mean().float()), num).double()
        errors[num_members] = float((mean_n - exact_n).norm() / exact_n.norm())
    assert max(errors.values()) <= 1.05 * errors[2], errors
