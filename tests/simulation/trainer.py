"""A trainer in virtual time that mints a number per token: which tokens are ready, counted or lost is a question about sets.

It has no task of its own: what a training process did since it was last looked at follows from the time that its process was
awake. Its parameters move by a fixed direction per step.
"""

from __future__ import annotations

import functools

import torch

from averaging.network.clocks import Timers
from averaging.network.seams import Snapshot, TrainerProgress
from tests.simulation import accounting
from tests.simulation.accounting import Tokens
from tests.simulation.virtual_time import Process

STEP_TOKENS = 100
MAX_DIRECTIONS = 8192
MIN_DIRECTIONS = 512
"""A walk that comes back too soon offers the same delta twice."""

_ROUNDING_S = 1e-6


@functools.cache
def _paths(num_elements: int) -> tuple[torch.Tensor, ...]:
    """Where a walk of n steps ends; a long one comes back to its beginning."""
    generator = torch.Generator().manual_seed(num_elements)
    num_directions = max(MIN_DIRECTIONS, MAX_DIRECTIONS * 48 // max(48, num_elements))
    steps = 0.02 * torch.rand((num_directions, num_elements), generator=generator, dtype=torch.float64) - 0.01
    return torch.cumsum(steps, dim=0).to(torch.float32).unbind()


class SimulatedTrainer:
    """Trains `tokens_per_s` while its process is awake, from local step `first_step` on."""

    def __init__(
        self, num_elements: int, tokens_per_s: float, first_step: int, process: Process, timers: Timers
    ) -> None:
        self._process = process
        self._timers = timers
        self._paths = _paths(num_elements)
        self._theta_N = torch.zeros(num_elements, dtype=torch.float32)
        self._theta_step = first_step
        self._step_s = STEP_TOKENS / tokens_per_s
        self._tokens_per_s = tokens_per_s
        self._began_s = process.awake_s()
        self._first_step = first_step
        self._next_step = first_step
        self._ready: Tokens = []
        self._anchor_N: torch.Tensor | None = None
        self._switches: dict[int, tuple[torch.Tensor, Tokens, Tokens]] = {}
        self._has_died = False
        self.last_snapshot: Tokens = []
        self.dropped: Tokens = []
        """Ready tokens that a `load` lost."""

    def _sync(self) -> None:
        self._process.check_alive()
        trained = int((self._process.awake_s() - self._began_s + _ROUNDING_S) / self._step_s)
        stop = self._first_step + trained
        accounting.append(self._ready, self._next_step * STEP_TOKENS, stop * STEP_TOKENS)
        self._next_step = stop

    def _move(self) -> None:
        paths = self._paths
        here, there = paths[self._theta_step % len(paths)], paths[self._next_step % len(paths)]
        self._theta_N = torch.add(self._theta_N, torch.sub(there, here))
        self._theta_step = self._next_step

    @property
    def ready(self) -> Tokens:
        """Tokens trained since the credited ones."""
        self._sync()
        return list(self._ready)

    @property
    def minted(self) -> Tokens:
        """All tokens of this process life."""
        self._sync()
        return accounting.union([(self._first_step * STEP_TOKENS, self._next_step * STEP_TOKENS)])

    def lose_work(self) -> None:
        """The training process died: it is back at the anchor, and the next shift was made for another theta."""
        self._sync()
        self._start_from(self._anchor_N)
        self._has_died = True

    def _start_from(self, anchor_N: torch.Tensor | None) -> None:
        if anchor_N is not None:
            self._theta_N, self._theta_step = anchor_N.clone(), self._next_step
        self.dropped.extend(self._ready)
        self._ready = []

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """theta <- anchor; what was ready is lost."""
        self._sync()
        self._has_died = False
        switch = self._switches.pop(id(self._anchor_N), None)
        if switch is not None:
            self.dropped.extend(accounting.without(accounting.union(switch[1]), accounting.union(switch[2])))
        self._start_from(anchor_N)

    async def snapshot(self) -> Snapshot:
        """At the next step boundary."""
        self._sync()
        self._has_died = False
        boundary_s = self._began_s + (self._next_step + 1 - self._first_step) * self._step_s
        while (wait_s := boundary_s - self._process.awake_s()) > _ROUNDING_S:
            await self._timers.sleep(wait_s)
        self._sync()
        self._move()
        self.last_snapshot = list(self._ready)
        tokens = accounting.count(self._ready)
        return Snapshot(self._theta_N.clone(), tokens, tokens // STEP_TOKENS, self._next_step)

    def expect_switch(self, anchor_N: torch.Tensor, regained: Tokens, spent: Tokens) -> None:
        """A switch to the lineage with this anchor is coming: our tokens that only the lineage left counted, by which name they come
        back, and those that the new one counted.
        """
        self._switches[id(anchor_N)] = (anchor_N, regained, spent)

    async def shift(self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int) -> None:
        """theta <- theta + shift; credited tokens are consumed, and come back where the credit is negative."""
        if self._has_died and self._anchor_N is not None:
            await self.load(self._anchor_N, schedule_tokens=schedule_tokens)
            return
        self._sync()
        self._move()
        self._theta_N = torch.add(self._theta_N, shift_N)
        switch = self._switches.pop(id(self._anchor_N), None)
        if switch is not None:
            self._switch(switch[1], switch[2], credited_tokens)
            return
        consumed, self._ready = accounting.split(self._ready, credited_tokens)
        if accounting.count(consumed) != credited_tokens:
            raise AssertionError(f"{credited_tokens} tokens credited, {accounting.count(consumed)} were ready")

    def _switch(self, regained: Tokens, spent: Tokens, credited_tokens: int) -> None:
        is_regained = credited_tokens == accounting.count(spent) - accounting.count(regained)
        if not is_regained:
            self.dropped.extend(accounting.without(accounting.union(regained), accounting.union(spent)))
        owned = accounting.union([*(regained if is_regained else ()), *self._ready])
        ready = accounting.without(owned, accounting.union(spent))
        if is_regained and accounting.count(owned) - accounting.count(spent) != accounting.count(ready):
            raise AssertionError(f"the other lineage counted {spent} of which only some of {owned} were ours to offer")
        self._ready = ready

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Nothing to bring back here: a simulated worker dies with its peer."""
        self._process.check_alive()
        self._anchor_N = anchor_N

    async def evaluate(self, anchor_N: torch.Tensor) -> float:
        """Mean square of the anchor."""
        return float(torch.mean(torch.mul(anchor_N, anchor_N)))

    def progress(self) -> TrainerProgress:
        """Counters as of now."""
        self._sync()
        trained = (self._next_step - self._first_step) * STEP_TOKENS
        ready = accounting.count(self._ready)
        return TrainerProgress(ready, trained, 1.0, self._tokens_per_s, 0, "training", "")
