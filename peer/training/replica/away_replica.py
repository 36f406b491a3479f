"""A replica whose float32 parameters, summed gradients and moments lie in the machine's memory, for a model that its card does not
hold otherwise (as ZeRO-Offload, 2101.06840, section 4).

The card has copies of the parameters: matrices of layers in the type of products, everything else in float32. A gradient leaves
the card as soon as a backward pass has made it, and is added to those of earlier passes in the machine's memory. The optimizer steps
there.
Products round their factors to that type in any case, so a step is the one that `Replica` takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

import torch
from torch import nn

from peer.models.decoder import Spine, parameters_in_order
from peer.training.optimizers.optimizer import Optimizer, make_optimizer
from peer.training.plan.card_plan import CardPlan
from peer.training.replica.replica import DTYPES, Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import layer_of
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

MOST_LEAVING: Final = 3
"""Gradients that are on their way from the card at a time, beside the backward pass."""


class AwayReplica(Replica):
    """As `Replica`, whose `parameters` are those in the machine's memory.

    Args:
        model: in the machine's memory. Its parameters become the copies on the card.
        device: the card.
    """

    def __init__(
        self, model: Spine, schema: TensorSchema, inner: InnerSection, plan: CardPlan, device: torch.device
    ) -> None:
        self._card, self._leaving = device, _Leaving()
        self._is_current = False
        """Whether the copies have the values that the next pass needs. They are made anew before the first pass of a step, since
        parameters change between steps only.
        """
        super().__init__(model, schema, inner, plan)

    def _own_parameters(self) -> list[nn.Parameter]:
        self._copies = parameters_in_order(self.model, self.schema)
        found = [nn.Parameter(_own_memory(copy.detach(), self._card), requires_grad=False) for copy in self._copies]
        for spec, copy, parameter in zip(self.schema.tensors, self._copies, found, strict=True):
            copy.data = copy.detach().to(self._card, self._copied_type(spec, copy), copy=True)
            copy.register_post_accumulate_grad_hook(partial(self._leaving.take, parameter))  # type: ignore[no-untyped-call]
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self._card))
        return found

    def _copied_type(self, spec: TensorSpec, copy: torch.Tensor) -> torch.dtype:
        is_matrix_inside = layer_of(spec.name) is not None and len(spec.shape) >= 2
        return (DTYPES[self.plan.precision] or copy.dtype) if is_matrix_inside else copy.dtype

    def _own_device(self) -> torch.device:
        return self._card

    def _own_optimizer(self, inner: InnerSection) -> Optimizer:
        return make_optimizer(inner, self.schema, self.parameters, self.plan, self._card)

    def computing(self) -> AbstractContextManager[object]:
        """As `Replica.computing`, with copies of the parameters as they are."""
        if not self._is_current:
            self._copy(self.parameters)
        return super().computing()

    @torch.no_grad()
    def _copy(self, values: Sequence[torch.Tensor]) -> None:
        for copy, value in zip(self._copies, values, strict=True):
            copy.copy_(value)
        self._is_current = True

    def backward(self, left: torch.Tensor, grad: torch.Tensor | None = None) -> None:
        """As `Replica.backward`. All gradients are in the machine's memory after it."""
        super().backward(left, grad)
        self._leaving.settle()

    def clip(self, most_norm: float) -> torch.Tensor:
        """As `Replica.clip`."""
        return super().clip(most_norm).to(self.device)

    def step(self, learning_rate: float) -> None:
        """Move the parameters, and discard the gradients."""
        super().step(learning_rate)
        self._is_current = False

    def skip_step(self) -> None:
        """Discard gradients that are not finite."""
        super().skip_step()
        self._is_current = False

    def discard(self) -> None:
        """Forget the gradients, also of a pass that was not finished."""
        self._leaving.forget()
        for copy in self._copies:
            copy.grad = None
        super().discard()
        self._is_current = False

    @contextmanager
    def standing_in(self, values: Sequence[torch.Tensor], *, steps_aside: bool = False) -> Iterator[None]:
        """As `Replica.standing_in`. The card's copies hold the other values meanwhile, and nothing more is taken of its memory."""
        call = self._run_layers_by(self._base_call)
        try:
            self._copy(values)
            with torch.no_grad():
                yield
        finally:
            self._run_layers_by(call)
            self._is_current = False


class _Leaving:
    """Gradients on their way from the card."""

    def __init__(self) -> None:
        self._on_way: deque[tuple[nn.Parameter, torch.Tensor, torch.cuda.Event]] = deque()

    def take(self, parameter: nn.Parameter, copy: torch.Tensor) -> None:
        """Begin to bring the gradient of a copy to its parameter, and free it on the card."""
        grad, copy.grad = copy.grad, None
        if grad is None:
            return
        if not grad.is_cuda:
            _add(parameter, grad)
            return
        arrived = torch.empty(grad.shape, dtype=grad.dtype, pin_memory=True)
        arrived.copy_(grad, non_blocking=True)
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record(torch.cuda.current_stream(grad.device))
        self._on_way.append((parameter, arrived, mark))
        self.settle(MOST_LEAVING)

    def settle(self, most: int = 0) -> None:
        """Wait until at most so many are on their way."""
        while len(self._on_way) > most:
            parameter, arrived, mark = self._on_way.popleft()
            mark.synchronize()
            _add(parameter, arrived)

    def forget(self) -> None:
        """Those that are on their way count for nothing."""
        self._on_way.clear()


@torch.no_grad()
def _add(parameter: nn.Parameter, grad: torch.Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = grad.to(parameter.device, parameter.dtype)
    else:
        parameter.grad.add_(grad.to(parameter.device))


def _own_memory(values: torch.Tensor, card: torch.device) -> torch.Tensor:
    """The values in the machine's memory, pinned for a CUDA card."""
    own = values.to("cpu")
    return own.pin_memory() if card.type == "cuda" else own


def replica_on(
    model: Spine, schema: TensorSchema, inner: InnerSection, plan: CardPlan, device: torch.device
) -> Replica:
    """The replica of one device by its plan. The model is on the CPU."""
    if plan.offload == "all":
        return AwayReplica(model, schema, inner, plan, device)
    return Replica(model.to(device), schema, inner, plan)
