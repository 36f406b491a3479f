"""Lets the ranks of a replica share the products of each layer (1909.08053, section 3): each has some heads and some of the inner
values of the feed-forward. Norms, embedding and head are whole on each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, cast

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from averaging.models.family import SharedWeight, Split, blocks_of
from peer.models.decoder import Spine
from peer.models.mixture import MixtureDecoder
from peer.training.plan.split_core import why_no_tensor
from protocol.errors import LocalProtocolError

_STYLES: Final[dict[Split, type[ParallelStyle]]] = {"rows": ColwiseParallel, "columns": RowwiseParallel}
"""Torch names them by the columns and rows of the transposed matrix."""


def split_layers(model: Spine, ranks: DeviceMesh) -> None:
    """Leave each rank its part of each matrix of the layers, as DTensors over `ranks`. Streams, losses and all other parameters stay
    whole plain tensors, and their gradients are the same on all of these ranks.

    Call this before parameters are sharded. A model on the meta device works too.

    Args:
        ranks: those that share layers, in the order of their places, as a mesh of one dimension.

    Raises:
        LocalProtocolError: the model cannot be split so; `why_no_tensor` tells it before.
    """
    mixture = model.mixture if isinstance(model, MixtureDecoder) else None
    if why := why_no_tensor(model.config, ranks.size(), mixture):
        raise LocalProtocolError(why, "a split that the model allows", "choose another with --split")
    blocks = blocks_of(model.config)
    for layer in model.layers_in_order():
        # every rank has the same values already, so that none are sent
        parallelize_module(layer, ranks, _styles(layer, blocks.splits), src_data_rank=None)
        for name in blocks.split_inputs:
            layer.get_submodule(name).register_forward_hook(partial(_pass_on, ranks))
        for name, module in layer.named_modules():
            if blocks.splits.get(_last(name)) == "columns":
                module.register_forward_hook(_wait)
            if _last(name) in blocks.split_weights and isinstance(module, SharedWeight):
                module.used = partial(_summed_gradient, ranks.get_group())


def _styles(layer: nn.Module, splits: Mapping[str, Split]) -> dict[str, ParallelStyle]:
    """How each module of the layer is split, by its full name: experts have parts named as the layer's own."""
    linear = [name for name, module in layer.named_modules() if isinstance(module, nn.Linear)]
    ways = {name: splits.get(_last(name)) for name in linear}
    return {name: _STYLES[way]() for name, way in ways.items() if way is not None}


def _pass_on(ranks: DeviceMesh, module: nn.Module, arrived: object, left: torch.Tensor) -> DTensor:
    """The same values, whose gradient is summed once over the ranks instead of once in each module that takes them."""
    return DTensor.from_local(left, ranks, [Replicate()], run_check=False)


def _wait(module: nn.Module, arrived: object, left: torch.Tensor) -> None:
    """Wait for the sum over the ranks. A layer that is computed again may never use it, and the group would keep it for ever."""
    if isinstance(left, AsyncCollectiveTensor):
        left.wait()


def _summed_gradient(group: distributed.ProcessGroup, weight: torch.Tensor) -> torch.Tensor:
    """The same values; the gradient is the sum of what the parts of all ranks give."""
    return cast(torch.Tensor, _SummedGradient.apply(weight, group))  # type: ignore[no-untyped-call]


class _SummedGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, weight: torch.Tensor, group: distributed.ProcessGroup
    ) -> torch.Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        whole = grad.contiguous().clone()
        distributed.all_reduce(whole, group=ctx.group)  # type: ignore[attr-defined]
        return whole, None


def _last(name: str) -> str:
    return name.rpartition(".")[2]
