"""Activation checkpointing by layer: a layer keeps less of its forward pass, and computes the rest again in its backward pass
(1604.06174; by the kind of operation: 2205.05198, section 5).

Gradients are the same as without it. Parameters keep their names.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from averaging.models.family import LayerCall, Repeatable
from peer.training.plan.card_plan import Checkpointing

_PRODUCTS: Final = ("mm.default", "addmm.default", "bmm.default", "baddbmm.default")
_ATTENTIONS: Final = (
    "_scaled_dot_product_flash_attention.default",
    "_scaled_dot_product_flash_attention_for_cpu.default",
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default",
    "_scaled_dot_product_fused_attention_overrideable.default",
    "_scaled_dot_product_attention_math_for_mps.default",
)
"""The attention of every kind of device. If torch computes it by products of matrices instead, these are kept."""


def _operations(names: tuple[str, ...]) -> frozenset[object]:
    """Those that this torch has."""
    found = set()
    for name in names:
        packet, overload = name.split(".")
        if hasattr(torch.ops.aten, packet):
            found.add(getattr(getattr(torch.ops.aten, packet), overload))
    return frozenset(found)


_KEPT: Final = _operations(_PRODUCTS + _ATTENTIONS)


def checkpointed(kind: Checkpointing, call: LayerCall) -> LayerCall:
    """A way to run a layer that keeps what `kind` says between its passes.

    Args:
        call: runs the layer, also when it runs again.
    """
    if kind == "none":
        return call
    return _Checkpointed(call, is_selective=kind == "selective")


class _Checkpointed:
    def __init__(self, call: LayerCall, *, is_selective: bool) -> None:
        self._call, self._is_selective = call, is_selective

    def __call__(self, layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return self._call(layer, x_BTD, *shared)
        before = _copied(shared)
        first = [shared]

        def run(x_BTD: torch.Tensor) -> torch.Tensor:
            return self._call(layer, x_BTD, *(first.pop() if first else _copied(before)))

        contexts = partial(create_selective_checkpoint_contexts, _policy) if self._is_selective else noop_context_fn
        # Layers draw no random numbers of torch's own, so that its state need not be kept.
        left: torch.Tensor = checkpoint(run, x_BTD, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
        return left


def _policy(context: SelectiveCheckpointContext, operation: object, *_: object, **__: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def _copied(shared: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(value.copy_for_repeat() if isinstance(value, Repeatable) else value for value in shared)
