"""Measurements of one peer in virtual time, with a trainer and a host that do as they are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import pytest
import torch
import trio
import trio.testing

from averaging.data.tasks.task_file import Prompts, PromptTokens, Questions, QuestionTokens, TaskFile
from averaging.network.seams.interfaces import ReadAnchors
from peer.owner.controls_core import TrainingAllowance
from peer.scores.scoring_core import SHARE_OF_TIME, TimeBudget
from peer.scores.task_scoring import (
    LAST_WITHIN_S,
    MAX_UNSENT,
    OLD_WITHIN_S,
    SEND_LAST_WITHIN_S,
    TRIES,
    ScoringTools,
    TaskScoring,
)
from peer.status.duties_core import EvaluationTurns
from peer.status.status_board import StatusBoard
from peer.training.worker_channel import Scored, ScoreOrder
from peer.training.worker_errors import DoesNotFit, WorkerDied
from protocol.errors import LocalProtocolError, PotluckError, RefusedError, TemporaryError, UnreachableError
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.run.evaluate_section import EvaluateSection
from protocol.scores.score_result import ScoreResult, decode_score
from protocol.scores.task_turns import items_of_part
from tests.peer.moving_head import MovingHead
from tests.virtual import VirtualClock

Clock = trio.testing.MockClock
ME, OTHER = PeerId("me"), PeerId("other")
UNIT, RUN = UnitName("whole"), RunId(b"r" * 32)
ITEM = QuestionTokens(context=(1, 2), choices=((3,), (4, 5)), lengths=(1, 2), answer=1)
FILES: dict[str, TaskFile] = {
    "facts": Questions(items=(ITEM,) * 10),
    "words": Prompts(items=(PromptTokens(text="a", tokens=(7, 8)),) * 2, end=9, vocab_size=10, answer_tokens=12),
}
FACTS = EvaluateSection(name="facts", file="f", every_rounds=2)
WORDS = EvaluateSection(name="words", file="w", kind="prompts", every_rounds=2, answer_tokens=12)


def _link(index: int) -> ChainLink:
    return ChainLink(UNIT, CommitId(bytes([index]) * 32), index, (ME,), 100 * index, 100)


@dataclass
class World:
    """A peer's measurements, and what its trainer and its host saw of them."""

    tasks: tuple[EvaluateSection, ...] = (FACTS,)
    slice_s: float = 0.1
    step_s: float = 0.0
    errors: list[PotluckError] = field(default_factory=list)
    refusals: list[PotluckError] = field(default_factory=list)
    orders: list[ScoreOrder] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    sent: list[ScoreResult] = field(default_factory=list)
    is_over: bool = False
    is_here: Callable[[PeerId], bool] = lambda peer: True
    board: StatusBoard = field(default_factory=lambda: StatusBoard(ME, VirtualClock(), 0.0))
    service: MovingHead = field(default_factory=lambda: MovingHead(_link(2)))
    began_s: list[float] = field(default_factory=list)

    async def _read(self, name: str) -> TaskFile:
        return FILES[name]

    async def _score(self, read: ReadAnchors, order: ScoreOrder) -> Scored:
        self.orders.append(order)
        self.values.append(torch.empty_like(self.service.chain.state.anchor_N))
        await read(self.values[-1:])
        self.began_s.append(trio.current_time())
        await trio.sleep(self.step_s + self.slice_s)
        if self.errors:
            raise self.errors.pop(0)
        if order.num_answer_tokens:
            return Scored(answers=tuple((1,) * order.num_answer_tokens for _ in order.sequences), took_s=self.slice_s)
        found = tuple(-1.0 if tokens[-1] == 3 else -1.5 for tokens in order.sequences)
        return Scored(log_likelihoods=found, took_s=self.slice_s)

    async def _copied(self, commit: CommitId) -> list[torch.Tensor]:
        if self.service.chain.state.head != commit:
            raise LocalProtocolError("another commit", "this one")
        return [self.service.chain.state.anchor_N.clone()]

    async def _signed(self, payload: bytes) -> bytes:
        return payload

    async def _send(self, sealed: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(decode_score(sealed))

    @property
    def scoring(self) -> TaskScoring:
        turns = EvaluationTurns(RUN, ME, self.is_here)
        sides = (self._read, self._score, self._copied, self._signed, self._send)
        tools = ScoringTools(self.tasks, *sides, turns, self.board, context_tokens=8, total_tokens=1000)
        return TaskScoring(tools, TimeBudget(trio.current_time()))

    async def until(self, story: Callable[[], Awaitable[object]]) -> TaskScoring:
        """Measure while the story goes on, and to the end of the run after it."""
        scoring = self.scoring

        async def tell() -> None:
            await story()
            self.is_over = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell)
            await scoring.run(self.service, lambda: self.is_over)  # type: ignore[arg-type]
        return scoring


