"""One island: a supervised training process that moves to the mean of all islands, and for which the others do not wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import TrainerProgress
from peer.training.islands.sums_core import LEFT_OUT
from peer.training.trainer import WorkerTrainer
from peer.training.training_plan import TrainingPlan
from peer.training.worker_channel import Command, Failed, OutOfMemory, Progress, Reply
from peer.training.worker_process import EarlyWorker
from protocol.errors import MachineError

log = structlog.get_logger()

TRIED_AGAIN_S: Final = 900.0
"""After so long a card that was left out is tried again: its driver may have found it, or another program may be done with it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An island's part of a snapshot.

    Attributes:
        theta_N: a unit's theta, (N,) float32, in the memory shared with its process until `Island.join`.
        life: of the process that it belongs to.
    """

    island: Island
    theta_N: torch.Tensor
    tokens: int
    num_steps: int
    next_step: int
    life: int


class Island(WorkerTrainer):
    """A trainer that is asked without waiting for a start of its process: what it misses then, it makes up for once it is back.

    An island ends at the mean S of a snapshot or at the anchor, never between them. A process that dies restarts from the anchor.
    If it was not brought to S in its present life, then a shift that was made for S does not fit, and it loads the anchor instead.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        anchor_N: torch.Tensor,
        early: EarlyWorker | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        super().__init__(plan, anchor_N, early, devices)
        self.may_leave: Callable[[], bool] = lambda: False
        """Whether another island would go on without this one."""

        self.left_out = ""
        """Why it does not train, until it is tried again; empty while it trains."""

        self.paused_because = ""
        """Why this island alone is paused; empty while it is not."""

        self._owner_pauses = plan.is_paused
        self._told = plan
        self._behind: set[int] = set()
        """Units whose anchor it has to load once it is back."""

        self._errands: trio.Nursery | None = None
        self._living = trio.CancelScope()

    @property
    def device(self) -> str:
        """Its device, as the plan names it."""
        return self._plan.device

    @property
    def is_ready(self) -> bool:
        """Whether it obeys commands now."""
        return self._ready.is_set() and not self.left_out

    @property
    def is_busy(self) -> bool:
        """Whether a command is being carried out."""
        return self._command_lock.locked()

    async def until_ready(self) -> None:
        """Wait until it obeys commands, or is left out."""
        await self._until_ready()

    # --- the mean ---

    async def offer(self, unit: int, still_s: float) -> Offer | None:
        """A unit's theta at the next step boundary; None if there is none, since the process died or is not there yet."""
        async with self._command_lock:
            if not self.is_ready or unit in self._behind:
                return None
            known = self._life_of_theta[unit]
            self._rooms.snapshot(unit)  # also if nobody waits for it: the process writes there in any case
            reply = await self._exchange(Command(op="snapshot", unit=unit, still_s=still_s))
            if reply is None:
                self._rooms.spend(unit)
                return None
            self._life_of_theta[unit] = known  # it is not at the mean yet
            return Offer(self, self._rooms.offer(unit), reply.tokens, reply.num_steps, reply.step, self._restarts)

    async def join(self, offer: Offer, unit: int, still_s: float) -> None:
        """Theta += the values that `offer.theta_N` holds by now: the way from this island's theta to the mean. Nothing is credited.

        The process of another life has another theta. It keeps that, and loads the anchor at the next shift.
        """
        async with self._command_lock:
            if self._restarts == offer.life:
                command = Command(op="shift", unit=unit, schedule_tokens=self._schedule_tokens, still_s=still_s)
                await self._give(command, offer.theta_N)
            self._rooms.take_back(unit)

    def stand_by(self, offer: Offer, unit: int) -> None:
        """This island's theta is the mean, as no other counted."""
        self._life_of_theta[unit] = offer.life
        self._rooms.take_back(unit)

    def withdraw(self, unit: int) -> None:
        """Its offer is not made use of: theta stays as it is."""
        self._rooms.take_back(unit)

    # --- what is made up for ---

    def fall_behind(self, units: Collection[int], schedule_tokens: int) -> None:
        """Load these units' anchors once the process is back."""
        self._schedule_tokens = schedule_tokens
        self._behind.update(units)
        for unit in units:
            self._life_of_theta[unit] = -1

    async def set_slowdown(self, factor: float) -> None:
        """Train at 1 / factor of full speed from now on."""
        self._slowdown = factor
        if self.is_ready:
            await super().set_slowdown(factor)

    async def set_paused_alone(self, is_paused: bool, because: str) -> None:
        """Pause this island, or let it train as its owner says. Its ready tokens still count."""
        self.paused_because = because if is_paused else ""
        await self._set_paused(self._owner_pauses)

    async def _set_paused(self, is_paused: bool) -> None:
        self._owner_pauses = is_paused
        self._is_paused = is_paused or bool(self.paused_because)
        if self.is_ready:
            await super()._set_paused(self._is_paused)

    def _next_plan(self) -> TrainingPlan:
        self._told = super()._next_plan()
        return self._told

    def _take(self, event: Reply | Progress) -> None:
        was_ready = self._ready.is_set()
        super()._take(event)
        if not was_ready and self._ready.is_set() and self._errands is not None:
            self._errands.start_soon(self._catch_up)

    async def _catch_up(self) -> None:
        async with self._command_lock:
            if self._is_paused != self._told.is_paused:
                await self._exchange(Command(op="pause" if self._is_paused else "resume"))
                self._say_what_it_does()
            if self._slowdown != self._told.slowdown:
                await self._exchange(Command(op="slow", factor=self._slowdown))
            for unit in sorted(self._behind):
                command = Command(op="load", unit=unit, schedule_tokens=self._schedule_tokens)
                if await self._give(command, self._anchors[unit]) is None:
                    return
                # a commit may be moving that anchor: the next shift was made for another one, and loads it again
                self._life_of_theta[unit] = -1
                self._behind.discard(unit)

    # --- supervision ---

    async def supervise(self) -> None:
        """Start the process and restart it whenever it ends, until cancelled. While it is left out there is none. A card that is too
        small for the model is not tried again.
        """
        while True:
            with self._living:
                async with trio.open_nursery() as self._errands:
                    self._errands.start_soon(self._keep_alive)
            self._process.forget_next()
            if self._misfit:
                return
            await trio.sleep(TRIED_AGAIN_S)
            self._come_back()

    def _come_back(self) -> None:
        """Train again from the newest anchor, which it loads before it counts in a mean."""
        log.info("card_tried_again", device=self._plan.device, left_out_because=self.left_out)
        self._living, self._ready = trio.CancelScope(), trio.Event()
        self.fall_behind(range(len(self._anchors)), self._schedule_tokens)
        self.notes.left_card(is_on_cpu=False)
        self.left_out = ""

    async def _keep_alive(self) -> None:
        try:
            await super().supervise()
        except MachineError as error:
            if not self._leave(error.one_line()):
                raise

    def _note_death(self, cause: OutOfMemory | Failed | None, rank: int = 0) -> None:
        devices = self._cards.devices
        super()._note_death(cause, rank)
        if self._misfit:
            self._leave(self._misfit)
        elif self._cards.devices == devices and isinstance(cause, Failed) and (cause.is_gone or self.notes.leaves_card):
            self._leave(cause.reason)

    def _leave(self, reason: str) -> bool:
        """Train no more for now, if another island goes on. Commands that wait for this one end without a result."""
        if not self.may_leave():
            return False
        self.left_out = reason
        self._ready.set()
        self._rooms.has_begun()
        self._rooms.spend_all()  # but what it offers: its tokens count in the mean that is being made, and so does its theta
        self._living.cancel()
        log.warning("card_left_out", device=self._plan.device, reason=reason)
        return True

    def progress(self, *, unit: int = 0) -> TrainerProgress:
        """Current counters, with the ready tokens of this unit."""
        found = super().progress(unit=unit)
        if self.left_out:
            return replace(found, state=LEFT_OUT, reason=self.left_out, tokens_per_s=0.0)
        if self.paused_because and found.state == "paused" and not self._owner_pauses:
            return replace(found, reason=self.paused_because)
        return found
