"""Measures this peer's parts of the run's tasks at the commits that are due, and brings the signed scores to the host.

It never ends training: a slice is no larger than a training micro-batch, training goes on between slices, a pause of the owner is
waited for, and every error costs the measurement alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog
import torch
import trio

from averaging.data.tasks.task_file import Prompts, Questions, TaskFile
from averaging.network.seams.interfaces import ReadAnchors
from averaging.rounds.traffic.spans import EVALUATE, spanned
from averaging.rounds.unit_service import RoundService
from peer.scores.scoring_core import (
    FIRST_SEQUENCES,
    FIRST_TOKENS,
    MOST_SEQUENCES,
    Request,
    TimeBudget,
    first_fitting,
    next_size,
    requests_of,
    tally,
)
from peer.status.duties_core import EvaluationTurns
from peer.status.status_board import StatusBoard
from peer.training.worker_channel import Scored, ScoreOrder
from peer.training.worker_errors import WorkerDied, all_finite
from protocol.errors import MIGHT_WORK_LATER, LocalProtocolError, PotluckError
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.evaluators import is_turn_of
from protocol.run.evaluate_section import EvaluateSection
from protocol.scores.score_result import ScoreResult, encode_score
from protocol.scores.task_turns import items_of_part, turn_order

log = structlog.get_logger()

MEASURE_WITHIN_S: Final = 3600.0
"""A measurement that takes longer is given up, and its part is missing."""

LAST_WITHIN_S: Final = 120.0
OLD_WITHIN_S: Final = 30.0
"""Once the run is over: time for its last commit, after the time in which a measurement of an earlier one may end. Then there is
SEND_LAST_WITHIN_S for what the host has not got yet.
"""

SEND_LAST_WITHIN_S: Final = 20.0
SEND_EVERY_S: Final = 3.0
LOOK_EVERY_S: Final = 5.0

_COPIED_AT_ONCE: Final = 1 << 22
"""Values. Others wait for some milliseconds then."""

TRIES: Final = 3
"""How often a slice is tried when the training process dies."""

MAX_UNSENT: Final = 64


@dataclass(frozen=True, slots=True)
class ScoringTools:
    """The peer's tools for scoring.

    Attributes:
        tasks: of the run, with the number of items of each.
        read_task: reads a task's file, which is on this disk.
        score: what other parameters make of sequences: the trainer's.
        copied: copies the parameters of a commit, (N,) float32 of each unit. Raises LocalProtocolError after another commit.
        signed: the payload of a score in this peer's envelope.
        send: brings a signed score to the host.
    """

    tasks: Sequence[EvaluateSection]
    read_task: Callable[[str], Awaitable[TaskFile]]
    score: Callable[[ReadAnchors, ScoreOrder], Awaitable[Scored]]
    copied: Callable[[CommitId], Awaitable[Sequence[torch.Tensor]]]
    signed: Callable[[bytes], Awaitable[bytes]]
    send: Callable[[bytes], Awaitable[None]]
    turns: EvaluationTurns
    board: StatusBoard
    context_tokens: int
    total_tokens: int


@dataclass
class TaskScoring:
    """The measurements of one peer, and the scores that the host has not got yet."""

    tools: ScoringTools
    budget: TimeBudget
    unsent: list[bytes] = field(default_factory=list)

    async def run(self, service: RoundService, is_over: Callable[[], bool]) -> None:
        """Measure until the run is over and its last commit is measured, or cannot be in time. Raises nothing of a measurement."""
        if not self.tools.tasks:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._bring)
            await self._measure_heads(service, is_over)
            with trio.move_on_after(SEND_LAST_WITHIN_S):
                while self.unsent:
                    await trio.sleep(SEND_EVERY_S / 10)
            nursery.cancel_scope.cancel()

    async def _measure_heads(self, service: RoundService, is_over: Callable[[], bool]) -> None:
        done: CommitId | None = None
        while not (is_over() and done == service.chain.head.commit):
            link = service.chain.head
            if link.commit == done or service.chain.state.head != link.commit:
                with trio.move_on_after(LOOK_EVERY_S):
                    await service.wait_changed()
                continue
            if parts := self._own_parts(link):
                async with _ends_in_time(service, is_over):
                    await self._measure(link, parts, is_over)
            done = link.commit

    def _own_parts(self, link: ChainLink) -> list[tuple[EvaluateSection, int]]:
        """The parts of tasks that are due at a commit and that it is this peer's turn to measure."""
        tools, turns = self.tools, self.tools.turns
        due = [t for t in tools.tasks if t.is_due(link.index, is_last=link.total_tokens >= tools.total_tokens)]
        return [
            (task, part)
            for task in due
            for part in range(task.parts)
            if is_turn_of(
                turns.me,
                turn_order(turns.run_id, link.unit, task.name, link.index, part, link.roster),
                turns.is_here,
            )
        ]

    async def _measure(
        self, link: ChainLink, parts: Sequence[tuple[EvaluateSection, int]], is_over: Callable[[], bool]
    ) -> None:
        try:
            anchors = await self.tools.copied(
                link.commit
            )  # a copy, as a lent state would keep commits from moving it in its place
        except LocalProtocolError as error:
            log.info("not_scored", index=link.index, reason=error.one_line())
            return
        for task, part in parts:
            try:
                result = await self._score_of(partial(_lay, anchors), link, task, part, is_over)
                self.unsent.append(await self.tools.signed(encode_score(result)))
                del self.unsent[:-MAX_UNSENT]
                log.info("scored", task=task.name, index=link.index, part=part + 1, parts=task.parts)
            except PotluckError as error:
                log.info("not_scored", task=task.name, index=link.index, part=part + 1, reason=error.one_line())

    async def _score_of(
        self, read: ReadAnchors, link: ChainLink, task: EvaluateSection, part: int, is_over: Callable[[], bool]
    ) -> ScoreResult:
        file = await self.tools.read_task(task.name)
        items = items_of_part(task.name, len(file.items), part, task.parts)
        slices = partial(self._slice, read, link, is_over)
        if isinstance(file, Prompts):
            answers = await _answers(file, items, slices)
            return ScoreResult(task.name, link.commit, link.index, part, len(items), answers=answers)
        log_likelihoods = await self._log_likelihoods(file, items, slices)
        found = tally(file, items, log_likelihoods)
        counts = (found.num_items, found.num_right, found.num_right_by_length)
        return ScoreResult(task.name, link.commit, link.index, part, *counts)

    async def _log_likelihoods(self, file: Questions, items: Sequence[int], slices: _Slices) -> list[float]:
        requests: list[Request] = []
        for item in items:
            requests += requests_of(file.items[item], self.tools.context_tokens)
        found: list[float] = []
        size = FIRST_SEQUENCES
        while requests:
            taken = first_fitting(requests, size)
            now, requests = requests[:taken], requests[taken:]
            sequences, num_scored = tuple(r.tokens for r in now), tuple(r.num_scored for r in now)
            scored, took_s = await slices(ScoreOrder(sequences=sequences, num_scored=num_scored))
            found += all_finite(scored.log_likelihoods)
            size = next_size(taken, took_s, MOST_SEQUENCES)
        return found

    async def _slice(
        self, read: ReadAnchors, link: ChainLink, is_over: Callable[[], bool], order: ScoreOrder
    ) -> tuple[Scored, float]:
        """Score one slice, once training has had its time since the last one and the owner allows it. Also returns for how long
        training stood still. The wait until its step ends is none of that: where steps are long, slices would only become shorter.
        """
        board = self.tools.board
        if not is_over():  # nothing is trained then that could wait
            await trio.sleep_until(self.budget.since_s + self.budget.rest_s)
        while not board.allowed.may_compute:
            await trio.sleep(1.0)
        began_s = trio.current_time()
        with spanned(board.spans.record, EVALUATE, "", f"tasks of round {link.index}", link.index):
            scored = await self._tried(read, order)
        took_s = scored.took_s or trio.current_time() - began_s
        self.budget = self.budget.after(took_s, trio.current_time())
        return scored, took_s

    async def _tried(self, read: ReadAnchors, order: ScoreOrder) -> Scored:
        for _ in range(TRIES - 1):
            try:
                return await self.tools.score(read, order)
            except WorkerDied as error:
                log.info("score_tried_again", reason=error.one_line())
        return await self.tools.score(read, order)

    async def _bring(self) -> None:
        """Bring scores to the host until cancelled. One that it may take later is kept."""
        while True:
            for sealed in tuple(self.unsent):
                try:
                    await self.tools.send(sealed)
                except MIGHT_WORK_LATER as error:
                    log.debug("score_not_delivered", reason=error.one_line())
                    continue
                except PotluckError as error:
                    log.warning("score_refused", reason=error.one_line())
                if sealed in self.unsent:
                    self.unsent.remove(sealed)
            await trio.sleep(SEND_EVERY_S if self.unsent else SEND_EVERY_S / 10)


