"""Audits in the training process: keeps the state with which this peer began a round, and takes another peer's steps from there.

The steps are taken in turns with own training. A round that is to be audited costs a copy of parameters and moments in the machine's
memory. While steps are done again there is one more: in a turn it holds our own, between turns that of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

import torch

from averaging.system.machine_limits import read_memory
from peer.audits.redone_work import ClaimedSteps, RedoneWork
from peer.machine.device import is_out_of_memory
from peer.training.local_training import LocalTrainer, TrainerState, delta_bytes, state_bytes, state_of, why_no_state
from peer.training.worker_channel import Redone, RedoOrder

MOST_KEPT: Final = 2
"""States that are kept: of the beginning of the audited round, and of the next one."""

MOST_COPIES: Final = 3
"""Copies of the training state at once: the kept beginnings, and the state of the redone steps or our own. The delta comes on top."""

LONGEST_STEP_S: Final = 30.0
"""With longer steps nothing is audited: a turn is a step at least, and no order, not even a pause, is obeyed within it."""

NOT_KEPT: Final = "the state at the beginning of that round is not here"
NO_MEMORY: Final = "there is no memory for copies of the training state"
TOO_SLOW: Final = f"a step takes more than {LONGEST_STEP_S:.0f} s here, and a pause would wait for it"


class AuditTurns:
    """The audits of one trainer, one at a time. `free_bytes` reads the memory of the machine that is free."""

    def __init__(
        self, trainer: LocalTrainer, free_bytes: Callable[[], int] = lambda: read_memory().available_bytes
    ) -> None:
        self._trainer, self._free_bytes = trainer, free_bytes
        self._step_s = 0.0
        self._is_due = False
        self._kept: dict[int, TrainerState] = {}
        self._work: RedoneWork | None = None
        self._taken: tuple[int, ClaimedSteps] | None = None

    def keep_next(self) -> Redone:
        """Keep the state with which the steps after the next load or shift begin."""
        problem = why_no_state(self._trainer) or self._why_too_much()
        self._is_due = not problem
        return Redone(problem=problem)

    def _why_too_much(self) -> str:
        """Why an audit would be in the way of training. A system may promise memory that it lacks, and end a process later."""
        if self._step_s > LONGEST_STEP_S:
            return TOO_SLOW
        needed_bytes = (MOST_COPIES - len(self._kept)) * state_bytes(self._trainer) + delta_bytes(self._trainer)
        return NO_MEMORY if self._free_bytes() < needed_bytes else ""

    def stepped(self, busy_s: float) -> None:
        """Note the seconds that an own step took."""
        self._step_s = busy_s

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
        begin_s, steps = monotonic(), ClaimedSteps(order.peer, order.first_step, order.num_steps)
        try:
            return self._turn(order, steps).model_copy(update={"took_s": monotonic() - begin_s})
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
