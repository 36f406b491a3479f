"""A trainer in virtual time that mints a number per token: which tokens are ready, counted or lost is a question about sets.

It has no task of its own: what a training process did since it was last looked at follows from the time that its process was
awake. Its parameters move by a fixed direction per step.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import trio

from averaging.network.seams.clocks import Timers
from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, ReadAnchors, Snapshot, TrainerProgress
from tests.simulation import accounting
from tests.simulation.accounting import LIFE_TOKENS, Tokens
from tests.simulation.owed import Moved, Owed
from tests.simulation.virtual_time import Process

STEP_TOKENS = 100
MAX_DIRECTIONS = 8192
MIN_DIRECTIONS = 512
"""A walk that comes back too soon offers the same delta twice."""

UNNAMED = "for no reason"
DIED = "its training process died"
NO_OFFERS = "a switch to a lineage that had counted what was no longer here"
REWOUND = "the host took its rounds back"
NO_ANCHOR = "a switch without the anchor at the fork"

_ROUNDING_S = 1e-6


@dataclass(frozen=True)
class Costs:
    """For how many local steps training stands still while parameters are copied out, and while they are moved."""

    snapshot_steps: float = 0.0
    shift_steps: float = 0.0


MEASURED = Costs(0.01, 0.05)
"""`LocalTrainer` on one core with the model of the default manifest, 3.1 MB and 2048 tokens a step of 0.39 s: `theta` into the shared
vector 0.33 ms a MB or 0.3 % of a step, `shift` 5.2 ms a MB or 4 %. Rounded up.
"""


@dataclass(frozen=True)
class Switch:
    """A switch that is coming, to the lineage with this anchor.

    Attributes:
        regained: our tokens that only the lineage left counted; by this name they come back.
        spent: those that the new one counted.
        has_fork: whether the anchor at the fork is known, so that what comes back must.
        has_offers: whether all that the new one counted of ours is still here, so that it must be taken out.
        is_rewind: whether the host takes commits of ours back, and the local work since then with them.
    """

    anchor_N: torch.Tensor
    regained: Tokens
    spent: Tokens
    has_fork: bool
    has_offers: bool
    is_rewind: bool = False


@functools.cache
def _paths(num_elements: int) -> tuple[torch.Tensor, ...]:
    """The end of a walk of n steps; a long one comes back to its beginning."""
    generator = torch.Generator().manual_seed(num_elements)
    num_directions = max(MIN_DIRECTIONS, MAX_DIRECTIONS * 48 // max(48, num_elements))
    steps = 0.02 * torch.rand((num_directions, num_elements), generator=generator, dtype=torch.float64) - 0.01
    return torch.cumsum(steps, dim=0).to(torch.float32).unbind()


class SimulatedTrainer:
    """Trains `tokens_per_s` while its process is awake and its parameters are neither copied nor moved, from local step `first_step`
    on. `life` is the number of its process life. `owed` watches a run with error feedback.
    """

    def __init__(
        self,
        num_elements: int,
        tokens_per_s: float,
        first_step: int,
        process: Process,
        timers: Timers,
        *,
        life: int = 0,
        costs: Costs = Costs(),
        owed: Owed | None = None,
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
        self._first_token = life * LIFE_TOKENS
        self._costs = costs
        self._owed = owed
        self._moving = trio.Lock()
        self._switches: dict[int, Switch] = {}
        self._has_died = False
        self._num_deaths = self._deaths_at_snapshot = 0
        self.last_snapshot: Tokens = []
        self.dropped: dict[str, Tokens] = {}
        """Tokens that it gave up, by reason."""

    def _sync(self) -> None:
        self._process.check_alive()
        trained = int((self._process.awake_s() - self._began_s + _ROUNDING_S) / self._step_s)
        stop = self._first_step + trained
        if stop <= self._next_step:
            return
        accounting.append(self._ready, self._token_at(self._next_step), self._token_at(stop))
        self._next_step = stop

    def _token_at(self, step: int) -> int:
        return self._first_token + step * STEP_TOKENS

    async def _stand_still(self, num_steps: float) -> None:
        """No training for so long; a step that had begun goes on after it."""
        if num_steps > 0:
            self._sync()
            self._began_s += num_steps * self._step_s
            await self._timers.sleep(num_steps * self._step_s)
        self._sync()

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
        return accounting.union([(self._token_at(self._first_step), self._token_at(self._next_step))])

    @property
    def returning(self) -> Tokens:
        """The amount that comes back with the switches that it does not know of yet."""
        return accounting.union(part for switch in self._switches.values() for part in switch.regained)

    def _drop(self, reason: str, tokens: Tokens) -> None:
        self.dropped[reason] = accounting.union([*self.dropped.get(reason, []), *tokens])

    def lose_work(self) -> None:
        """The training process died: it is back at the anchor, and the next shift was made for another theta."""
        self._sync()
        self._start_from(self._anchor_N, DIED)
        self._has_died, self._num_deaths = True, self._num_deaths + 1

    def _start_from(self, anchor_N: torch.Tensor | None, reason: str) -> None:
        if anchor_N is not None:
            self._theta_N, self._theta_step = anchor_N.clone(), self._next_step
            if self._owed is not None:
                self._owed.started(anchor_N)
        self._drop(reason, self._ready)
        self._ready = []

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """theta <- anchor; what was ready is lost, which only a switch may ask for, or a death since the last snapshot."""
        async with self._moving:
            await self._stand_still(self._costs.shift_steps)
            self._load(anchor_N, DIED if self._num_deaths > self._deaths_at_snapshot else UNNAMED)

    def _load(self, anchor_N: torch.Tensor, reason: str) -> None:
        self._has_died = False
        switch = self._switches.pop(id(self._anchor_N), None)
        if switch is not None:
            if reason == UNNAMED and not switch.has_offers:
                reason = NO_OFFERS
            if reason == UNNAMED and switch.is_rewind:
                reason = REWOUND
            self._drop(reason, accounting.without(accounting.union(switch.regained), accounting.union(switch.spent)))
        self._start_from(anchor_N, reason)

    async def snapshot(self) -> Snapshot:
        """At the next step boundary."""
        async with self._moving:
            return await self._snapshot()

    async def _snapshot(self) -> Snapshot:
        self._sync()
        self._has_died, self._deaths_at_snapshot = False, self._num_deaths
        boundary_s = self._began_s + (self._next_step + 1 - self._first_step) * self._step_s
        while (wait_s := boundary_s - self._process.awake_s()) > _ROUNDING_S:
            await self._timers.sleep(wait_s)
        await self._stand_still(self._costs.snapshot_steps)
        self._move()
        self.last_snapshot = list(self._ready)
        tokens = accounting.count(self._ready)
        if self._owed is not None:
            self._owed.snapshot(self._theta_N, tokens)
        return Snapshot(self._theta_N.clone(), tokens, tokens // STEP_TOKENS, self._next_step, may_overwrite=True)

    def expect_switch(self, switch: Switch) -> None:
        """A switch is coming; its anchor says which `load` or `shift` is the one."""
        self._switches[id(switch.anchor_N)] = switch

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        """theta <- kept theta + shift; credited tokens are consumed, and come back where the credit is negative."""
        async with self._moving:
            await self._stand_still(self._costs.shift_steps)
            self._shift(shift_N, credited_tokens, kept)

    def _shift(self, shift_N: torch.Tensor, credited_tokens: int, kept: Sequence[KeptPart]) -> None:
        if self._has_died and self._anchor_N is not None:
            self._load(self._anchor_N, DIED)
            return
        self._move()
        before_N = self._theta_N
        kept_N = before_N.clone() if kept else before_N
        for part in kept:
            kept_N[part.begin : part.stop] *= part.share
        self._theta_N = torch.add(kept_N, shift_N)
        if self._owed is not None and self._anchor_N is not None:
            moved = Moved(before_N, self._theta_N, kept, accounting.count(self._ready))
            self._owed.shifted(moved, self._anchor_N)
        switch = self._switches.pop(id(self._anchor_N), None)
        if switch is not None:
            self._switch(switch, credited_tokens)
            return
        consumed, self._ready = accounting.split(self._ready, credited_tokens)
        if accounting.count(consumed) != credited_tokens:
            raise AssertionError(f"{credited_tokens} tokens credited, {accounting.count(consumed)} were ready")

    def _switch(self, switch: Switch, credited_tokens: int) -> None:
        regained, spent = switch.regained, switch.spent
        is_regained = credited_tokens == accounting.count(spent) - accounting.count(regained)
        if not is_regained:
            reason = UNNAMED if switch.has_fork else NO_ANCHOR
            self._drop(reason, accounting.without(accounting.union(regained), accounting.union(spent)))
        owned = accounting.union([*(regained if is_regained else ()), *self._ready])
        ready = accounting.without(owned, accounting.union(spent))
        if is_regained and accounting.count(owned) - accounting.count(spent) != accounting.count(ready):
            raise AssertionError(f"the other lineage counted {spent} of which only some of {owned} were ours to offer")
        self._ready = ready

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Nothing to bring back here: a simulated worker dies with its peer."""
        self._process.check_alive()
        self._anchor_N = anchor_N

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        """Mean square of the anchor. A simulated run has no prose."""
        anchor_N = torch.empty_like(self._theta_N)
        await read([anchor_N])
        return HeldoutLosses((float(torch.mean(torch.mul(anchor_N, anchor_N))),))

    def progress(self) -> TrainerProgress:
        """Counters as of now."""
        self._sync()
        trained = (self._next_step - self._first_step) * STEP_TOKENS
        ready = accounting.count(self._ready)
        deaths, has_theta = self._num_deaths, not self._has_died
        return TrainerProgress(ready, trained, 1.0, self._tokens_per_s, deaths, "training", "", has_theta=has_theta)
