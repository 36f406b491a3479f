"""Of processes that end together one is the reason, whichever is heard first."""

from __future__ import annotations

from itertools import permutations

import pytest

from peer.training.supervision.ends_core import EndKind, RankEnd, card_words, cause_of

KINDS: tuple[EndKind, ...] = ("out_of_memory", "failed", "silent", "echo")


@pytest.mark.parametrize("kind", ["out_of_memory", "failed", "silent"])
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_the_one_that_ended_by_itself_is_the_reason_in_whatever_order_they_are_heard(
    kind: EndKind, culprit: int
) -> None:
    ends = [RankEnd(rank, kind if rank == culprit else "echo") for rank in range(3)]
    for heard in permutations(ends):
        until = heard.index(ends[culprit]) + 1
        assert cause_of(heard[:until], 3) == ends[culprit]


def test_while_only_echoes_are_heard_another_rank_may_still_say_why() -> None:
    assert cause_of([], 2) is None
    assert cause_of([RankEnd(0, "echo")], 2) is None
    assert cause_of([RankEnd(0, "echo"), RankEnd(2, "echo")], 3) is None


def test_if_all_saw_another_one_end_the_first_is_the_reason() -> None:
    assert cause_of([RankEnd(1, "echo"), RankEnd(0, "echo")], 2) == RankEnd(1, "echo")


@pytest.mark.parametrize("first", KINDS)
def test_memory_that_ran_out_comes_before_all_else_since_the_next_plan_depends_on_it(first: EndKind) -> None:
    assert cause_of([RankEnd(0, first), RankEnd(1, "out_of_memory")], 2) == (
        RankEnd(0, first) if first == "out_of_memory" else RankEnd(1, "out_of_memory")
    )


def test_a_rank_is_named_by_its_card_or_by_its_own_number() -> None:
    assert [card_words(*of) for of in (("cuda:3", 1), ("cpu", 1), ("auto", 0))] == ["card 3", "card 1", "card 0"]
