"""Does another peer's local steps again, from the same anchor and on the windows that were assigned to it, beside own training.

The windows of a step follow from the seed, the peer and the step (averaging/data/assignment.py), so anybody can take them. The moments
are those with which the auditor itself began that round, so they take no bytes. Moments from after the round would differ more. As
many steps on other windows, from the same state, make a control to compare with (peer/audits/work_audit_core.py).

Redone work is cut into short turns. Between them the trainer has its own parameters, moments and counters back, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from peer.machine.device import is_out_of_memory
from peer.training.local_training import Counters, LocalTrainer, TrainerState, put_state, state_of
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
        LocalProtocolError: the trainer cannot put its own state aside (`state_of`).
    """

    def __init__(self, trainer: LocalTrainer, steps: ClaimedSteps, begun: TrainerState) -> None:
        changes = {"peer": steps.peer, "first_step": steps.first_step, "stride": steps.stride}
        self._trainer, self._begun, self._steps = trainer, begun, steps
        ready = (0,) * len(begun.counters.ready)
        counters = Counters(steps.first_step, ready, source_tokens=begun.counters.source_tokens)
        self._state = replace(begun, plan=begun.plan.model_copy(update=changes), counters=counters)

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
        own = state_of(self._trainer)
        try:
            put_state(self._trainer, self._state)
            for _ in range(min(most_steps, self.num_left)):
                self._trainer.step()
            self._state = state_of(self._trainer)
        finally:
            _put_back(self._trainer, own)
        return not self.num_left

    def delta(self) -> torch.Tensor:
        """The contribution that these steps make, (N,) float32, before any encoding: what they subtracted from the beginning."""
        return torch.sub(_flat(self._begun), _flat(self._state))


def _put_back(trainer: LocalTrainer, own: TrainerState) -> None:
    """A trainer without all of its own values would train on with another's."""
    try:
        put_state(trainer, own)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise MachineError(
            "the state of training could not be put back after an audit, for there was no memory",
            "memory for the optimizer's moments",
            "set audit_share to 0 if this comes again",
        ) from error


def _flat(state: TrainerState) -> torch.Tensor:
    return torch.cat([value.to(torch.float32).reshape(-1) for value in state.values])