async def _a_while() -> None:
    await trio.sleep(50)


async def test_a_commit_that_is_due_is_measured_and_its_score_sent(autojump_clock: Clock) -> None:
    world = World()
    await world.until(_a_while)
    # each first choice has the greater likelihood, and each second one the greater one for its length
    assert world.sent == [ScoreResult("facts", _link(2).commit, 2, 0, 10, 0, 10)]
    assert sum(len(order.sequences) for order in world.orders) == 20
    assert {num for order in world.orders for num in order.num_scored} == {1, 2}
    assert {span.name for span in world.board.spans.newest()} == {"evaluate"}


async def test_answers_come_slice_by_slice_until_their_length_or_their_end(autojump_clock: Clock) -> None:
    world = World(tasks=(WORDS,))
    await world.until(_a_while)
    (result,) = world.sent
    assert [len(answer) for answer in result.answers] == [12, 12]
    assert [order.num_answer_tokens for order in world.orders[:2]] == [4, 8]
    assert world.orders[1].sequences == ((7, 8, 1, 1, 1, 1),)


async def test_only_due_commits_are_measured_and_the_last_one_of_the_run(autojump_clock: Clock) -> None:
    world = World(service=MovingHead(_link(1)))

    async def story() -> None:
        for index in (3, 4, 5):
            await trio.sleep(30)
            world.service.move(_link(index))
        await trio.sleep(30)
        world.service.move(replace(_link(7), total_tokens=1000))

    await world.until(story)
    assert [result.index for result in world.sent] == [4, 7]


async def test_parts_of_others_are_left_to_them_while_they_are_here(autojump_clock: Clock) -> None:
    tasks = (FACTS.model_copy(update={"parts": 2}),)
    link = replace(_link(2), roster=(ME, OTHER))
    both: set[tuple[int, ...]] = set()
    for is_here in (True, False):
        world = World(tasks=tasks, service=MovingHead(link), is_here=lambda peer, here=is_here: here)  # type: ignore[misc]
        await world.until(_a_while)
        assert all(result.num_items == len(items_of_part("facts", 10, result.part, 2)) for result in world.sent)
        both.add(tuple(result.part for result in world.sent))
    assert sorted(map(len, both)) == [1, 2]


async def test_training_has_the_rest_of_the_time_and_a_long_task_is_finished_across_commits(
    autojump_clock: Clock,
) -> None:
    world = World(slice_s=4.0)

    async def story() -> None:
        for _ in range(40):
            await trio.sleep(30)
            world.service.move(_link(3))
        await trio.sleep(30)

    await world.until(story)
    assert [result.index for result in world.sent] == [2]
    span_s = world.began_s[-1] - world.began_s[0]
    assert len(world.began_s) >= 5
    assert (len(world.began_s) - 1) * 4.0 <= SHARE_OF_TIME * span_s + 10.0
    assert all(torch.equal(values_N, torch.ones(2)) for values_N in world.values), "of the commit as it was"


