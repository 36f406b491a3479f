"""Scores by a written-out copy of lm-evaluation-harness's arithmetic, and the sizes and rests of slices."""

from __future__ import annotations

import random

import numpy as np
import pytest

from averaging.data.tasks.task_file import Questions, QuestionTokens
from peer.scores.scoring_core import (
    MOST_SAVED_S,
    MOST_TOKENS,
    SHARE_OF_TIME,
    Request,
    Tally,
    TimeBudget,
    first_fitting,
    next_size,
    requests_of,
    tally,
)


def _harness_scores(log_likelihoods: list[float], lengths: list[int], answer: int) -> tuple[bool, bool]:
    """`process_results` of a multiple-choice task: numpy's argmax, which takes the first of equal ones."""
    found = np.array(log_likelihoods)
    return int(np.argmax(found)) == answer, int(np.argmax(found / np.array(lengths, dtype=float))) == answer


def _harness_input(context: list[int], continuation: list[int], max_length: int) -> list[int]:
    """The model's input in `_loglikelihood_tokens`."""
    return (context + continuation)[-(max_length + 1) :][:-1]


def _item(random_: random.Random) -> QuestionTokens:
    choices = tuple(tuple(random_.randrange(9) for _ in range(random_.randint(1, 4))) for _ in range(4))
    lengths = tuple(random_.randint(1, 9) for _ in range(4))
    context = tuple(random_.randrange(9) for _ in range(random_.randint(1, 12)))
    return QuestionTokens(context=context, choices=choices, lengths=lengths, answer=random_.randrange(4))


def test_scores_are_those_of_the_harness_ties_and_lengths_included() -> None:
    random_ = random.Random(5)
    task = Questions(items=tuple(_item(random_) for _ in range(200)))
    items = random_.sample(range(200), 120)
    values = [
        float(-random_.randint(1, 6)) for item in items for _ in task.items[item].choices
    ]  # many of them are equal
    right = right_by_length = 0
    for number, item in enumerate(items):
        one = task.items[item]
        both = _harness_scores(values[4 * number : 4 * number + 4], list(one.lengths), one.answer)
        right, right_by_length = right + both[0], right_by_length + both[1]
    assert tally(task, items, values) == Tally(120, right, right_by_length)
    assert 0 < right < 120
    assert right != right_by_length


def test_a_sequence_is_cut_on_the_left_as_the_harness_cuts_it() -> None:
    random_ = random.Random(6)
    for context_tokens in (4, 8, 100):
        item = _item(random_)
        for request, choice in zip(requests_of(item, context_tokens), item.choices, strict=True):
            assert request.num_scored == len(choice)
            assert list(request.tokens[:-1]) == _harness_input(list(item.context), list(choice), context_tokens)
            assert request.tokens[-len(choice) :] == choice


def test_the_first_of_equal_choices_is_taken() -> None:
    item = QuestionTokens(context=(1,), choices=((1,), (2,)), lengths=(3, 3), answer=1)
    assert tally(Questions(items=(item,)), [0], [-2.0, -2.0]) == Tally(1, 0, 0)


def test_slices_grow_while_they_are_short_and_shrink_when_they_are_long() -> None:
    assert next_size(4, 0.1, 100) == 8
    assert next_size(80, 0.1, 100) == 100
    assert next_size(40, 1.5, 100) == 40
    assert next_size(40, 8.0, 100) == 10
    assert next_size(1, 500.0, 100) == 1


def test_a_slice_is_bounded_by_sequences_and_by_tokens() -> None:
    short, long = Request((1,) * 10, 1), Request((1,) * (MOST_TOKENS // 2 + 1), 1)
    assert first_fitting([short] * 9, 4) == 4
    assert first_fitting([short] * 3, 4) == 3
    assert first_fitting([long] * 4, 4) == 1


def test_scores_take_their_share_of_the_time_on_the_average() -> None:
    budget, now_s, took_s = TimeBudget(0.0), 0.0, 0.0
    for _ in range(200):
        now_s += 2.0
        took_s += 2.0
        budget = budget.after(2.0, now_s)
        now_s += budget.rest_s
    assert took_s / now_s == pytest.approx(SHARE_OF_TIME, rel=0.05)


def test_a_small_task_takes_no_rest_and_no_more_is_saved_than_that() -> None:
    budget = TimeBudget(0.0).after(1.0, 1.0)
    assert budget.rest_s == 0
    assert TimeBudget(0.0).after(1.0, 1e6).left_s == MOST_SAVED_S - 1.0
