"""Audits in the training process: keeps the state with which this peer began a round, and takes another peer's steps from there.

The steps are taken in turns with own training. A round that is to be audited costs a copy of parameters and moments in the machine's
memory. While steps are done again there are two more copies: one of that work and one of our own.
"""

from __future__ import annotations

from typing import Final

import torch

from peer.audits.redone_work import ClaimedSteps, RedoneWork
from peer.machine.device import is_out_of_memory
from peer.training.local_training import LocalTrainer, TrainerState, state_of, why_no_state
from peer.training.worker_channel import Redone, RedoOrder

MOST_KEPT: Final = 2
"""States that are kept: of the beginning of the audited round, and of the next one."""

NOT_KEPT: Final = "the state at the beginning of that round is not here"
NO_MEMORY: Final = "there is no memory for a copy of the training state"


class AuditTurns:
    """The audits of one trainer, one at a time."""

    def __init__(self, trainer: LocalTrainer) -> None:
        self._trainer = trainer
        self._is_due = False
        self._kept: dict[int, TrainerState] = {}
        self._work: RedoneWork | None = None
        self._taken: tuple[int, ClaimedSteps] | None = None

    def keep_next(self) -> Redone:
        """Keep the state with which the steps after the next load or shift begin."""
        problem = why_no_state(self._trainer)
        self._is_due = not problem
        return Redone(problem=problem)

    def note_beginning(self) -> None:
        """Note that a load or shift is done, and keep the state if that was asked for.

        With steps ready, this peer's own round began at an earlier state, so nothing is kept.
        """
        if not self._is_due or any(self._trainer.counters.ready):
            return
        self._is_due = False
        try:
            state = state_of(self._trainer)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return
        if state.moments:  # without moments of its own it would take other steps than everybody else
            self._kept[state.schedule_tokens] = state
        while len(self._kept) > MOST_KEPT:
            del self._kept[min(self._kept)]

    def forget(self) -> None:
        """Free everything."""
        self._is_due = False
        self._kept.clear()
        self._work = self._taken = None

    def redo(self, order: RedoOrder) -> Redone:
        """Take some of another peer's steps. The trainer then goes on where it was."""
        steps = ClaimedSteps(order.peer, order.first_step, order.num_steps)
        try:
            return self._turn(order, steps)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self.forget()
            return Redone(problem=NO_MEMORY)

    def _turn(self, order: RedoOrder, steps: ClaimedSteps) -> Redone:
        if self._work is None or self._taken != (order.schedule_tokens, steps):
            begun = self._kept.get(order.schedule_tokens)
            if begun is None:
                return Redone(problem=NOT_KEPT)
            self._work, self._taken = RedoneWork(self._trainer, steps, begun), (order.schedule_tokens, steps)
        if not self._work.advance(order.turn_steps):
            return Redone(num_left=self._work.num_left)
        delta_N = self._work.delta()
        self._work = self._taken = None
        asked = torch.cat([delta_N[begin:stop] for begin, stop in order.spans])
        return Redone(delta=asked.numpy().tobytes())
