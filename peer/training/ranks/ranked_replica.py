"""One rank's part of a replica that several cards share: the same steps as one process takes, on this rank's rows.

Shapes: N values of all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import nn

from averaging.models.family import LayerCall
from peer.machine.card_faults import card_fault
from peer.machine.device import is_out_of_memory
from peer.models.decoder import Spine, parts_of
from peer.training.optimizers.optimizer import Optimizer
from peer.training.plan.boxes import Box, box_of, spans_in
from peer.training.plan.card_plan import CardPlan
from peer.training.ranks.echoes import is_echo
from peer.training.ranks.owned_muon import owned_optimizer
from peer.training.ranks.process_group import open_process_group
from peer.training.ranks.rank_group import RankGroup
from peer.training.ranks.rank_sums import own_square, summed, take_first
from peer.training.ranks.sharding import call_inside, shard_model
from peer.training.ranks.split_layers import split_layers
from peer.training.ranks.split_sequences import SharedSequences, split_sequences
from peer.training.replica.checkpointing import checkpointed
from peer.training.replica.compiler import Compiler, not_compiled, one_line
from peer.training.replica.compiling import CompiledCall
from peer.training.replica.replica import NORM_FLOOR, Replica
from protocol.errors import LocalProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.tensor_schema import TensorSchema


class RankedReplica(Replica):
    """As `Replica`, whose `parameters` are the rows that this rank holds, as plain tensors. All ranks make the same calls.

    Args:
        make: the model, which is made without values. They are 0 until they are loaded.
        meeting: the folder of `rank_group.meet`.

    Raises:
        MachineError: this torch cannot do it.
    """

    def __init__(
        self,
        make: Callable[[], Spine],
        schema: TensorSchema,
        inner: InnerSection,
        plan: CardPlan,
        device: torch.device,
        group: RankGroup,
        meeting: Path | None,
    ) -> None:
        self.group, self._card = group, device
        self.wires = open_process_group(group, device, meeting)
        keeps = group.mesh.keeps_parameters
        split = partial(split_layers, ranks=self.wires.tensor) if group.mesh.tensor > 1 else None
        self._sharded = shard_model(
            make,
            self.wires,
            device,
            plan.precision,
            keeps_parameters=keeps,
            lies_away=plan.offload == "all",
            split_layers=split,
        )
        self._sequences: SharedSequences | None = None
        if self.wires.context is not None:
            neighbours = self.wires.context.get_group()
            self._sequences = split_sequences(self._sharded.model, group.mesh, group.rank, neighbours)
        self._names = [spec.name for spec in schema.tensors]
        self._split_dims = self._sharded.split_dims(self._names)
        self.boxes_by_rank = [
            [box_of(spec.shape, group.mesh, rank, dim) for rank in range(group.size)]
            for spec, dim in zip(schema.tensors, self._split_dims, strict=True)
        ]
        """The part of each parameter that each rank holds: by parameter, then by rank."""

        pairs = zip(self._names, self.boxes_by_rank, strict=True)
        self._box_of = {name: by_rank[group.rank] for name, by_rank in pairs}
        super().__init__(self._sharded.model, schema, inner, plan)
        self.device = device  # also where its rows lie in the machine's memory

    # --- what differs from one process ---

    def _own_parameters(self) -> list[nn.Parameter]:
        found = self._sharded.locals_of(self._names)
        for spec, parameter, box in zip(self.schema.tensors, found, self.boxes, strict=True):
            if tuple(parameter.shape) != box.shape:
                raise LocalProtocolError(f"{tuple(parameter.shape)} of {spec.name} on a rank", f"{box.shape}")
        return found

    def _own_optimizer(self, inner: InnerSection) -> Optimizer:
        card = self._card if self.plan.offload == "all" else None
        boxes = self.boxes_by_rank
        return owned_optimizer(inner, self.schema, self.parameters, self.plan, boxes, self.group.rank, card)

    @property
    def _base_call(self) -> LayerCall:
        return call_inside

    def _run_layers_by(self, call: LayerCall) -> LayerCall:
        before, self._sharded.inside.call = self._sharded.inside.call, call
        return before

    @property
    def boxes(self) -> list[Box]:
        """As `Replica.boxes`: the rows that this rank holds."""
        return list(self._box_of.values())

    def counts_of(self, place: int) -> float:
        """The share of a parameter's rows in sums over all ranks: ranks of a tensor-parallel group may hold the same ones."""
        return 1.0 if self._split_dims[place] is not None else 1.0 / self.group.mesh.tensor

    def parts(self, values_N: torch.Tensor, schema: TensorSchema) -> list[torch.Tensor]:
        """Views of the rows that this rank holds in the (N,) vector of a unit."""
        wholes = parts_of(values_N, schema)
        return [part[self._box_of[spec.name].slices] for part, spec in zip(wholes, schema.tensors, strict=True)]

    def shrink(self, begin: int, stop: int, share: float, schema: TensorSchema, own: Sequence[nn.Parameter]) -> None:
        """Multiply the values [begin, stop) of a unit by `share`, where this rank holds them."""
        for spec, parameter, first in zip(schema.tensors, own, schema.offsets.values(), strict=True):
            low, high = max(0, begin - first), min(spec.num_elements, stop - first)
            if low >= high or not parameter.numel():
                continue
            rows = parameter.view(parameter.shape[0], -1)
            for top, bottom, left, right in spans_in(self._box_of[spec.name], spec.shape, low, high):
                rows[top:bottom, left:right].mul_(share)

    def share_of(self, rows_BT: torch.Tensor) -> torch.Tensor:
        """As `Replica.share_of`: this rank's share of each sequence."""
        return rows_BT if self._sequences is None else self._sequences.of(rows_BT)

    # --- a step ---

    def begin_pass(self, *, is_last: bool) -> None:
        """Before each pass of a step. Ranks with memory for it sum their gradients once, after the last pass."""
        self._sharded.sum_gradients(now=is_last or not self.group.mesh.keeps_parameters)

    def discard(self) -> None:
        """Forget the gradients, on all ranks after the same pass."""
        self._sharded.discard()
        self.optimizer.zero_grad()

    def sum_over_ranks(self, value: float) -> float:
        """The sum of what each reader of text adds, the same on every rank."""
        return summed([value / self.group.mesh.tensor], self.device)[0]

    def finish(self, losses: Sequence[torch.Tensor], most_norm: float) -> tuple[float, float]:
        """As `Replica.finish`, with the loss and the norm of all ranks together. Bit-equal on each."""
        self._take_gradients()
        loss = torch.stack(list(losses)).double().sum() / self.group.mesh.tensor
        total, square = summed([loss, self._own_square()], self.device)
        norm = math.sqrt(square) / self.scale.factor if square >= 0.0 else math.nan
        factor = min(1.0, most_norm / (norm + NORM_FLOOR)) / self.scale.factor if math.isfinite(norm) else 1.0
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if factor != 1.0 and grads:
            torch._foreach_mul_(grads, factor)
        return total, norm

    def clip(self, most_norm: float) -> torch.Tensor:
        """As `Replica.clip`, by the norm of all ranks together."""
        return torch.tensor(self.finish([torch.zeros((), device=self.device)], most_norm)[1])

    def square(self) -> float:
        """As `Replica.square`, of all ranks together."""
        self._take_gradients()
        return summed([self._own_square()], self.device)[0] / self.scale.factor**2

    def step(self, learning_rate: float) -> None:
        """Move this rank's rows, and discard the gradients."""
        super().step(learning_rate)
        self._sharded.discard()
        self.note_moved()

    def note_moved(self) -> None:
        """As `Replica.note_moved`: what a pass without a backward pass gathered is of other values."""
        self._sharded.release()

    def skip_step(self) -> None:
        """Discard gradients that are not finite."""
        super().skip_step()
        self._sharded.discard()

    def compile(self, passes: Iterable[Callable[[], torch.Tensor]], compiler: Compiler) -> str:
        """As `Replica.compile`; layers run compiled on all ranks or on none. Each rank compiles a layer by itself first, because one
        that failed within a pass would leave the others waiting. Raises what a compiler raises later.
        """
        if not self.plan.is_compiled:
            return ""
        to_run = list(passes)
        call = checkpointed("full" if self.plan.checkpointing == "full" else "none", CompiledCall(self._base_call))
        reason = self._why_not_compiled(call, to_run[0], compiler)
        if not self.group.all(not reason):
            return reason or not_compiled("the compiler failed beside another card of this replica")
        self._run_layers_by(call)
        with compiler.watched(is_of_others=lambda error: is_echo(type(error).__name__, str(error))):
            for run_pass in to_run:
                self.backward(run_pass())
        self.discard()
        return ""

    def _why_not_compiled(self, call: LayerCall, run_pass: Callable[[], torch.Tensor], compiler: Compiler) -> str:
        """Run the first layer of a pass by this call, forward and backward, with no other rank. Why that fails; empty if it works."""
        inputs: list[tuple[nn.Module, torch.Tensor, tuple[object, ...]]] = []

        def noted(layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
            inputs.append((layer, x_BTD, shared))
            return call_inside(layer, x_BTD, *shared)

        eager = self._run_layers_by(noted)
        with torch.no_grad():
            run_pass()
        self._run_layers_by(eager)
        if not inputs:  # a stage may have no layers
            return ""
        layer, x_BTD, shared = inputs[0]
        try:
            with self._sharded.gathered(layer), compiler.watched(), self.computing():
                left = call(layer, x_BTD.detach().requires_grad_(), *shared)
                torch.autograd.backward(left, torch.zeros_like(left))
        except Exception as error:
            if is_out_of_memory(error) or card_fault(error) is not None:
                raise
            return not_compiled(f"the compiler failed: {one_line(error)}")
        finally:
            self.discard()
            self._sharded.release()  # no backward pass did, and rows that are loaded later would not be seen
        return ""

    def _take_gradients(self) -> None:
        """Give the optimizer this rank's rows of the summed gradients."""
        for parameter, grad in zip(self.parameters, self._sharded.gradients_of(self._names), strict=True):
            parameter.grad = grad
        if self.group.mesh.tensor > 1:
            pairs = zip(self.parameters, self._split_dims, strict=True)
            whole = [each.grad for each, dim in pairs if dim is None and each.grad is not None]
            take_first(whole, self.wires.tensor)  # copies must stay equal

    def _own_square(self) -> torch.Tensor:
        named = enumerate(self.parameters)
        grads = [(each.grad, self.counts_of(place)) for place, each in named if each.grad is not None]
        return own_square(grads, self.device)

    # --- evaluation ---

    @contextmanager
    def standing_in(self, values: Sequence[torch.Tensor], *, steps_aside: bool = False) -> Iterator[None]:
        """As `Replica.standing_in`, on all ranks."""
        call = self._run_layers_by(self._base_call)
        own = _copied(self.parameters, "cpu" if steps_aside else self.parameters[0].device)
        try:
            self._set(values)
            with torch.no_grad():
                yield
        finally:
            self._run_layers_by(call)
            self._set(own)

    @torch.no_grad()
    def _set(self, values: Sequence[torch.Tensor]) -> None:
        self._sharded.release()
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)


def _copied(parameters: Sequence[nn.Parameter], home: torch.device | str) -> list[torch.Tensor]:
    """Copies of rows: in the machine's memory where the device has none left."""
    try:
        return [parameter.detach().to(home, copy=True) for parameter in parameters]
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error) or torch.device(home).type == "cpu":
            raise
        return _copied(parameters, "cpu")
