"""Whether a peer's score counts, and what the counted ones add up to. Pure.

A score counts from the peer whose turn it is (protocol/scores/task_turns.py). A stand-in's is asked for again until those before it
are not live, or were silent for some further commits. It never takes the place of a score of theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coordinator.progress.heldout_core import STAND_IN_AFTER_COMMITS
from protocol.errors import RefusedError, TemporaryError
from protocol.ids import CommitId, PeerId, RunId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.run.evaluate_section import EvaluateSection
from protocol.scores.score_result import ScoreResult
from protocol.scores.task_turns import items_of_part, turn_order


@dataclass(frozen=True, slots=True)
class ScoredTask:
    """A task of the run.

    Attributes:
        num_items: its questions or prompts.
        chance: share of questions that a blind guess answers rightly; 0 for prompts.
        vocab_size: tokens of answers are below it; 0 for questions.
        prompts: texts for people.
    """

    section: EvaluateSection
    num_items: int
    chance: float = 0.0
    vocab_size: int = 0
    prompts: tuple[str, ...] = ()

    def items_of(self, part: int) -> tuple[int, ...]:
        """The items of a part."""
        return items_of_part(self.section.name, self.num_items, part, self.section.parts)


@dataclass(frozen=True, slots=True)
class ScoreFacts:
    """The facts that judge a score: the run, the index of its head, and the peers that are live now."""

    run_id: RunId
    tasks: Mapping[str, ScoredTask]
    total_tokens: int
    head_index: int
    live: Collection[PeerId]


def check_score(peer: PeerId, result: ScoreResult, link: ChainLink, facts: ScoreFacts) -> tuple[PeerId, ...]:
    """Judge the score that a peer signed about a verified commit. Returns the peers whose scores come before its own.

    Raises:
        RefusedError: it says what cannot be, or the peer is none of those that may measure this commit.
        TemporaryError: a peer before it may still bring its own.
    """
    task = facts.tasks.get(result.task)
    if task is None:
        raise RefusedError(f"{peer} measured a task {result.task!r}", "a task of the run")
    if problem := _contradiction(result, link, task, facts.total_tokens):
        raise RefusedError(f"{peer} says that {problem}", "a score of what was measured", "it is not shown")
    order = turn_order(facts.run_id, link.unit, result.task, link.index, result.part, link.roster)
    if peer not in order:
        raise RefusedError(
            f"{peer} measured {result.task} at round {link.index}, and is none of those that may",
            "one of the round's voters",
            "it is not shown",
        )
    ahead = order[: order.index(peer)]
    first = next((each for each in ahead if each in facts.live), None)
    if first is not None and facts.head_index < link.index + STAND_IN_AFTER_COMMITS:
        raise TemporaryError(
            f"{peer} measured {result.task} at round {link.index}, and it is the turn of {first}",
            "a score of that peer",
            "it is asked for again if none comes",
        )
    return ahead


def _contradiction(result: ScoreResult, link: ChainLink, task: ScoredTask, total_tokens: int) -> str:
    section, index = task.section, result.index
    if index != link.index:
        return f"round {index} of {result.task} has the commit of round {link.index}"
    if not section.is_due(index, is_last=link.total_tokens >= total_tokens):
        return f"{result.task} has a score of round {index}, which is not due"
    if result.part >= section.parts:
        return f"part {result.part + 1} of {result.task} is measured, which has {section.parts}"
    num_items = len(task.items_of(result.part))
    if result.num_items != num_items:
        return f"part {result.part + 1} of {result.task} has {result.num_items} items, and it has {num_items}"
    if section.kind != "prompts":
        return f"{result.task} has answers" if result.answers else ""
    if result.num_right or result.num_right_by_length or len(result.answers) != num_items:
        return f"{len(result.answers)} of {num_items} prompts of {result.task} have answers"
    longest = max(map(len, result.answers))
    if longest > section.answer_tokens:
        return f"an answer of {result.task} has {longest} tokens, and {section.answer_tokens} are asked for"
    if any(token >= task.vocab_size for answer in result.answers for token in answer):
        return f"an answer of {result.task} has a token that the run's tokenizer lacks"
    return ""


@dataclass(frozen=True, slots=True)
class KnownScore:
    """A score that counts. `answers` are texts for people."""

    result: ScoreResult
    peer: PeerId
    total_tokens: int
    answers: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, int, CommitId]:
        """One score stands at each: task, part and commit."""
        return self.result.task, self.result.part, self.result.commit


@dataclass(frozen=True, slots=True)
class TaskPoint:
    """The sum of a task's parts at one commit. `missing` are the parts without a score, from 1; sums are of the others."""

    index: int
    total_tokens: int
    num_items: int
    num_right: int
    num_right_by_length: int
    missing: tuple[int, ...] = ()

    @property
    def acc(self) -> float | None:
        """Share of questions whose right choice is the likeliest; None while a part is missing."""
        return None if self.missing else self.num_right / self.num_items

    @property
    def acc_norm(self) -> float | None:
        """The same by likelihood for each byte."""
        return None if self.missing else self.num_right_by_length / self.num_items


