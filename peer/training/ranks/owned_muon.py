"""Muon over the rows that each rank holds: every matrix has an owner, which alone makes its direction orthogonal.

Momenta stay where the rows are. Directions go to the owners and the results come back, each in one exchange between all ranks, as in
torchtitan and in Dion's implementation of Muon (2504.05295).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from peer.training.optimizers.muon import STACKED_VALUES, Muon, orthogonalised, update_scale
from peer.training.optimizers.optimizer import MuonWithAdamW, Optimizer, make_optimizer
from peer.training.plan.boxes import Box
from peer.training.plan.card_plan import CardPlan
from protocol.run.training_sections import InnerSection
from protocol.tensors.tensor_schema import TensorSchema


@dataclass(frozen=True)
class Held:
    """A matrix of which each rank holds a box: its whole shape, and the boxes by rank."""

    shape: tuple[int, ...]
    boxes: Sequence[Box]


@dataclass(frozen=True)
class OwnedMuon(Muon):
    """As `Muon`; its parameters are this rank's boxes of the matrices.

    Attributes:
        held: of each parameter.
    """

    rank: int = 0
    held: dict[nn.Parameter, Held] = field(default_factory=dict)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step takes for a moment: its own matrices of the largest group as `Muon` does, and what is exchanged."""
        most = 0
        for alike in self._alike(self.parameters):
            whole, rows = self._whole_values(alike[0]), sum(parameter.numel() for parameter in alike)
            own = len(alike[self.rank :: self._num_ranks])
            most = max(most, 4 * (7 * own * whole + 3 * rows))
        return most

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient. All ranks have gradients for the same ones."""
        for alike in self._alike([parameter for parameter in self.parameters if parameter.grad is not None]):
            directions = self._exchanged([self._direction(parameter) for parameter in alike], alike)
            scale = learning_rate * update_scale(*self.held[alike[0]].shape[-2:])
            for parameter, direction in zip(alike, directions, strict=True):
                parameter.mul_(1.0 - learning_rate * self.weight_decay)
                parameter.sub_(direction, alpha=scale)

    @property
    def _num_ranks(self) -> int:
        return len(next(iter(self.held.values())).boxes)

    def _whole_values(self, parameter: nn.Parameter) -> int:
        return torch.Size(self.held[parameter].shape).numel()

    def _alike(self, parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
        """Matrices of one whole shape and of the same boxes, in groups that are processed together: at least one for each owner."""
        kinds: dict[tuple[object, ...], list[nn.Parameter]] = {}
        for parameter in parameters:
            held = self.held[parameter]
            kinds.setdefault((held.shape, *held.boxes), []).append(parameter)
        for found in kinds.values():
            size = max(self._num_ranks, STACKED_VALUES // self._whole_values(found[0]))
            yield from (found[begin : begin + size] for begin in range(0, len(found), size))

    def _exchanged(self, boxes: Sequence[torch.Tensor], alike: Sequence[nn.Parameter]) -> list[torch.Tensor]:
        """This rank's boxes of the orthogonal matrices, from its boxes of the directions. The matrix of number i is owned by rank
        i modulo their number.
        """
        held, num_ranks = self.held[alike[0]], self._num_ranks
        counts = [len(alike[owner::num_ranks]) for owner in range(num_ranks)]
        own_values = boxes[0].numel()
        sent = torch.cat([box.reshape(-1) for owner in range(num_ranks) for box in boxes[owner::num_ranks]])
        gone = [count * own_values for count in counts]
        come = [counts[self.rank] * box.num_elements for box in held.boxes]
        arrived = sent.new_empty(sum(come))
        dist.all_to_all_single(arrived, sent, come, gone)
        whole = arrived.new_empty((counts[self.rank], *held.shape))
        for box, part in zip(held.boxes, torch.split(arrived, come), strict=True):
            whole[(slice(None), *box.slices)] = part.view(-1, *box.shape)
        if len(whole):
            whole = orthogonalised(self.home.for_products(whole)).to(whole.device)
        arrived = torch.cat([whole[(slice(None), *box.slices)].reshape(-1) for box in held.boxes])
        dist.all_to_all_single(sent, arrived, gone, come)
        found: list[torch.Tensor] = [boxes[0]] * len(alike)
        for owner, part in enumerate(torch.split(sent, gone)):
            found[owner::num_ranks] = part.view(-1, *boxes[0].shape).unbind()
        return found


def owned_optimizer(
    inner: InnerSection,
    schema: TensorSchema,
    parameters: Sequence[nn.Parameter],
    plan: CardPlan,
    boxes: Sequence[Sequence[Box]],
    rank: int,
    card: torch.device | None = None,
) -> Optimizer:
    """The run's optimizer over this rank's boxes of the parameters, in the schema's order.

    Args:
        boxes: of each parameter by rank.
        card: as of `MomentHome`.
    """
    made = make_optimizer(inner, schema, parameters, plan, card)
    if not isinstance(made, MuonWithAdamW):
        return made
    named = zip(schema.tensors, parameters, boxes, strict=True)
    held = {parameter: Held(spec.shape, found) for spec, parameter, found in named}
    plain = made.muon
    muon = OwnedMuon(
        plain.parameters,
        momentum=plain.momentum,
        weight_decay=plain.weight_decay,
        home=plain.home,
        rank=rank,
        held={parameter: held[parameter] for parameter in plain.parameters},
    )
    return MuonWithAdamW(muon, made.adamw, made.matrix_share)
