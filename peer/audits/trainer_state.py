"""The state of a trainer between two steps: copied, and exchanged with that of other work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from peer.machine.device import wait_for
from peer.training.local_training import Counters, LocalTrainer
from peer.training.replica.exchange_values import exchange_values
from peer.training.training_plan import TrainingPlan
from protocol.errors import LocalProtocolError


@dataclass(frozen=True, eq=False)
class TrainerState:
    """All that local steps change, apart from the trainer that takes them.

    Attributes:
        values: of each parameter, copies.
        moments: of the optimizer, copies in its own order; none before the first step.
        plan: says whose windows the steps take.
        schedule_tokens: tokens of the run at the anchor, by which the learning rate goes.
    """

    values: Sequence[torch.Tensor]
    moments: Sequence[torch.Tensor]
    counters: Counters
    plan: TrainingPlan
    schedule_tokens: int


def why_no_state(trainer: LocalTrainer) -> str:
    """Why the replica has no such state of its own; empty where it has one."""
    if trainer.group.size > 1:
        return "a replica of several ranks"
    if trainer.plan.mixture is not None:
        return "a replica of experts"
    if trainer.replica.plan.moments == "int8":  # the codes of a block change each time that they are read and written
        return "moments in 8 bits"
    return "products in fp16" if trainer.replica.plan.precision == "fp16" else ""


def state_bytes(trainer: LocalTrainer) -> int:
    """Bytes that `state_of` takes in the machine's memory."""
    return sum(values.nbytes for values in (*trainer.parameters, *trainer.replica.optimizer.moments()))


def delta_bytes(trainer: LocalTrainer) -> int:
    """Bytes of a contribution in float32."""
    return 4 * sum(parameter.numel() for parameter in trainer.parameters)


def state_of(trainer: LocalTrainer) -> TrainerState:
    """A copy of the trainer's state between two steps, in the machine's memory.

    Raises:
        LocalProtocolError: the replica has no such state of its own (`why_no_state`).
    """
    if problem := why_no_state(trainer):
        raise LocalProtocolError(problem, "one that trains alone, in fp32 or bf16, with exact moments")
    return TrainerState(
        [parameter.detach().to("cpu", copy=True) for parameter in trainer.parameters],
        [moment.detach().to("cpu", copy=True) for moment in trainer.replica.optimizer.moments()],
        trainer.counters,
        trainer.plan,
        trainer.schedule_tokens,
    )


def exchange_state(trainer: LocalTrainer, other: TrainerState, piece_P: torch.Tensor) -> TrainerState:
    """Continue from another state of this trainer. The trainer's own state, which is returned, then lies in the tensors of `other`.

    Args:
        piece_P: as of `exchange_values`; nothing else is taken of memory.

    Raises:
        LocalProtocolError: a state of another trainer, or moments of one alone. Nothing is changed then.
    """
    own = (*(each.detach() for each in trainer.parameters), *trainer.replica.optimizer.moments())
    theirs = (*other.values, *other.moments)
    if [each.shape for each in own] != [each.shape for each in theirs]:
        raise LocalProtocolError(
            f"a state of {len(theirs)} tensors", f"the {len(own)} of this trainer, each of its shape"
        )
    wait_for(trainer.device)  # moments in pinned memory may be on their way
    for one, another in zip(own, theirs, strict=True):
        exchange_values(one, another, piece_P)
    before = replace(other, counters=trainer.counters, plan=trainer.plan, schedule_tokens=trainer.schedule_tokens)
    trainer.counters, trainer.plan, trainer.schedule_tokens = other.counters, other.plan, other.schedule_tokens
    return before


def moved(trainer: LocalTrainer, state: TrainerState, shift_N: torch.Tensor) -> TrainerState:
    """A state of this trainer once a commit has moved its values by (N,) float32 in place, as `LocalTrainer.shift` moves theta, with
    the tokens of the run that the trainer has now. No tokens are ready in it.
    """
    parts = (part for schema in trainer.units.schemas for part in trainer.replica.parts(shift_N, schema))
    for value, part in zip(state.values, parts, strict=True):
        value.add_(part.to("cpu"))
    counters = replace(state.counters, ready=(0,) * len(state.counters.ready))
    return replace(state, counters=counters, schedule_tokens=trainer.schedule_tokens)