@dataclass(frozen=True, slots=True)
class TaskCurve:
    """A task over the run: its points by rounds, and the newest answers, (prompt, answer), of the round `answered_index`."""

    task: ScoredTask
    points: tuple[TaskPoint, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    answered_index: int = 0

    @property
    def newest(self) -> TaskPoint | None:
        """The newest point without missing parts; None before the first."""
        return next((point for point in reversed(self.points) if not point.missing), None)


def task_curve(task: ScoredTask, scores: Sequence[KnownScore]) -> TaskCurve:
    """The curve of a task, of its scores on the followed lineage, in any order."""
    by_round: dict[int, dict[int, KnownScore]] = {}
    for score in scores:
        by_round.setdefault(score.result.index, {})[score.result.part] = score
    points = tuple(_point(task, index, by_round[index]) for index in sorted(by_round))
    if task.section.kind != "prompts" or not by_round:
        return TaskCurve(task, points)
    newest = max(by_round)
    said = {
        item: text
        for part, score in by_round[newest].items()
        for item, text in zip(task.items_of(part), score.answers, strict=True)
    }
    return TaskCurve(task, points, tuple((task.prompts[item], said[item]) for item in sorted(said)), newest)


def _point(task: ScoredTask, index: int, parts: Mapping[int, KnownScore]) -> TaskPoint:
    results = [score.result for score in parts.values()]
    return TaskPoint(
        index,
        next(iter(parts.values())).total_tokens,
        sum(result.num_items for result in results),
        sum(result.num_right for result in results),
        sum(result.num_right_by_length for result in results),
        tuple(part + 1 for part in range(task.section.parts) if part not in parts),
    )


def curve_json(curve: TaskCurve) -> Mapping[str, object]:
    """A task as /api/status shows it. Prompts and answers are text of others: whoever shows them must escape them."""
    task, asks = curve.task, curve.task.section.kind != "prompts"
    return {
        "name": task.section.name,
        "kind": task.section.kind,
        "num_items": task.num_items,
        "parts": task.section.parts,
        "chance": task.chance,
        "points": [
            {
                "index": point.index,
                "tokens": point.total_tokens,
                "items": point.num_items,
                "acc": point.acc if asks else None,
                "acc_norm": point.acc_norm if asks else None,
                "missing": list(point.missing),
            }
            for point in curve.points
        ],
        "answered_index": curve.answered_index,
        "answers": [{"prompt": prompt, "answer": answer} for prompt, answer in curve.answers],
    }


def num_scores(curves: Sequence[TaskCurve]) -> int:
    """How many parts have a score: it grows when there is something new to read."""
    return sum(curve.task.section.parts - len(point.missing) for curve in curves for point in curve.points)
