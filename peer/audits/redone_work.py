"""Does another peer's local steps again, from the same anchor and on the windows that were assigned to it, beside own training.

The windows of a step follow from the seed, the peer and the step (averaging/data/assignment.py), so anybody can take them. The moments
are those with which the auditor itself began that round, so they take no bytes. Moments from after the round would differ more. As
many steps on other windows, from the same state, make a control to compare with (peer/audits/work_audit_core.py).

Redone work is cut into short turns. Between them the trainer has its own parameters, moments and counters back, bit for bit. In a turn
both states change places, so an audit takes one copy of the state, and a turn takes none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from peer.audits.trainer_state import TrainerState, exchange_state
from peer.machine.device import is_out_of_memory
from peer.training.local_training import Counters, LocalTrainer
from peer.training.replica.exchange_values import exchange_piece
from protocol.errors import LocalProtocolError, MachineError

MOST_STEPS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ClaimedSteps:
    """The local steps that a contributor says it took from an anchor: `num_steps` of them, from `first_step` on, `stride` apart."""

    peer: str
    first_step: int
    num_steps: int
    stride: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.num_steps <= MOST_STEPS or self.first_step < 0 or self.stride < 1:
            found = f"{self.num_steps} steps from step {self.first_step}, each {self.stride} after the last"
            raise LocalProtocolError(found, f"1 to {MOST_STEPS} steps from 0 on, at least 1 apart")


class RedoneWork:
    """Steps done again at one trainer, which is in one process and holds the whole model.

    Args:
        begun: the state with which this trainer began its own steps from the contributor's anchor, as `state_of` copied it.

    Raises:
        MemoryError, RuntimeError: there is no memory for a copy of it.
    """

    def __init__(self, trainer: LocalTrainer, steps: ClaimedSteps, begun: TrainerState) -> None:
        changes = {"peer": steps.peer, "first_step": steps.first_step, "stride": steps.stride}
        self._trainer, self._begun, self._steps = trainer, begun, steps
        ready = (0,) * len(begun.counters.ready)
        self._state = TrainerState(
            [value.clone() for value in begun.values],
            [moment.clone() for moment in begun.moments],
            Counters(steps.first_step, ready, source_tokens=begun.counters.source_tokens),
            begun.plan.model_copy(update=changes),
            begun.schedule_tokens,
        )
        self._piece_P = exchange_piece()

    @property
    def num_left(self) -> int:
        """Steps that are still to be taken."""
        taken = (self._state.counters.step - self._steps.first_step) // self._steps.stride
        return max(0, self._steps.num_steps - taken)

    def advance(self, most_steps: int) -> bool:
        """Take some steps. Returns whether all are done. The trainer then goes on where it was, also if a step raises.

        Raises:
            MachineError: the trainer could not be put back where it was, and must not go on.
        """
        own = _exchanged(self._trainer, self._state, self._piece_P)  # which lies where this work's state was
        try:
            for _ in range(min(most_steps, self.num_left)):
                self._trainer.step()
        finally:
            self._state = _exchanged(self._trainer, own, self._piece_P)
        return not self.num_left

    def delta(self) -> torch.Tensor:
        """The contribution that these steps make, (N,) float32, before any encoding: what they subtracted from the beginning."""
        delta_N = torch.empty(sum(value.numel() for value in self._begun.values), dtype=torch.float32)
        parts = torch.split(delta_N, [value.numel() for value in self._begun.values])
        for part, before, after in zip(parts, self._begun.values, self._state.values, strict=True):
            torch.sub(before.reshape(-1), after.reshape(-1), out=part)
        return delta_N


def _exchanged(trainer: LocalTrainer, other: TrainerState, piece_P: torch.Tensor) -> TrainerState:
    """As `exchange_state`. A trainer without all of its own values would train on with another's."""
    try:
        return exchange_state(trainer, other, piece_P)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise MachineError(
            "the state of training could not be put back after an audit, for there was no memory",
            "memory for pieces of a state",
            "set audit_share to 0 if this comes again",
        ) from error
