"""A model whose parameters lie in rows over the ranks of a replica, by torch's fully_shard: a layer's are gathered when it runs.

The order is torchtitan's (2410.06511, section 2): activation checkpointing and the compiler inside each layer, the gathering around
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard

from averaging.models.family import LayerCall, blocks_of
from peer.models.decoder import Spine
from peer.training.plan.card_plan import Precision
from peer.training.ranks.process_group import Wires
from protocol.errors import MachineError

_FORWARD_METHODS = ("loss", "log_likelihoods", "likeliest")
"""Methods of a model that gather its parameters, as its forward pass does. Not every model has all of them."""

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def call_inside(layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
    """As `call_layer`, of a layer whose parameters are gathered already."""
    y_BTD: torch.Tensor = type(layer).forward(layer, x_BTD, *shared)
    return y_BTD


class InsideCall:
    """How each layer runs between the gathering of its parameters and their release; `call` may be replaced."""

    def __init__(self) -> None:
        self.call: LayerCall = call_inside


class ShardedModel:
    """A model that was made sharded by `shard_model`.

    Attributes:
        inside: how layers run.
    """

    def __init__(self, model: Spine, inside: InsideCall) -> None:
        self.model, self.inside = model, inside
        self._unsummed = _held_by_torch(model)

    def locals_of(self, names: list[str]) -> list[nn.Parameter]:
        """The rows that this rank holds of each parameter named: plain tensors on the same memory, without gradients."""
        named = dict(self.model.named_parameters())
        return [nn.Parameter(_local(named[name].detach()), requires_grad=False) for name in names]

    def gradients_of(self, names: list[str]) -> list[torch.Tensor | None]:
        """The gradients of those rows, summed over all ranks; None where a parameter took no part."""
        named = dict(self.model.named_parameters())
        grads = [named[name].grad for name in names]
        return [None if grad is None else _local(grad) for grad in grads]

    def split_dims(self, names: list[str]) -> list[int | None]:
        """The dimension of each parameter that ranks of a tensor-parallel group share; None where each of them holds all of it."""
        named = dict(self.model.named_parameters())
        return [_split_dim(named[name]) for name in names]

    def sum_gradients(self, *, now: bool) -> None:
        """Whether the next backward pass sums gradients over the ranks, or keeps its own for a later one. It always does with a torch
        whose own gradients could not be discarded.
        """
        cast(FSDPModule, self.model).set_requires_gradient_sync(now or self._unsummed is None)

    def discard(self) -> None:
        """Forget all gradients, and those not summed yet, which torch keeps beside the parameters."""
        for parameter in self.model.parameters():
            parameter.grad = None
        for held in self._unsummed or ():
            held.unsharded_accumulated_grad = None
            if hasattr(held, "_unsharded_param"):  # made by the first pass
                held._unsharded_param.grad = None

    @contextmanager
    def gathered(self, layer: nn.Module) -> Iterator[None]:
        """Hold all of a layer's parameters in the block, in which no other rank is needed. Gradients of it are discarded."""
        held = cast(FSDPModule, layer)
        held.unshard()
        try:
            yield
        finally:
            for parameter in layer.parameters():
                parameter.grad = None
            held.reshard()

    def release(self) -> None:
        """Drop gathered parameters, after this rank's rows were changed outside of a step."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def shard_model(
    make: Callable[[], Spine],
    wires: Wires,
    device: torch.device,
    precision: Precision,
    *,
    keeps_parameters: bool,
    lies_away: bool = False,
    split_layers: Callable[[Spine], None] | None = None,
) -> ShardedModel:
    """Make a model of which no rank ever holds more than its rows and the layers that run. All values are 0 until they are loaded.

    Args:
        make: the model, in eager mode.
        precision: layers are gathered in this type; embedding, last norm and head in float32. Gradients are summed in float32.
        keeps_parameters: whether gathered layers are kept from the forward to the backward pass.
        lies_away: whether this rank's rows and their gradients lie in the machine's memory. They come to the card to be gathered.
        split_layers: splits the products of each layer first, on parameters without values.

    Raises:
        MachineError: this torch cannot do it.
    """
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise MachineError(
            f"torch {torch.__version__} cannot share one model between cards",
            "a newer one, as 2.13",
            "install it, or use --split islands",
        )
    with torch.device("meta"):
        model = make()
    if split_layers is not None:
        split_layers(model)
    inside, mesh = InsideCall(), wires.shard
    narrow = MixedPrecisionPolicy(
        param_dtype=NARROW.get(precision), reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    wide = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    home = CPUOffloadPolicy(pin_memory=device.type == "cuda") if lies_away else OffloadPolicy()
    for layer in model.layers_in_order():
        cast(Any, layer).forward = partial(_run_inside, inside, layer)
        fully_shard(layer, mesh=mesh, mp_policy=narrow, reshard_after_forward=not keeps_parameters, offload_policy=home)
    fully_shard(model, mesh=mesh, mp_policy=wide, reshard_after_forward=False, offload_policy=home)
    for method in _FORWARD_METHODS:
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # losses are parts of a sum already
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    model.to_empty(device="cpu" if lies_away else device)
    model.table = blocks_of(model.config).table(model.config).to(device)
    with torch.no_grad():
        for parameter in model.parameters():
            _local(parameter).zero_()
    return ShardedModel(model, inside)


def _held_by_torch(model: nn.Module) -> list[Any] | None:
    """Torch's own record of each parameter; None with a torch that keeps it elsewhere than those known here."""
    try:
        groups = [
            group
            for module in model.modules()
            if isinstance(module, FSDPModule)
            for group in module._get_fsdp_state()._fsdp_param_groups
        ]
        found: list[Any] = [held for group in groups for held in group.fsdp_params]
    except AttributeError:
        return None
    return found if all(hasattr(held, "unsharded_accumulated_grad") for held in found) else None


def _run_inside(inside: InsideCall, layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
    return inside.call(layer, x_BTD, *shared)


def _local(values: torch.Tensor) -> torch.Tensor:
    return cast(DTensor, values).to_local().detach()


def _split_dim(parameter: torch.Tensor) -> int | None:
    """Of the placements, the last one is the tensor-parallel group's where there is one."""
    placements = cast(DTensor, parameter).placements
    last = placements[-1] if len(placements) > 1 else None
    return last.dim if isinstance(last, Shard) else None
