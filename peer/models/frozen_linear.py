"""Products with frozen weights, which are held in bfloat16 or in 8 bits and computed with in any type.

For a product in another type, rows of the weight are cast some at a time, in each pass anew. So a frozen weight never
exists whole in float32, and a pass keeps no cast of it.

Shapes: N tokens, I input values, O output values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import torch
from torch import nn
from torch.nn import functional

CAST_VALUES: Final = 1 << 22
"""Values of a frozen weight that are cast at a time."""


LARGEST_CODE: Final = 127
LEAST_ROW: Final = 1e-30
"""Largest value by which a row is scaled at least: a row of zeros stays one."""


def compute_type(x: torch.Tensor) -> torch.dtype:
    """The type of a product with x: autocast's where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def is_narrow(weight_OI: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a weight is frozen in another type than this one of a product."""
    return weight_OI.dtype in (torch.bfloat16, torch.int8) and weight_OI.dtype != dtype


def in_type(weight_OI: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight for `rows_product` with inputs of this type: cast, but a frozen one as it is."""
    return weight_OI if is_narrow(weight_OI, dtype) else weight_OI.to(dtype)


def product(x: torch.Tensor, weight_OI: torch.Tensor, scales_O1: torch.Tensor | None = None) -> torch.Tensor:
    """(..., I) to (..., O): x W^T, as `functional.linear`. The weight may be frozen.

    Args:
        scales_O1: of a weight in 8 bits, a factor for each row.
    """
    dtype = compute_type(x)
    if not is_narrow(weight_OI, dtype):
        return functional.linear(x, weight_OI)
    with torch.autocast(x.device.type, enabled=False):
        return cast(torch.Tensor, _Product.apply(x.to(dtype), weight_OI, scales_O1))  # type: ignore[no-untyped-call]


def rows_product(x_NI: torch.Tensor, weight_OI: torch.Tensor, scales_O1: torch.Tensor | None = None) -> torch.Tensor:
    """(N, I) to (N, O) in the type of x, without gradients."""
    if weight_OI.dtype == x_NI.dtype:
        return x_NI @ weight_OI.t()
    return torch.cat([x_NI @ rows.t() for _, rows in _cast_rows(weight_OI, scales_O1, x_NI.dtype)], dim=1)


def back_product(grad_NO: torch.Tensor, weight_OI: torch.Tensor, scales_O1: torch.Tensor | None = None) -> torch.Tensor:
    """The gradient (N, I) by the input of `rows_product`."""
    if weight_OI.dtype == grad_NO.dtype:
        return grad_NO @ weight_OI
    total_NI = torch.zeros((len(grad_NO), weight_OI.shape[1]), dtype=grad_NO.dtype, device=grad_NO.device)
    for begin, rows in _cast_rows(weight_OI, scales_O1, grad_NO.dtype):
        total_NI.addmm_(grad_NO[:, begin : begin + len(rows)], rows)
    return total_NI


def _cast_rows(
    weight_OI: torch.Tensor, scales_O1: torch.Tensor | None, dtype: torch.dtype
) -> Iterator[tuple[int, torch.Tensor]]:
    each = max(1, CAST_VALUES // weight_OI.shape[1])
    for begin in range(0, len(weight_OI), each):
        rows = weight_OI[begin : begin + each].to(dtype)
        yield begin, rows if scales_O1 is None else rows * scales_O1[begin : begin + each].to(dtype)


def in_8_bits(weight_OI: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(O, I) int8 and (O, 1) float32: each row's values over its factor, rounded half to even. The largest of a row becomes 127. Some
    rows are in float32 at a time.
    """
    codes_OI = torch.empty(weight_OI.shape, dtype=torch.int8, device=weight_OI.device)
    scales_O1 = torch.empty((len(weight_OI), 1), device=weight_OI.device)
    for begin, rows in _cast_rows(weight_OI, None, torch.float32):
        scales = rows.abs().amax(dim=1, keepdim=True).clamp_(min=LEAST_ROW) / LARGEST_CODE
        scales_O1[begin : begin + len(rows)] = scales
        codes_OI[begin : begin + len(rows)] = (rows / scales).round_().to(torch.int8)
    return codes_OI, scales_O1


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        weight_OI: torch.Tensor,
        scales_O1: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(weight_OI, scales_O1)  # type: ignore[arg-type]
        return rows_product(x.reshape(-1, x.shape[-1]), weight_OI, scales_O1).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor
    ) -> tuple[torch.Tensor | None, None, None]:
        weight_OI, scales_O1 = ctx.saved_tensors  # type: ignore[attr-defined]
        if not ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            return None, None, None
        grad_NI = back_product(grad.reshape(-1, grad.shape[-1]), weight_OI, scales_O1)
        return grad_NI.view(*grad.shape[:-1], -1), None, None


class FrozenLinear(nn.Module):
    """A linear map whose weight, (O, I), and bias are buffers.

    Args:
        scales_O1: of a weight in 8 bits.
    """

    def __init__(
        self, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None, scales_O1: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        self.weight: torch.Tensor
        self.bias: torch.Tensor | None
        self.scales: torch.Tensor | None
        self.register_buffer("weight", weight_OI, persistent=False)
        self.register_buffer("bias", bias_O, persistent=False)
        self.register_buffer("scales", scales_O1, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., I) to (..., O)."""
        y = product(x, self.weight, self.scales)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class AdaptedLinear(FrozenLinear):
    """A frozen linear map with an adapter beside it: W x + scale * B A x."""

    def __init__(
        self,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        scales_O1: torch.Tensor | None,
        rank: int,
        scale: float,
    ) -> None:
        super().__init__(weight_OI, bias_O, scales_O1)
        rows, columns, device = *weight_OI.shape, weight_OI.device
        self.lora_A = nn.Linear(columns, rank, bias=False, device=device)
        self.lora_B = nn.Linear(rank, rows, bias=False, device=device)
        self._scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., I) to (..., O)."""
        learned: torch.Tensor = self.lora_B(self.lora_A(x))
        return super().forward(x) + learned * self._scale


class FrozenTable(nn.Module):
    """An embedding whose weight, (V, D), is a buffer."""

    def __init__(self, weight_VD: torch.Tensor) -> None:
        super().__init__()
        self.weight: torch.Tensor
        self.register_buffer("weight", weight_VD, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(...) int64 to (..., D) float32."""
        return functional.embedding(tokens, self.weight).float()
