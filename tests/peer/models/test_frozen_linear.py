"""Products with frozen weights equal those with the same weights in the type of the product, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from peer.models import frozen_linear
from peer.models.chunked_loss import chunked_cross_entropy
from peer.models.frozen_linear import AdaptedLinear, FrozenLinear, FrozenTable, in_8_bits, product
from peer.models.likelihood import likeliest_of_marked, sums_of_marked

GENERATOR = torch.Generator().manual_seed(7)
WEIGHT_OI = torch.randn((12, 8), generator=GENERATOR).bfloat16()
X_BTI = torch.randn((2, 3, 8), generator=GENERATOR)


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_a_product_and_its_gradient_are_those_of_the_cast_weight(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_linear, "CAST_VALUES", rows * WEIGHT_OI.shape[1])
    x, expected_x = (X_BTI.clone().requires_grad_() for _ in range(2))
    y = product(x, WEIGHT_OI)
    expected = nn.functional.linear(expected_x, WEIGHT_OI.float())
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, expected_x.grad)


def test_a_pass_keeps_the_frozen_weight_itself_and_no_cast_of_it() -> None:
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda value: kept.append(value) or value, lambda value: value):
        product(X_BTI.clone().requires_grad_(), WEIGHT_OI)
    assert [value.data_ptr() for value in kept] == [WEIGHT_OI.data_ptr()]


def test_a_weight_of_the_products_own_type_is_taken_as_it_is() -> None:
    weight = WEIGHT_OI.float().requires_grad_()
    product(X_BTI, weight).sum().backward()
    assert weight.grad is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(X_BTI, WEIGHT_OI).dtype == torch.bfloat16


def test_a_bias_is_added_in_the_type_of_the_product() -> None:
    bias_O = torch.arange(12.0).bfloat16()
    y = FrozenLinear(WEIGHT_OI, bias_O)(X_BTI)
    torch.testing.assert_close(y, nn.functional.linear(X_BTI, WEIGHT_OI.float(), bias_O.float()))


def test_an_adapter_adds_its_scaled_products() -> None:
    module = AdaptedLinear(WEIGHT_OI, None, None, 2, 0.5)
    matrix_OI = WEIGHT_OI.float() + 0.5 * module.lora_B.weight @ module.lora_A.weight
    torch.testing.assert_close(module(X_BTI), nn.functional.linear(X_BTI, matrix_OI), rtol=1e-5, atol=1e-5)


def test_rows_of_a_frozen_table_come_in_float32() -> None:
    found = FrozenTable(WEIGHT_OI)(torch.tensor([[3, 0]]))
    assert torch.equal(found, WEIGHT_OI.float()[[3, 0]][None])


@pytest.mark.parametrize("num_tokens", [1, 4, 6])
def test_the_loss_with_a_frozen_head_is_that_with_its_cast_and_only_the_stream_has_a_gradient(num_tokens: int) -> None:
    targets_BT = torch.tensor([[0, 11, 3], [4, 4, 2]])
    x, expected_x = (X_BTI.clone().requires_grad_() for _ in range(2))
    loss = chunked_cross_entropy(x, WEIGHT_OI, targets_BT, num_tokens)
    expected = nn.functional.cross_entropy((expected_x @ WEIGHT_OI.float().t()).flatten(0, 1), targets_BT.flatten())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(x.grad, expected_x.grad)


class _Casts(TorchDispatchMode):
    """Notes the number of values of each cast."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = list[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default:
            self.sizes.append(found.numel())
        return found


MARKED_BT = torch.tensor([[True, False, True], [False, True, False]])
ONE_EACH_BT = torch.tensor([[False, False, True], [False, True, False]])
TARGETS_BT = torch.tensor([[0, 11, 3], [4, 4, 2]])


@pytest.mark.parametrize(
    "use",
    [
        lambda x, head: chunked_cross_entropy(x, head, TARGETS_BT),
        lambda x, head: chunked_cross_entropy(x.clone().requires_grad_(), head, TARGETS_BT),
        lambda x, head: sums_of_marked(x, head, TARGETS_BT, MARKED_BT),
        lambda x, head: likeliest_of_marked(x, head, ONE_EACH_BT, 12),
        lambda x, head: product(x, head),
    ],
    ids=["loss", "loss with gradient", "log-likelihoods", "likeliest", "logits"],
)
def test_no_use_of_a_frozen_head_casts_more_than_some_of_its_rows_at_a_time(
    use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    head_VD = WEIGHT_OI
    expected = use(X_BTI, head_VD.float())
    monkeypatch.setattr(frozen_linear, "CAST_VALUES", 2 * head_VD.shape[1])
    with _Casts() as casts:
        found = use(X_BTI, head_VD)
    torch.testing.assert_close(found, expected)
    assert max(size for size in casts.sizes if size not in (3, 6)) == 2 * head_VD.shape[1], "two rows"


def test_8_bits_are_within_half_a_step_of_each_row_and_a_row_of_zeros_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_linear, "CAST_VALUES", 3 * WEIGHT_OI.shape[1])
    weight_OI = WEIGHT_OI.clone()
    weight_OI[4] = 0
    codes_OI, scales_O1 = in_8_bits(weight_OI)
    assert (codes_OI.dtype, scales_O1.shape) == (torch.int8, (12, 1))
    assert int(codes_OI.abs().max()) == 127
    assert not codes_OI[4].any()
    assert ((codes_OI * scales_O1 - weight_OI.float()).abs() <= scales_O1 / 2 + 1e-6).all()


def test_a_product_with_8_bits_and_its_gradient_are_those_of_the_scaled_codes() -> None:
    codes_OI, scales_O1 = in_8_bits(WEIGHT_OI)
    x, expected_x = (X_BTI.clone().requires_grad_() for _ in range(2))
    y = FrozenLinear(codes_OI, None, scales_O1)(x)
    expected = nn.functional.linear(expected_x, codes_OI * scales_O1)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, expected_x.grad)
