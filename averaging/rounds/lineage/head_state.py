"""The outer state at a unit's head, and how a commit moves it: in place, or aside while somebody reads it."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
import trio

from averaging.arithmetic.outer_step import moves_momentum
from averaging.network.seams.interfaces import Offload
from averaging.rounds.lineage.updates import Updates
from averaging.state.state import UnitState
from protocol.errors import LocalProtocolError
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import OuterStep


@dataclass(frozen=True)
class AppliedCommit:
    """The result of one commit here: the new state, and the anchor before it, (N,) float32, or the shift of theta that was made while
    that anchor was there. It has neither if there was no theta to shift.
    """

    state: UnitState
    previous_anchor_N: torch.Tensor | None = None
    shift_N: torch.Tensor | None = None


class MakesShift(Protocol):
    """Makes the shift of theta for a commit (adoption.py) while the state moves in place."""

    @property
    def shift_N(self) -> torch.Tensor | None:  # noqa: N802 - the shape is part of the name
        """(N,) float32; None if no theta is to be shifted."""
        ...

    def seen(self, span: slice, before_n: torch.Tensor, after_n: torch.Tensor) -> None:
        """The anchor of this part before and after the commit, (n,) float32 each. Called in a thread."""
        ...


BeginShift = Callable[[], MakesShift | None]
"""None: the anchor before the commit is still needed."""


class Loan:
    """Borrowed vectors. They stay as they are until it is given back; a commit meanwhile makes others."""

    def __init__(self, held: _Held, state: UnitState) -> None:
        self.state = state
        self._loans = held.loans
        self._loans.add(self)

    def give_back(self) -> None:
        """The vectors may change from now on. May be called again, and in any thread: the last use of a vector may end in one."""
        self._loans.discard(self)


class HeadState:
    """The state at the head. A second state takes 8 bytes a value, so a commit moves its vectors in place where `steps_in_place`
    allows it and nobody has borrowed them.

    Attributes:
        is_torn: whether some chunks stand at the head and others after the next commit: a step is being made, or failed in between.
            The vectors are of no use then.
        torn_at: the last head at which a step failed. The snapshots that were taken there were overwritten.
    """

    def __init__(self, state: UnitState, *, is_lent: bool) -> None:
        """`is_lent`: whether the vectors of this first state must stay as they are."""
        self.state = state
        self.steps_in_place = False
        self.is_torn = False
        self.torn_at: CommitId | None = None
        self._held = _Held()
        self._still = trio.Lock()
        """Held while chunks move, and while somebody copies them."""

        if is_lent:
            self.lend()

    def stand_at(self, state: UnitState) -> None:
        """Hold this state from now on."""
        if state.anchor_N is not self.state.anchor_N:
            self._held, self.is_torn = _Held(), False
        self.state = state

    def lend(self) -> Loan:
        """Lend the vectors. No step is being made, since the caller holds the chain's lock."""
        return Loan(self._held, self.state)

    def lend_while_used(self) -> UnitState:
        """Lend the vectors for as long as the returned state, or a vector of it, is used anywhere: a switch that needs it may be given
        up. No step is being made, as for `lend`.
        """
        views = tuple(vector_N.view(-1) for vector_N in self.state.vectors)
        for view_N in views:
            weakref.finalize(view_N, self.lend().give_back).atexit = False
        anchor_N, momentum_N = views
        return replace(self.state, anchor_N=anchor_N, momentum_N=momentum_N)

    async def copy_anchor(self, room_N: torch.Tensor, offload: Offload) -> CommitId:
        """Copy the anchor into `room_N`, (N,) float32, and return its commit. A step in place waits for the copy, a copy for the step.

        Raises:
            LocalProtocolError: the state is of no use.
        """
        async with self._still:
            if self.is_torn:
                raise LocalProtocolError("a state that is between two commits", "one that was made again")
            state = self.state
            await offload.run(partial(room_N.copy_, state.anchor_N))
            return state.head

    @property
    def is_read(self) -> bool:
        """Whether somebody has borrowed the vectors, or one of them."""
        return bool(self._held.loans) or self._held.shares_momentum

    def may_change(self, outer: OuterStep) -> bool:
        """Whether a step may move the vectors in place.

        Raises:
            RemoteProtocolError: a kind that this version does not know.
        """
        held = self._held
        return self.steps_in_place and not held.loans and not (held.shares_momentum and moves_momentum(outer))

    async def step_aside(
        self, updates: Updates, link: ChainLink, data: Sequence[bytes | memoryview], log: Callable[[], Awaitable[None]]
    ) -> AppliedCommit:
        """The next state in memory of its own. `log` is called once it is made, and the state is taken after it. Raises as
        `Updates.advance`.
        """
        previous = self.state
        state = await updates.advance(previous, link, data)
        await log()
        shares_momentum = bool(self._held.loans) and state.momentum_N is previous.momentum_N
        if (
            state.anchor_N is not previous.anchor_N
        ):  # else nothing moved, and whoever borrowed the vectors still reads them
            self._held = _Held(shares_momentum=shares_momentum)
        self.state = state
        return AppliedCommit(state, previous.anchor_N)

    async def step_in_place(
        self,
        updates: Updates,
        link: ChainLink,
        data: Sequence[bytes | memoryview],
        log: Callable[[], Awaitable[None]],
        shift: MakesShift,
    ) -> AppliedCommit:
        """The next state in the memory of this one. All bytes are checked before `log` is called, and the first chunk moves after it.
        Raises as `Updates.check`; if a later error leaves the state torn, it says so.
        """
        await updates.check(link, data)
        await log()
        async with self._still:
            self.is_torn = True
            self.state = await updates.step_in_place(self.state, link, data, shift.seen)
            self.is_torn = False
        return AppliedCommit(self.state, shift_N=shift.shift_N)


class _Held:
    """Vectors: the loans of them, and whether their momentum is also that of other vectors that are lent. A loan leaves the set in one
    operation, so that none is miscounted where two threads give back at once.
    """

    def __init__(self, *, shares_momentum: bool = False) -> None:
        self.loans = set[Loan]()
        self.shares_momentum = shares_momentum
