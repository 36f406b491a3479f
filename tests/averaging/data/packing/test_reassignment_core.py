"""Documents move to the expert with the lowest loss, not all at once, and no expert is left without."""

from __future__ import annotations

import random

import pytest

from averaging.data.packing.reassignment_core import reassigned
from protocol.errors import ConfigError


def test_each_document_goes_where_its_loss_is_lowest() -> None:
    losses = [[1.0, 2.0], [2.0, 1.0], [1.5, 1.0], [1.0, 1.5]]
    assert reassigned(losses, [1, 0, 0, 0], least_documents=0, most_moved=4) == (0, 1, 1, 0)


def test_those_that_gain_most_go_first_and_no_more_than_may() -> None:
    losses = [[2.0, 1.9], [2.0, 1.0], [2.0, 1.5]]
    assert reassigned(losses, [0, 0, 0], least_documents=0, most_moved=1) == (0, 1, 0)
    assert reassigned(losses, [0, 0, 0], least_documents=0, most_moved=2) == (0, 1, 1)
    assert reassigned(losses, [0, 0, 0], least_documents=0, most_moved=0) == (0, 0, 0)


def test_an_expert_keeps_its_least_number_though_all_would_gain() -> None:
    losses = [[2.0, 1.0 + 0.1 * document] for document in range(6)]
    assert reassigned(losses, [0] * 6, least_documents=2, most_moved=6) == (1, 1, 1, 1, 0, 0)


def test_an_expert_with_too_few_gets_those_that_lose_least() -> None:
    losses = [[1.0, 1.5], [1.0, 1.2], [1.0, 1.1], [1.0, 1.9]]
    assert reassigned(losses, [0] * 4, least_documents=2, most_moved=0) == (0, 1, 1, 0)


def test_where_nothing_is_gained_documents_stay_and_equal_experts_are_taken_by_number() -> None:
    assert reassigned([[1.0, 1.0, 1.0]] * 3, [2, 1, 0], least_documents=1, most_moved=3) == (2, 1, 0)
    assert reassigned([[2.0, 1.0, 1.0]], [0], least_documents=0, most_moved=1) == (1,)


def test_whatever_the_losses_are_floors_and_bounds_hold_and_no_more_moves_end_it() -> None:
    source = random.Random(5)
    for _ in range(60):
        num_experts, num_documents, floor = source.randint(1, 5), source.randint(20, 40), source.randint(0, 4)
        losses = [[source.random() for _ in range(num_experts)] for _ in range(num_documents)]
        owners = tuple(source.randrange(num_experts) for _ in range(num_documents))
        most = source.randint(0, num_documents)
        after = reassigned(losses, owners, least_documents=floor, most_moved=most)
        assert all(after.count(expert) >= floor for expert in range(num_experts))
        missing = sum(max(0, floor - owners.count(expert)) for expert in range(num_experts))
        assert sum(a != b for a, b in zip(owners, after, strict=True)) <= most + missing
        for _ in range(num_documents):
            before, after = after, reassigned(losses, after, least_documents=floor, most_moved=num_documents)
        assert before == after


@pytest.mark.parametrize(
    ("losses", "owners", "least", "said"),
    [
        ([], [], 0, "losses of 0 documents"),
        ([[1.0]], [0, 0], 0, "losses of 1 documents, owners of 2"),
        ([[1.0, 2.0], [1.0]], [0, 0], 0, "by every expert"),
        ([[1.0, 2.0]], [2], 0, "expected 0 to 1"),
        ([[1.0, float("nan")]], [0], 0, "not finite"),
        ([[1.0, 2.0]], [0], 1, "1 documents for 2 experts; expected at least 2"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(
    losses: list[list[float]], owners: list[int], least: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        reassigned(losses, owners, least_documents=least, most_moved=1)
