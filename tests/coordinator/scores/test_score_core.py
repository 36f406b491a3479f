from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from coordinator.progress.heldout_core import STAND_IN_AFTER_COMMITS
from coordinator.scores.score_core import (
    KnownScore,
    ScoredTask,
    ScoreFacts,
    check_score,
    curve_json,
    num_scores,
    task_curve,
)
from protocol.errors import RefusedError, TemporaryError
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.run.evaluate_section import EvaluateSection
from protocol.scores.score_result import ScoreResult
from protocol.scores.task_turns import turn_order

RUN, UNIT = RunId(b"r" * 32), UnitName("fragment-0")
PEERS = (PeerId("a"), PeerId("b"), PeerId("c"))
FACTS = ScoredTask(EvaluateSection(name="facts", file="f", every_rounds=4, parts=2), 9, 0.25)
WORDS = ScoredTask(
    EvaluateSection(name="words", file="w", kind="prompts", every_rounds=4, answer_tokens=3),
    2,
    vocab_size=100,
    prompts=("one", "two"),
)
LINK = ChainLink(UNIT, CommitId(b"c" * 32), 8, PEERS, 800, 100)
FIRST, SECOND, THIRD = turn_order(RUN, UNIT, "facts", 8, 0, PEERS)
SCORE = ScoreResult("facts", LINK.commit, 8, 0, 5, 2, 3)
ANSWERS = ScoreResult("words", LINK.commit, 8, 0, 2, answers=((1,), (2, 3)))
WRITER = turn_order(RUN, UNIT, "words", 8, 0, PEERS)[0]


def _ahead(
    peer: PeerId, score: ScoreResult = SCORE, *, head: int = 8, live: Collection[PeerId] = PEERS
) -> tuple[PeerId, ...]:
    facts = ScoreFacts(RUN, {"facts": FACTS, "words": WORDS}, 2000, head, live)
    return check_score(peer, score, LINK, facts)


def test_a_score_of_the_peer_whose_turn_it_is_counts() -> None:
    assert _ahead(FIRST) == ()
    assert _ahead(WRITER, ANSWERS) == ()


def test_a_peer_whose_turn_it_is_not_is_asked_again_and_named_with_the_one_before_it() -> None:
    with pytest.raises(TemporaryError, match=f"{SECOND} measured facts at round 8, and it is the turn of {FIRST}"):
        _ahead(SECOND)


def test_a_stand_in_counts_once_those_before_it_are_gone_or_were_silent_for_some_commits() -> None:
    assert _ahead(SECOND, live={SECOND, THIRD}) == (FIRST,)
    assert _ahead(THIRD, live={THIRD}) == (FIRST, SECOND)
    assert _ahead(SECOND, head=8 + STAND_IN_AFTER_COMMITS) == (FIRST,)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"task": "other"}, "measured a task 'other'"),
        ({"index": 4}, "round 4 of facts has the commit of round 8"),
        ({"part": 2}, "part 3 of facts is measured, which has 2"),
        ({"num_items": 6}, "part 1 of facts has 6 items, and it has 5"),
        ({"answers": ((1,),)}, "facts has answers"),
    ],
)
def test_a_score_that_cannot_be_is_refused_in_the_name_of_its_peer(change: dict[str, Any], found: str) -> None:
    with pytest.raises(RefusedError) as caught:
        _ahead(FIRST, replace(SCORE, **change))
    assert found in caught.value.found
    assert caught.value.found.startswith(FIRST)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"answers": ((1,),)}, "1 of 2 prompts of words have answers"),
        ({"num_right": 1}, "2 of 2 prompts of words have answers"),
        ({"answers": ((1,), (1, 2, 3, 4))}, "an answer of words has 4 tokens, and 3 are asked for"),
        ({"answers": ((1,), (100,))}, "a token that the run's tokenizer lacks"),
    ],
)
def test_answers_that_cannot_be_are_refused(change: dict[str, Any], found: str) -> None:
    with pytest.raises(RefusedError, match=found):
        _ahead(WRITER, replace(ANSWERS, **change))


def test_a_commit_that_is_not_due_and_a_peer_that_is_no_voter_are_refused() -> None:
    with pytest.raises(RefusedError, match="stranger measured facts at round 8, and is none of those that may"):
        _ahead(PeerId("stranger"))
    odd = replace(LINK, index=7)
    facts = ScoreFacts(RUN, {"facts": FACTS}, 2000, 8, PEERS)
    with pytest.raises(RefusedError, match="a score of round 7, which is not due"):
        check_score(FIRST, replace(SCORE, index=7), odd, facts)
    check_score(
        turn_order(RUN, UNIT, "facts", 7, 0, PEERS)[0], replace(SCORE, index=7), odd, replace(facts, total_tokens=800)
    )


def _known(part: int, index: int, right: int, right_by_length: int) -> KnownScore:
    items = len(FACTS.items_of(part))
    result = ScoreResult("facts", CommitId(bytes([index]) * 32), index, part, items, right, right_by_length)
    return KnownScore(result, FIRST, 100 * index)


def test_parts_add_up_once_all_are_there_and_a_missing_one_is_named() -> None:
    curve = task_curve(FACTS, [_known(1, 8, 1, 1), _known(0, 4, 2, 3), _known(1, 4, 1, 4)])
    first, second = curve.points
    assert (first.index, first.num_items, first.acc, first.acc_norm, first.missing) == (4, 9, 3 / 9, 7 / 9, ())
    assert (second.index, second.acc, second.acc_norm, second.missing) == (8, None, None, (1,))
    assert curve.newest == first
    shown = curve_json(curve)
    assert shown["points"][1]["missing"] == [1]  # type: ignore[index]
    assert num_scores([curve]) == 3


def test_prompts_show_the_newest_answers_and_no_accuracy() -> None:
    older = KnownScore(replace(ANSWERS, index=4), FIRST, 400, ("x", "y"))
    newer = KnownScore(ANSWERS, FIRST, 800, ("<b>", "z"))
    curve = task_curve(WORDS, [newer, older])
    assert (curve.answered_index, curve.answers) == (8, (("one", "<b>"), ("two", "z")))
    assert [point["acc"] for point in curve_json(curve)["points"]] == [None, None]  # type: ignore[attr-defined]
    assert task_curve(WORDS, []).answers == ()
