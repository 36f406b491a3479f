"""A stage's parameters through inner steps, snapshots and rounds. stage_passes.py has its passes.

All stages of a lane take an inner step together. The gradient is clipped by its norm over the whole model, so each stage reports
the square of its part and steps with the sum. A snapshot is everything that a step depends on, parameters and moments. Another
peer can continue from it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.stage_passes import StagePasses
from peer.training.plan.card_plan import FLOAT32, CardPlan
from peer.training.replica.away_replica import replica_on
from peer.training.replica.bridge import Bridge
from peer.training.replica.replica import Replica
from protocol.errors import LocalProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.stage_schema import stage_schema


@dataclass(frozen=True, slots=True)
class StageSnapshot:
    """A copy of everything that the next inner step of a stage depends on.

    Attributes:
        theta_N: its parameters in schema order, in the type they are computed with.
        moments: of its optimizer, in their fixed order; none before its first step.
    """

    theta_N: torch.Tensor
    moments: tuple[torch.Tensor, ...]


class StageTrainer:
    """One stage at one peer.

    Args:
        most_kept: largest number of micro-batches between their passes.
        recomputes: whether forward passes are repeated at the backward pass instead of being kept.
        plan: how the card computes.
        device: that computes; None for the model's own.
        counts_some: whether only some targets count.
        replica: that holds the model, of one card among several; None to make one by the plan.
    """

    def __init__(
        self,
        model: StageDecoder,
        inner: InnerSection,
        *,
        most_kept: int,
        recomputes: bool = False,
        plan: CardPlan = FLOAT32,
        device: torch.device | None = None,
        counts_some: bool = False,
        replica: Replica | None = None,
    ) -> None:
        self.schema = stage_schema(model.stages, model.stage)
        own_device = device or next(model.parameters()).device
        self.replica = replica or replica_on(model, self.schema, inner, plan, own_device)
        self.passes = StagePasses(
            model, self.replica, most_kept=most_kept, recomputes=recomputes, counts_some=counts_some
        )
        self.bridge = Bridge(self.replica.device)
        """Writes snapshots beside the passes."""

        self._inner = inner
        self._parameters = self.replica.parameters

    def load(self, theta_N: torch.Tensor) -> None:
        """Set theta to (N,). The moments stay (DiLoCo keeps them local). Discards a step in progress."""
        self._put(self.replica.parts(theta_N, self.schema))

    @torch.no_grad()
    def _put(self, parts: Sequence[torch.Tensor]) -> None:
        self.passes.forget()
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part)
        self.replica.note_moved()

    @torch.no_grad()
    def write_theta(self, out_N: torch.Tensor) -> None:
        """Write theta into (N,), of it the part that this process holds."""
        for part, parameter in zip(self.replica.parts(out_N, self.schema), self._parameters, strict=True):
            part.copy_(parameter)

    def placed(self, arrived: torch.Tensor) -> torch.Tensor:
        """Move the input to the device that computes and, unless it is tokens, to the parameters' dtype."""
        is_text = not arrived.dtype.is_floating_point
        dtype = arrived.dtype if is_text else self._parameters[0].dtype
        return arrived.to(self.replica.device, dtype, non_blocking=True)

    def theta(self) -> torch.Tensor:
        """(N,), a copy in the parameters' own dtype."""
        return torch.cat([parameter.detach().flatten() for parameter in self._parameters])

    @property
    def places(self) -> list[int]:
        """The number of the parameter that each moment belongs to, also before the first step."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        return [numbers[owner] for owner in self.replica.optimizer.owners()]

    def own_rows(self, snapshot: StageSnapshot) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Views of the rows that this process holds of a snapshot's parameters and of its moments.

        Raises:
            LocalProtocolError: a snapshot of another stage or optimizer.
        """
        schema, places = self.schema, self.places
        if snapshot.theta_N.numel() != schema.num_elements:
            raise LocalProtocolError(
                f"a snapshot of {snapshot.theta_N.numel()} values", f"{schema.num_elements} of {schema.unit}"
            )
        if len(snapshot.moments) not in (0, len(places)):
            raise LocalProtocolError(f"{len(snapshot.moments)} moments in a snapshot", f"none, or {len(places)}")
        moments, boxes = [], self.replica.boxes
        for place, moment in zip(places, snapshot.moments, strict=False):
            if moment.dim() and tuple(moment.shape) != schema.tensors[place].shape:
                found = f"a moment of shape {tuple(moment.shape)} in a snapshot"
                raise LocalProtocolError(found, f"{schema.tensors[place].shape}")
            moments.append(moment[boxes[place].slices] if moment.dim() else moment)
        return self.replica.parts(snapshot.theta_N, schema), moments

    def restore_rows(self, theta: Sequence[torch.Tensor], moments: Sequence[torch.Tensor]) -> None:
        """Continue from the rows of a snapshot, as `own_rows` gives them, of this peer or of another."""
        self.replica.optimizer.load_moments(moments)
        self._put(theta)

    def gradient_square(self) -> float:
        """Sum of the squares of this stage's gradient, in float64. It is this stage's part of the whole model's squared norm."""
        return self.replica.square()

    def take_step(self, whole_square: float, learning_rate: float, *, leads: bool = True) -> bool:
        """Take one inner step with the gradient clipped by the whole model's norm, then discard the gradients.

        Args:
            whole_square: the sum of `gradient_square` over all stages.
            leads: False on a card that is given the parameters of the one that takes the step.

        Returns:
            False if that is not finite. Nothing has moved then, and the step's tokens count at no stage.

        Raises:
            LocalProtocolError: a negative sum.
        """
        if whole_square < 0.0:
            raise LocalProtocolError(f"a squared norm of {whole_square}", "at least 0")
        is_finite = math.isfinite(whole_square)
        if not leads:
            self.replica.scale.note(is_finite=is_finite)
        elif is_finite:
            self.replica.clip_by(whole_square, self._inner.clip_norm)
            self.replica.step(learning_rate)
        else:
            self.replica.skip_step()
        self.passes.forget()
        return is_finite
