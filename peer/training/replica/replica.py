"""A model on a device with its optimizer. Every kind of peer computes, clips and moves its parameters here.

Shapes: N values of all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import torch
from torch import nn

from averaging.models.family import LayerCall, call_layer
from peer.machine.card_faults import card_fault
from peer.machine.device import is_out_of_memory
from peer.models.decoder import Spine, parameters_in_order, parts_of
from peer.training.optimizers.optimizer import Optimizer, make_optimizer
from peer.training.plan.boxes import Box, whole_box
from peer.training.plan.card_plan import CardPlan, Checkpointing
from peer.training.replica.checkpointing import checkpointed
from peer.training.replica.compiler import Compiler, not_compiled, one_line
from peer.training.replica.compiling import CompiledCall
from peer.training.replica.loss_scale import LossScale
from protocol.run.training_sections import InnerSection
from protocol.tensors.tensor_schema import TensorSchema

DTYPES: Final = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

NORM_FLOOR: Final = 1e-6
"""Added to the norm that a gradient is clipped by, as in torch's clipping."""


class Replica:
    """A model, its optimizer, and how both compute.

    Args:
        model: on the device already.
        schema: of the model's parameters.
        plan: of the device.
    """

    def __init__(self, model: Spine, schema: TensorSchema, inner: InnerSection, plan: CardPlan) -> None:
        self.model, self.schema, self.plan = model, schema, plan
        self.parameters = self._own_parameters()
        self.device = self._own_device()
        self.optimizer = self._own_optimizer(inner)
        self.scale = LossScale(is_needed=plan.precision == "fp16")
        self._dtype = DTYPES[plan.precision]
        self._run_layers_by(checkpointed(plan.checkpointing, self._base_call))

    # --- what differs where several ranks share a replica (peer/training/ranks/ranked_replica.py) or where its parameters lie in the
    # machine's memory (peer/training/replica/away_replica.py) ---

    def _own_parameters(self) -> list[nn.Parameter]:
        """This process' part of each parameter, in the schema's order."""
        return parameters_in_order(self.model, self.schema)

    def _own_device(self) -> torch.device:
        """The device that computes."""
        return self.parameters[0].device

    def _own_optimizer(self, inner: InnerSection) -> Optimizer:
        return make_optimizer(inner, self.schema, self.parameters, self.plan)

    @property
    def _base_call(self) -> LayerCall:
        return call_layer

    def _run_layers_by(self, call: LayerCall) -> LayerCall:
        """Run layers by this call from now on. Returns the one before."""
        before, self.model.call = self.model.call, call
        return before

    @property
    def boxes(self) -> list[Box]:
        """This process' part of each parameter."""
        return [whole_box(spec.shape) for spec in self.schema.tensors]

    def parts(self, values_N: torch.Tensor, schema: TensorSchema) -> list[torch.Tensor]:
        """Views of the (N,) vector of a unit: this process' part of each parameter."""
        return parts_of(values_N, schema)

    def shrink(self, begin: int, stop: int, share: float, schema: TensorSchema, own: Sequence[nn.Parameter]) -> None:
        """Multiply the values [begin, stop) of a unit by `share`; `own` are the unit's parameters. Without gradients."""
        for parameter, first in zip(own, schema.offsets.values(), strict=True):
            parameter.view(-1)[max(0, begin - first) : max(0, stop - first)].mul_(share)

    def cut(self, tokens_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and targets (B, T) of windows (B, T + 1) that this process computes."""
        return self.share_of(tokens_BT[:, :-1]), self.share_of(tokens_BT[:, 1:])

    def share_of(self, rows_BT: torch.Tensor) -> torch.Tensor:
        """The part of inputs or targets (B, T) that this process computes."""
        return rows_BT

    def begin_pass(self, *, is_last: bool) -> None:
        """Before each forward pass of a step."""

    def note_moved(self) -> None:
        """The parameters got other values outside of a step."""

    def discard(self) -> None:
        """Forget the gradients of passes whose step is not taken."""
        self.optimizer.zero_grad()

    def sum_over_ranks(self, value: float) -> float:
        """The sum of the ranks' values; here its own."""
        return value

    def finish(self, losses: Sequence[torch.Tensor], most_norm: float) -> tuple[float, float]:
        """After the last pass of a step: the sum of its losses, and the norm of the gradient, which is clipped (`clip`). If one of
        them is not finite, the step must not be taken.
        """
        norm_tensor = self.clip(most_norm)
        *parts, norm = torch.stack([*losses, norm_tensor]).tolist()  # one synchronisation for all of them
        return sum(parts), norm

    # --- how it computes ---

    def compile(self, passes: Iterable[Callable[[], torch.Tensor]], compiler: Compiler) -> str:
        """Run the layers compiled from now on, if the plan says so. Returns why not, in one line; they run eagerly then.

        Args:
            passes: each returns a scalar, and has shapes of later passes. Nothing is compiled after them.
        """
        if not self.plan.is_compiled:
            return ""
        # the compiler itself keeps the results of products and computes the cheap rest again
        kept: Checkpointing = "full" if self.plan.checkpointing == "full" else "none"
        self._run_layers_by(checkpointed(kept, CompiledCall(self._base_call)))
        try:
            with compiler.watched():
                for run_pass in passes:
                    self.backward(run_pass())
        except Exception as error:
            if is_out_of_memory(error) or card_fault(error) is not None:
                raise
            self._run_layers_by(checkpointed(self.plan.checkpointing, self._base_call))
            return not_compiled(f"the compiler failed: {one_line(error)}")
        finally:
            self.discard()
        return ""

    def computing(self) -> AbstractContextManager[object]:
        """The context of a forward pass: matrix products in the plan's type.

        A pass uses each matrix once, so casts are not cached: a layer that is computed again does not keep its own.
        """
        return torch.autocast(self.device.type, dtype=self._dtype, enabled=self._dtype is not None, cache_enabled=False)

    def backward(self, left: torch.Tensor, grad: torch.Tensor | None = None) -> None:
        """Add the gradients of a pass to the parameters'. They are scaled (`LossScale`) until `norm` or `square` is asked.

        Args:
            left: a scalar, or activations with their gradient `grad`.
        """
        factor = self.scale.factor
        if grad is None:
            torch.autograd.backward(left if factor == 1.0 else left * factor)
        else:
            torch.autograd.backward(left, grad if factor == 1.0 else grad * factor)

    def clip(self, most_norm: float) -> torch.Tensor:
        """Undo the scale of the gradients and clip them by their norm. Returns the norm before, a scalar on the device. It is not
        finite if a gradient is not; the step must then not be taken.
        """
        self.scale.undo(parameter.grad for parameter in self.parameters if parameter.grad is not None)
        return torch.nn.utils.clip_grad_norm_(self.parameters, most_norm)

    def square(self) -> float:
        """Sum of the squares of the gradient, without its scale, in float64: a stage's part of a whole model's squared norm."""
        norms = [
            torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
            for parameter in self.parameters
            if parameter.grad is not None
        ]
        return sum(((float(norm) / self.scale.factor) ** 2 for norm in norms), 0.0)

    @torch.no_grad()
    def clip_by(self, whole_square: float, most_norm: float) -> None:
        """Undo the scale of the gradients and clip them by the whole model's norm, of which this is a part."""
        factor = min(1.0, most_norm / (math.sqrt(whole_square) + NORM_FLOOR)) / self.scale.factor
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self, learning_rate: float) -> None:
        """Move the parameters by their gradients, and discard these."""
        self.optimizer.step(learning_rate)
        self.scale.note(is_finite=True)
        self.optimizer.zero_grad()

    def skip_step(self) -> None:
        """Discard gradients that are not finite."""
        self.scale.note(is_finite=False)
        self.optimizer.zero_grad()

    @contextmanager
    def standing_in(self, values: Sequence[torch.Tensor], *, steps_aside: bool = False) -> Iterator[None]:
        """Run the block with other parameters in place of its own.

        Args:
            values: of each parameter, as `parts` gives them, on the CPU, where they are used in place without a copy.
            steps_aside: copy the own parameters into the machine's memory meanwhile. So the device never holds both.
        """
        call = self._run_layers_by(self._base_call)  # other shapes than training's would be compiled anew
        with torch.no_grad():
            own = [
                parameter.detach().to("cpu", copy=True) if steps_aside else parameter.data
                for parameter in self.parameters
            ]
            try:
                for parameter, value in zip(self.parameters, values, strict=True):
                    if steps_aside:
                        parameter.copy_(value)
                    else:
                        parameter.data = value.to(self.device)
                yield
            finally:
                self._run_layers_by(call)
                for parameter, value in zip(self.parameters, own, strict=True):
                    if steps_aside:
                        parameter.copy_(value)
                    else:
                        parameter.data = value
