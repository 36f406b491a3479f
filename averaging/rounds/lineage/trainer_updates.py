"""Gives the trainer what the rounds decided, in order and in the background: a slow training step delays nobody's next round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import LendsShiftRoom, Offload, Trainer, TrainerProgress
from averaging.rounds.lineage.adoption import (
    AdoptionShift,
    Mixed,
    Mixing,
    NoShift,
    ParameterShift,
    adopt_commit,
    adopt_switch,
    kept_parts,
    one_after_another,
)
from averaging.rounds.lineage.head_state import AppliedCommit
from averaging.rounds.lineage.unit_chain import PreparedSwitch, UnitChain
from averaging.rounds.traffic.contribution import EncodedContribution
from averaging.rounds.traffic.spans import Record, nowhere, spanned
from averaging.state.state import UnitState
from protocol.errors import PotluckError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree, goes_on
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.schedule.proposal import consumed_tokens
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

NUM_KEPT: Final = 4
"""Contributions kept for a switch of lineages, in addition to those on the last commit that a quorum made; the other lineage may
have counted these. Older ones are given up with a remark, never applied twice.
"""

MOST_KEPT_BYTES: Final = 64 << 20
"""Of those contributions. Of a large model fewer are kept: what a rare switch may cost, the local work since the fork, is not worth a
byte a value for each of them.
"""

MOST_WAITING: Final = 1
"""The most commits that wait for the trainer separately, each with vectors of the whole unit; more are merged into one."""

HELD_BACK_WITHIN_S: Final = 60.0
"""How long a replayed commit waits for the trainer, at most: a step on a slow machine, or an evaluation."""

_LONG_AGO: Final = 1 << 62
"""Tokens since the snapshot for commits that were merged while they waited: more than any delay, so none of them is mixed into
theta.
"""

ADOPT_COST_S: Final = 0.002
"""Virtual time that the arithmetic takes."""


@dataclass(frozen=True)
class _Task:
    """One update of the trainer: `adopt(tokens ready)` computes the shift, `anchor_N` is the new anchor. Waiting commits are sent
    as one update.

    Attributes:
        is_made: whether the shift was made with a commit that moved the state in place, so that `anchor_N` may move on before the
            trainer has it.
        loads: whether the trainer loads the anchor, as it is then.
        life: restarts of the trainer before the shift was made in place. A trainer that has restarted since loads the anchor: it may
            have begun at a later one. None: the shift fits whatever it began at.
    """

    adopt: Callable[[int], ParameterShift]
    anchor_N: torch.Tensor
    schedule_tokens: int
    is_commit: bool = False
    round_index: int = 0
    is_made: bool = False
    loads: bool = False
    life: int | None = None


class TrainerUpdater:
    """Sends commits and switches to the trainer; `run` does it, one after another.

    `run_tokens(own)` gives the run's tokens that schedules follow, for a unit that has counted `own`: those of the spine.
    `mixing` says how commits are mixed into theta, if they are.
    """

    def __init__(
        self,
        me: PeerId,
        chain: UnitChain,
        trainer: Trainer,
        offload: Offload,
        run_tokens: Callable[[int], int],
        mixing: Mixing | None = None,
        record: Record = nowhere,
    ) -> None:
        self._record = record
        self._run_tokens = run_tokens
        self._mixing = mixing
        self._me = me
        self._chain = chain
        self._feedback = chain.tools.feedback
        self._trainer = trainer
        self._offload = offload
        self._num_replicas = 1
        self._offers: dict[Root, tuple[CommitId, EncodedContribution]] = {}
        self._waiting: deque[_Task] = deque()
        self._is_loading = False
        """Whether the trainer is being told to load an anchor."""

        self._is_replaying = False
        """Whether the last commit was one that others followed already."""

        self._begun_life = 0
        """The trainer's restarts when the last shift in place was begun."""

        self._taking = trio.Lock()
        """Lock for turning waiting tasks into one shift: in order, each once."""

        self._arrived = trio.Event()
        self._idle = trio.Event()
        """Not set before `run` has begun."""

        self.pending_tokens = 0
        """Tokens that a commit has counted and that the trainer still calls ready."""

    async def run(self) -> None:
        """Run until cancelled. A trainer without theta loads the anchor before anything else."""
        state = self._chain.state
        await self._trainer.set_anchor(state.anchor_N)
        if not self._trainer.progress().has_theta:
            await self.correct(None, state)
        elif not self._waiting:
            self._idle.set()
        while True:
            while not self._waiting:
                await self._arrived.wait()
            try:
                await self._adopt_next()
            except PotluckError as error:
                # A training process that died restarts from the anchor that it was given; the round does not depend on it.
                log.warning("not_adopted", reason=error.one_line())
            if not self._waiting:
                self.pending_tokens = 0
                self._idle.set()

    def _next_together(self) -> list[_Task]:
        """The next update, or all waiting commits in a row: a trainer slower than the rounds must not fall further and further
        behind.
        """
        commits = list(takewhile(lambda task: task.is_commit, self._waiting))
        return commits or list(self._waiting)[:1]

    @property
    def is_idle(self) -> bool:
        """Whether the trainer has every update."""
        return self._idle.is_set()

    async def wait_adopted(self) -> None:
        """Wait until the trainer has every update."""
        await self._idle.wait()

    def remember(self, contribution: EncodedContribution) -> None:
        """Keep what was offered on the head: another lineage may have counted it."""
        agreed = self._chain.last_agreed.commit
        kept = replace(contribution, theta_N=torch.empty(0), may_overwrite_theta=False)
        self._offers[contribution.root] = (self._chain.head.commit, kept)
        loose = [root for root, (base, _) in self._offers.items() if base not in (agreed, self._chain.head.commit)]
        most = min(NUM_KEPT, MOST_KEPT_BYTES // max(1, len(contribution.data)))
        for root in loose[: max(0, len(self._offers) - most)]:
            del self._offers[root]

    def begin_shift(
        self, record: CommitRecord, contribution: EncodedContribution | None
    ) -> AdoptionShift | NoShift | None:
        """The shift of a commit that moves the state in place; `contribution` is what we offered on its base. None while the trainer
        lacks an update that still needs the anchor of an earlier commit.

        A trainer without theta, or one that loads the anchor next, needs no shift. It may read the anchor while a commit moves it, but
        each such commit is followed by a load of its own.
        """
        progress, grid = self._trainer.progress(), self._chain.tools.grid
        if self._loads_next(progress):
            return NoShift()
        is_late = not (self.is_idle or self._is_loading) and all(task.is_made for task in self._waiting)
        if not self.is_idle and not (is_late and contribution is None):
            return None
        self._begun_life = progress.restarts
        return AdoptionShift(record, self._me, contribution, grid, self._shift_room)

    def _shift_room(self) -> torch.Tensor | None:
        """The trainer's place for a shift; None while it has updates to take, since each one frees that place once it was taken."""
        trainer = self._trainer
        return trainer.shift_room() if self.is_idle and isinstance(trainer, LendsShiftRoom) else None

    def _loads_next(self, progress: TrainerProgress) -> bool:
        """Whether the trainer loads the anchor before it trains on, or as its next update."""
        return not progress.has_theta or any(task.loads for task in self._waiting)

    async def until_light(self, link: ChainLink, tree: CommitTree) -> None:
        """Hold back a commit of a replay until the trainer has the commits before it: one vector at a time is then made for it. A
        replay is of commits on which others in `tree` go on, and of the one after these. A peer that is behind delays nobody.
        """
        is_behind = goes_on(tree, link.commit)
        is_replay, self._is_replaying = is_behind or self._is_replaying, is_behind
        with trio.move_on_after(HELD_BACK_WITHIN_S):
            while is_replay and not (self.is_idle or self._loads_next(self._trainer.progress())):
                await self._idle.wait()

    async def commit(
        self, link: ChainLink, record: CommitRecord, applied: AppliedCommit, contribution: EncodedContribution | None
    ) -> AppliedCommit:
        """Queue a commit on our lineage; `contribution` is what we offered on its base. Returns the commit without the vectors that
        only the trainer needs, so that the caller does not keep them.
        """
        entry, grid = record.contributor(self._me), self._chain.tools.grid
        if entry is not None and contribution is not None and entry.root == contribution.root:
            self.pending_tokens += consumed_tokens(record, self._me)

        def adopt(tokens_ready: int) -> ParameterShift:
            if self._feedback is not None:
                self._feedback.commit(link)
            mixed = self._mixed(contribution, tokens_ready)
            return adopt_commit(applied, record, self._me, contribution, grid, mixed)

        if not self._trainer.progress().has_theta:
            applied = AppliedCommit(applied.state)
        is_made = applied.shift_N is not None
        task = _Task(
            adopt,
            applied.state.anchor_N,
            link.total_tokens,
            is_commit=True,
            round_index=link.index,
            is_made=is_made,
            loads=not is_made and applied.previous_anchor_N is None,
            life=self._begun_life if is_made else None,
        )
        await self._put(task)
        await self._fold()
        return AppliedCommit(applied.state)

    def _mixed(self, contribution: EncodedContribution | None, tokens_ready: int) -> Mixed | None:
        """How a commit is mixed into theta; None if it came after more tokens since the snapshot than mixing allows."""
        mixing = self._mixing
        if mixing is None or contribution is None:
            return None
        if tokens_ready - contribution.tokens > mixing.delay_tokens * self._num_replicas:
            return None
        return Mixed(mixing.alpha, self._chain.tools.codec if self._feedback is not None else None)

    async def switch(self, prepared: PreparedSwitch, lost: list[ChainLink], anchor_N: torch.Tensor) -> None:
        """Queue a switch of lineages; `anchor_N` (N,) float32 is the anchor that was left."""
        offers, tools = {root: offer for root, (_, offer) in self._offers.items()}, self._chain.tools
        me, feedback = self._me, self._feedback

        def adopt(tokens_ready: int) -> ParameterShift:
            state = feedback.state if feedback is not None else None
            adoption = adopt_switch(prepared, lost, anchor_N, me, offers, tools.codec, tools.grid, state)
            if feedback is not None and adoption.feedback is not None:
                feedback.switch(adoption.feedback, prepared.state.head)
            return adoption

        await self._put(_Task(adopt, prepared.state.anchor_N, prepared.state.total_tokens))

    async def correct(self, shift_N: torch.Tensor | None, state: UnitState) -> None:
        """Correct an anchor that was wrong by `shift_N`, (N,) float32: local work is kept. None: nobody knows by how much, and theta
        starts from the anchor.
        """
        task = _Task(lambda _: ParameterShift(shift_N, 0), state.anchor_N, state.total_tokens, loads=shift_N is None)
        await self._put(task)

    async def _put(self, task: _Task) -> None:
        if self._idle.is_set():
            self._idle = trio.Event()
        self._waiting.append(replace(task, schedule_tokens=self._run_tokens(task.schedule_tokens)))
        arrived, self._arrived = self._arrived, trio.Event()
        arrived.set()
        await trio.lowlevel.checkpoint()

    async def _fold(self) -> None:
        """Merge the waiting commits when there are many."""
        if len(self._waiting) <= MOST_WAITING:
            return
        async with self._taking:
            tasks = self._next_together()
            if len(tasks) > MOST_WAITING:
                adoption = await self._take(tasks, _LONG_AGO)
                self._waiting.appendleft(_as_one(tasks, adoption))

    async def _take(self, tasks: list[_Task], tokens_ready: int) -> ParameterShift:
        """The first waiting tasks as one shift; they are removed from the queue."""
        grid = self._chain.tools.grid
        try:
            adoption = await self._offload.run(
                lambda: _together((task.adopt(tokens_ready) for task in tasks), grid), cost_s=ADOPT_COST_S
            )
        finally:
            for _ in tasks:
                self._waiting.popleft()
        if self._feedback is not None:
            self._feedback.changed()
        return adoption

    async def _adopt_next(self) -> None:
        async with self._taking:
            tasks = self._next_together()
            progress = self._trainer.progress()
            self._num_replicas = progress.num_replicas
            adoption = await self._take(tasks, progress.tokens_ready)
            if any(task.life not in (None, self._trainer.progress().restarts) for task in tasks):
                adoption = ParameterShift(None, 0)
            self._is_loading = adoption.shift_N is None
        if adoption.remark:
            log.warning("local_work", reason=adoption.remark)
        what = f"{adoption.credited_tokens} tokens of ours counted{', mixed in' if adoption.kept else ''}"
        with spanned(self._record, "adopt", self._chain.tools.unit, what, tasks[-1].round_index):
            await self._tell(adoption, tasks[-1])

    async def _tell(self, adoption: ParameterShift, last: _Task) -> None:
        await self._trainer.set_anchor(last.anchor_N)
        if adoption.shift_N is None:
            await self._trainer.load(last.anchor_N, schedule_tokens=last.schedule_tokens)
            return
        await self._trainer.shift(
            adoption.shift_N,
            credited_tokens=adoption.credited_tokens,
            schedule_tokens=last.schedule_tokens,
            kept=kept_parts(adoption.kept, self._chain.tools.grid),
        )


def _as_one(tasks: Sequence[_Task], adoption: ParameterShift) -> _Task:
    """Waiting commits that were merged into one shift."""
    lives = [task.life for task in tasks if task.life is not None]
    return replace(
        tasks[-1],
        adopt=lambda tokens_ready: adoption,
        is_made=True,
        loads=adoption.shift_N is None,
        life=min(lives, default=None),
    )


def _together(adoptions: Iterable[ParameterShift], grid: ChunkGrid) -> ParameterShift:
    """Successive shifts as one shift. Each is made when it is needed."""
    return reduce(lambda first, second: one_after_another(first, second, grid), adoptions)
