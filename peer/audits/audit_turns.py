"""Audits in the training process: keeps the state with which this peer began a round, and takes another peer's steps from there.

A round begins at the anchor of its base. Under overlap this peer has taken steps of its own by then, so the state is that of its
snapshot, moved to the anchor as the commit moves theta. All steps of the contributor are taken from there, also those before its
adoption: the anchor lies nearer to its own snapshot than the auditor's does (tests/benchmarks/LOG.md, "Work done again on text read
once").

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
from peer.audits.trainer_state import (
    TrainerState,
    delta_bytes,
    moved,
    state_bytes,
    state_of,
    why_no_state,
)
from peer.machine.device import is_out_of_memory
from peer.training.local_training import LocalTrainer
from peer.training.worker_channel import Redone, RedoOrder

MOST_KEPT: Final = 2
"""States that are kept: of the beginning of the audited round, and of the next one."""

MOST_COPIES: Final = 3
"""Copies of the training state at once: beginnings and the snapshot of the next one, at most MOST_KEPT together, and the state of the
redone steps or our own. The delta comes on top.
"""

LONGEST_STEP_S: Final = 30.0
"""With longer steps nothing is audited: a turn is a step at least, and no order, not even a pause, is obeyed within it."""

MOST_LATE: Final = 0.9
"""Share of a round's steps that are taken before the commit of its base is adopted. Of a round with more nothing is kept: no larger
share was measured (tests/benchmarks/LOG.md, "Work done again on text read once").
"""

NOT_KEPT: Final = "the state at the beginning of that round is not here"
TOO_LATE: Final = f"more than {MOST_LATE:.0%} of the round's steps were taken here before its base was adopted"
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
        self._snapshot: TrainerState | None = None
        self._why_none = NOT_KEPT
        self._kept: dict[int, TrainerState] = {}
        self._work: RedoneWork | None = None
        self._taken: tuple[int, ClaimedSteps] | None = None
        self._audited: int | None = None
        self._half_done: int | None = None

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

    def note_snapshot(self) -> None:
        """Note that a snapshot was taken, and copy the state there if that of the next round's beginning was asked for."""
        if self._is_due:
            self._snapshot = self._copied()

    def note_load(self) -> None:
        """Note that a load is done, and keep the state if that was asked for."""
        self._snapshot = None
        if self._is_due:
            self._is_due, self._why_none = False, NOT_KEPT
            self._keep(self._copied())

    def note_shift(self, shift_N: torch.Tensor, credited_tokens: int) -> None:
        """Note that a shift of (N,) is done, and keep the state if that was asked for: what the last snapshot was, moved to the new
        anchor. So the steps of this peer since then are not in it.

        Nothing is kept where tokens of that snapshot are left over, for the state is no anchor then, or where too many steps were
        taken since (MOST_LATE).
        """
        begun, self._snapshot = self._snapshot, None
        if not self._is_due:
            return
        self._is_due, self._why_none = False, NOT_KEPT
        late_tokens = self._trainer.counters.tokens_ready
        if begun is None:
            self._keep(self._copied() if not late_tokens else None)
        elif late_tokens > MOST_LATE * begun.counters.tokens_ready:
            self._why_none = TOO_LATE
        elif begun.counters.tokens_ready == credited_tokens:
            self._keep(moved(self._trainer, begun, shift_N))

    def _copied(self) -> TrainerState | None:
        """A copy of the state; None without memory for one. An earlier snapshot and the oldest beginning give up theirs first."""
        self._snapshot = None
        self._forget_all_but(MOST_KEPT - 1)
        try:
            return state_of(self._trainer)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _keep(self, state: TrainerState | None) -> None:
        if (
            state is not None and state.moments
        ):  # without moments of its own it would take other steps than everybody else
            self._kept[state.schedule_tokens] = state
        self._forget_all_but(MOST_KEPT)

    def _forget_all_but(self, most: int) -> None:
        """Keep that of a running audit, which needs it to its end, and the newest."""
        for tokens in sorted(self._kept, key=lambda tokens: (tokens == self._audited, tokens))[:-most]:
            del self._kept[tokens]

    def forget(self) -> None:
        """Free everything."""
        self._is_due, self._snapshot = False, None
        self._kept.clear()
        self._work = self._taken = self._audited = self._half_done = None

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
                return Redone(problem=self._why_none)
            self._work = None  # its memory goes before there is more
            self._work, self._taken = RedoneWork(self._trainer, steps, begun), (order.schedule_tokens, steps)
            self._audited = order.schedule_tokens
        if not self._work.advance(order.turn_steps):
            return Redone(num_left=self._work.num_left)
        delta_N = self._work.delta()
        self._work = self._taken = None
        self._end_half()
        asked = torch.cat([delta_N[begin:stop] for begin, stop in order.spans])
        return Redone(delta=asked.numpy().tobytes())

    def _end_half(self) -> None:
        """An audit redoes work twice, the contributor's and a control's, from one beginning. It needs that between both, too."""
        is_over = self._half_done == self._audited
        self._half_done = self._audited = None if is_over else self._audited