@asynccontextmanager
async def _ends_in_time(service: RoundService, is_over: Callable[[], bool]) -> AsyncIterator[None]:
    """The block of a measurement. It is given up after its time, and some time after the end of the run if it began earlier."""

    async def cut(scope: trio.CancelScope) -> None:
        while not is_over():
            with trio.move_on_after(LOOK_EVERY_S):
                await service.wait_changed()
        scope.deadline = min(scope.deadline, trio.current_time() + OLD_WITHIN_S)

    with trio.move_on_after(LAST_WITHIN_S if is_over() else MEASURE_WITHIN_S) as scope:
        async with trio.open_nursery() as nursery:
            if not is_over():
                nursery.start_soon(cut, scope)
            yield
            nursery.cancel_scope.cancel()


_Slices = Callable[[ScoreOrder], Awaitable[tuple[Scored, float]]]


async def _answers(file: Prompts, items: Sequence[int], slices: _Slices) -> tuple[tuple[int, ...], ...]:
    """The likeliest continuation of each prompt, without the end mark."""
    answers: list[tuple[int, ...]] = []
    for item in items:
        answer: tuple[int, ...] = ()
        size = FIRST_TOKENS
        while len(answer) < file.answer_tokens and file.end not in answer:
            order = ScoreOrder(
                sequences=((*file.items[item].tokens, *answer),),
                num_answer_tokens=min(size, file.answer_tokens - len(answer)),
                vocab_size=file.vocab_size,
                end=file.end,
            )
            scored, took_s = await slices(order)
            answer += scored.answers[0]
            size = next_size(size, took_s, file.answer_tokens)
        answers.append(answer[:-1] if file.end in answer else answer)
    return tuple(answers)


async def _lay(anchors: Sequence[torch.Tensor], rooms: Sequence[torch.Tensor]) -> None:
    for room_N, anchor_N in zip(rooms, anchors, strict=True):
        for begin in range(0, len(anchor_N), _COPIED_AT_ONCE):
            stop = begin + _COPIED_AT_ONCE
            room_N[begin:stop].copy_(anchor_N[begin:stop])
            await trio.lowlevel.checkpoint()