async def test_waiting_for_long_steps_of_training_takes_nothing_of_the_time_for_scores(autojump_clock: Clock) -> None:
    world = World(step_s=30.0)
    await world.until(partial(trio.sleep, 150))
    assert len(world.sent) == 1
    assert [len(order.sequences) for order in world.orders] == [4, 8, 8]
    gaps_s = [later - earlier for earlier, later in pairwise(world.began_s)]
    assert gaps_s == pytest.approx([30.1, 30.1]), "one after another, without a rest"


async def test_a_pause_of_the_owner_is_waited_for(autojump_clock: Clock) -> None:
    world = World()
    world.board.allowed = TrainingAllowance(0.0, "paused by its owner")

    async def story() -> None:
        await trio.sleep(100)
        assert world.orders == []
        world.board.allowed = TrainingAllowance()
        await trio.sleep(100)

    await world.until(story)
    assert len(world.sent) == 1
    assert world.began_s[0] >= 100


async def test_a_training_process_that_dies_is_asked_again_and_not_for_ever(autojump_clock: Clock) -> None:
    died = WorkerDied("the training process died while evaluating", "its result", "it is being restarted")
    world = World(errors=[died])
    await world.until(_a_while)
    assert len(world.sent) == 1
    world = World(errors=[died] * TRIES)
    await world.until(_a_while)
    assert (world.sent, len(world.orders)) == ([], TRIES)


@pytest.mark.parametrize("value", [None, -1.0])
async def test_what_cannot_be_measured_is_left_out_and_the_next_task_is_measured(
    autojump_clock: Clock, value: float | None
) -> None:
    world = World(tasks=(FACTS, WORDS), errors=[] if value is None else [DoesNotFit("no room", "room", "others do it")])
    score = world._score

    async def scored(read: ReadAnchors, order: ScoreOrder) -> Scored:
        found = await score(read, order)
        return (
            Scored(log_likelihoods=(None,) * len(found.log_likelihoods), answers=found.answers)
            if value is None
            else found
        )

    world._score = scored  # type: ignore[method-assign]
    await world.until(_a_while)
    assert [result.task for result in world.sent] == ["words"]


async def test_a_score_is_kept_until_the_host_is_there_and_dropped_where_it_is_refused(autojump_clock: Clock) -> None:
    later: list[PotluckError] = [UnreachableError("nobody answers", "a host"), TemporaryError("it is x's turn", "x")]
    world = World(refusals=list(later))
    assert (await world.until(_a_while)).unsent == []
    assert len(world.sent) == 1
    world = World(refusals=[RefusedError("none of those that may", "a voter")])
    assert (await world.until(_a_while)).unsent == []
    assert world.sent == []


async def test_the_end_waits_for_a_host_that_is_away_no_longer_than_it_should(autojump_clock: Clock) -> None:
    world = World(refusals=[UnreachableError("nobody answers", "a host")] * 10_000)
    with trio.fail_after(120):
        scoring = await world.until(_a_while)
    assert 0 < len(scoring.unsent) <= MAX_UNSENT


@pytest.mark.parametrize("is_paused", [False, True])
async def test_the_end_of_a_run_gives_an_older_measurement_up_in_time_and_measures_the_last_commit(
    autojump_clock: Clock, is_paused: bool
) -> None:
    world = World(slice_s=1000.0)
    began_s = 0.0

    async def story() -> None:
        nonlocal began_s
        await trio.sleep(5.0)
        if is_paused:
            world.board.allowed = TrainingAllowance(0.0, "paused by its owner")
        await trio.sleep(5.0)
        world.service.move(replace(_link(7), total_tokens=1000))
        began_s = trio.current_time()
        if not is_paused:
            world.slice_s = 0.1

    await world.until(story)
    assert [result.index for result in world.sent] == ([] if is_paused else [7])
    assert trio.current_time() - began_s < LAST_WITHIN_S + OLD_WITHIN_S + SEND_LAST_WITHIN_S + 10.0


async def test_a_run_without_tasks_measures_nothing(autojump_clock: Clock) -> None:
    world = World(tasks=())
    await world.until(_a_while)
    assert world.orders == []
